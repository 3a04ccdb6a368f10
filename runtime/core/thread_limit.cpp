#include "runtime/core/thread_limit.hpp"

#include <sys/resource.h>

#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/count.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe {
namespace {

constexpr rlim_t kPlenty = 4096;  ///< nobody who may start more is short of them

}  // namespace

Result<void> check_process_room(std::size_t count, const std::optional<ProcessRoom>& room) {
  if (!room || room->left() >= count) return {};
  return ErrorInfo{ErrorCode::kIo, "cannot start " + count_of(static_cast<std::int64_t>(count), "thread"),
                   "the control group " + room->group.string() + " may have " +
                       count_of(static_cast<std::int64_t>(room->most), "process", "processes") +
                       " and threads (pids.max), and has " + std::to_string(room->used),
                   "raise that: of a container --pids-limit; or end what runs beside this"};
}

Result<void> check_thread_limit(std::size_t count) {
  if (auto enough = check_process_room(count, process_room()); !enough) return enough;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur > kPlenty) return {};
  Result<void> checked;
  std::vector<std::thread> threads;
  threads.reserve(count);
  std::mutex all_are_there;
  {
    const std::lock_guard none_ends(all_are_there);
    try {
      while (threads.size() < count) {
        threads.push_back(
            start_quiet_thread([&all_are_there] { const std::lock_guard ends(all_are_there); }));
      }
    } catch (const Error& error) {
      checked = error.info();
    }
  }
  for (std::thread& thread : threads) thread.join();
  return checked;
}

ErrorInfo cannot_start_thread(const std::error_code& why) {
  if (why != std::errc::resource_unavailable_try_again)
    return {ErrorCode::kIo, "cannot start a thread", why.message(), ""};
  if (const auto full = check_process_room(1, process_room()); !full) return full.error();
  return {ErrorCode::kIo, "cannot start a thread", "the limit on processes (ulimit -u) is reached",
          kRaiseProcesses};
}

}  // namespace troupe
