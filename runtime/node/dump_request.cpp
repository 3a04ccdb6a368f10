#include "runtime/node/dump_request.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>

#include "runtime/core/dumps.hpp"
#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe {
namespace {

/// Behind any lock.
constexpr std::size_t kOffset = 256;
constexpr Duration kLook = std::chrono::hours(1);

struct Words {
  std::atomic<std::uint32_t> asked, answered;
  std::array<char, 1024> folder;  ///< ends with a zero; written before `asked`
  OutputTurn output;
};

Words& words_in(const SharedMemory& memory) {
  return *reinterpret_cast<Words*>(memory.data() + kOffset);
}

}  // namespace

std::size_t bytes_with_dump_request() {
  return kOffset + sizeof(Words);
}

OutputTurn& output_turn_in(const SharedMemory& memory) {
  return words_in(memory).output;
}

Result<void> ask_for_dump(const SharedMemory& memory, const std::string& folder) {
  Words& words = words_in(memory);
  if (folder.size() >= words.folder.size())
    return ErrorInfo{ErrorCode::kRefused, "cannot dump", "the path of the node's folder is too long", ""};
  std::copy_n(folder.c_str(), folder.size() + 1, words.folder.begin());
  ++words.asked;
  futex_wake(words.asked, 1);
  return {};
}

bool is_dumped(const SharedMemory& memory) {
  return words_in(memory).answered == words_in(memory).asked;
}

Result<void> serve_dumps(UniqueFd memory) {
  auto mapped = SharedMemory::map(std::move(memory));
  if (!mapped) return mapped.error();
  if (mapped->size() < bytes_with_dump_request())
    return ErrorInfo{ErrorCode::kRefused, "cannot answer requests for dumps", "their memory is too small",
                     ""};
  share_output_turn(words_in(*mapped).output);  // the thread below keeps its memory
  start_quiet_thread([memory = std::make_shared<SharedMemory>(*std::move(mapped))] {
    Words& words = words_in(*memory);
    for (;;) {
      const std::uint32_t asked = words.asked;
      if (asked == words.answered) {
        futex_wait(words.asked, asked, kLook);
        continue;
      }
      words.folder.back() = '\0';
      try {
        dump_process(words.folder.data());
      } catch (const std::exception& error) {
        log(LogLevel::kError, std::string("cannot dump: ") + error.what());
      }
      words.answered = asked;
    }
  }).detach();
  return {};
}

}  // namespace troupe
