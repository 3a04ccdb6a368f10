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

ErrorInfo corrupt(const std::string& path, const std::string& why) {
  return {ErrorCode::kCorrupt, "the saved state '" + path + "' cannot be used", why,
          "begin the sweep anew under another name"};
}

}  // namespace

std::string SavedStates::path_of(StateNumber number) const {
  return folder_ + "/state-" + std::to_string(number);
}

Result<void> SavedStates::add(StateNumber number, train::Snapshot state) {
  const train::StateHash hash = train::hash_of_bytes(*state.state);
  const auto head = wire::encode(StateHead{state.place, state.job_type, state.metrics, hash});
  const std::uint64_t size = head.size();
  const auto wrote = write_whole(path_of(number), {std::as_bytes(std::span(&size, 1)), head, *state.state});
  state.file = {path_of(number), sizeof size + size, state.state->size(), hash};
  state.state = nullptr;
  states_.insert_or_assign(number, std::move(state));
  return wrote;
}

Result<train::Snapshot> SavedStates::find(StateNumber number) {
  if (const auto at = states_.find(number); at != states_.end()) return at->second;
  const std::string path = path_of(number);
  std::ifstream file(path, std::ios::binary);
  std::uint64_t size = 0;
  if (!file || !file.read(reinterpret_cast<char*>(&size), sizeof size))
    return corrupt(path, "it is not there");
  if (size > kMostHead) return corrupt(path, "it does not begin as one");
  wire::Bytes head(size);
  if (!file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(size)))
    return corrupt(path, "it ends early");
  auto decoded = wire::decode<StateHead>(head);
  if (!decoded) return corrupt(path, decoded.error().message());
  std::error_code failed;
  const auto whole = std::filesystem::file_size(path, failed);
  if (failed || whole < sizeof size + size) return corrupt(path, "it ends early");
  train::Snapshot state{decoded->place, decoded->job_type, decoded->metrics, nullptr};
  state.file = {path, sizeof size + size, whole - sizeof size - size, decoded->hash};
  return states_.insert_or_assign(number, std::move(state)).first->second;
}

Result<train::Snapshot> SavedStates::load(StateNumber number) {
  auto state = find(number);
  if (!state) return state.error();
  std::ifstream file(state->file.path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(state->file.offset));
  wire::Bytes bytes(state->file.size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    return corrupt(state->file.path, "it ends early");
  if (train::hash_of_bytes(bytes) != state->file.hash)
    return corrupt(state->file.path, "its bytes are not those that were written");
  state->state = std::make_shared<const wire::Bytes>(std::move(bytes));
  return state;
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
