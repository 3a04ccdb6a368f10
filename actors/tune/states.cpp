#include "actors/tune/states.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "actors/train/engine/state_parts.hpp"
#include "runtime/core/whole_file.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::tune {
namespace {

/// In front of the state's bytes.
struct StateHead {
  train::JobPlace place;
  std::uint64_t job_type = 0;
  report::Metrics metrics;
  train::StateHash hash;  ///< of the bytes
};
constexpr std::size_t kMostHead = std::size_t{1} << 20;

}  // namespace

std::string SavedStates::path_of(StateNumber number) const {
  return folder_ + "/state-" + std::to_string(number);
}

Result<void> SavedStates::add(StateNumber number, train::Snapshot state) {
  const auto head =
      wire::encode(StateHead{state.place, state.job_type, state.metrics, train::hash_of_bytes(*state.state)});
  const std::uint64_t size = head.size();
  const auto wrote = write_whole(path_of(number), {std::as_bytes(std::span(&size, 1)), head, *state.state});
  states_.insert_or_assign(number, std::move(state));
  return wrote;
}

Result<const train::Snapshot*> SavedStates::find(StateNumber number) {
  if (const auto at = states_.find(number); at != states_.end()) return &at->second;
  const std::string path = path_of(number);
  const auto corrupt = [&](const std::string& why) {
    return ErrorInfo{ErrorCode::kCorrupt, "the saved state '" + path + "' cannot be used", why,
                     "begin the sweep anew under another name"};
  };
  std::ifstream file(path, std::ios::binary);
  std::uint64_t size = 0;
  if (!file || !file.read(reinterpret_cast<char*>(&size), sizeof size)) return corrupt("it is not there");
  if (size > kMostHead) return corrupt("it does not begin as one");
  wire::Bytes head(size);
  if (!file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(size)))
    return corrupt("it ends early");
  auto decoded = wire::decode<StateHead>(head);
  if (!decoded) return corrupt(decoded.error().message());
  std::error_code failed;
  const auto whole = std::filesystem::file_size(path, failed);
  if (failed || whole < sizeof size + size) return corrupt("it ends early");
  wire::Bytes bytes(whole - sizeof size - size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    return corrupt("it ends early");
  if (train::hash_of_bytes(bytes) != decoded->hash)
    return corrupt("its bytes are not those that were written");
  train::Snapshot state{decoded->place, decoded->job_type, decoded->metrics,
                        std::make_shared<const wire::Bytes>(std::move(bytes))};
  return &states_.insert_or_assign(number, std::move(state)).first->second;
}

void SavedStates::keep(const std::set<StateNumber>& needed) {
  std::erase_if(states_, [&](const auto& state) { return !needed.contains(state.first); });
  std::error_code failed;
  std::filesystem::directory_iterator folder(folder_, failed);
  for (; !failed && folder != std::filesystem::directory_iterator(); folder.increment(failed)) {
    const std::string name = folder->path().filename();
    if (!name.starts_with("state-")) continue;
    const bool wanted = std::any_of(needed.begin(), needed.end(),
                                    [&](StateNumber number) { return folder->path() == path_of(number); });
    if (!wanted) ::unlink(folder->path().c_str());
  }
}

}  // namespace troupe::tune
