#include "runtime/core/thread_limit.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <mutex>
#include <string>
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

namespace {

/// The limit on memory that a thread's stack met, by a trial. Empty: it met none.
std::string memory_limit_of_stack() {
  pthread_attr_t defaults;
  std::size_t bytes = std::size_t{8} << 20;
  if (::pthread_getattr_default_np(&defaults) == 0) {
    ::pthread_attr_getstacksize(&defaults, &bytes);
    ::pthread_attr_destroy(&defaults);
  }
  void* const stack = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack != MAP_FAILED) {
    ::munmap(stack, bytes);
    return "";
  }
  const auto is_set = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  const bool has_v = is_set(RLIMIT_AS), has_d = is_set(RLIMIT_DATA);
  if (has_v && has_d) return "ulimit -v or ulimit -d";
  return has_v ? "ulimit -v" : has_d ? "ulimit -d" : "the memory of the machine, or vm.max_map_count,";
}

}  // namespace

ErrorInfo cannot_start_thread(const std::error_code& why) {
  if (why != std::errc::resource_unavailable_try_again)
    return {ErrorCode::kIo, "cannot start a thread", why.message(), ""};
  if (const auto full = check_process_room(1, process_room()); !full) return full.error();
  if (const std::string limit = memory_limit_of_stack(); !limit.empty())
    return {ErrorCode::kIo, "cannot start a thread",
            "there is no memory for its stack: " + limit + " allows no more",
            "raise that, or let each thread have a smaller stack (ulimit -s)"};
  return {ErrorCode::kIo, "cannot start a thread", "the limit on processes (ulimit -u) is reached",
          kRaiseProcesses};
}

}  // namespace troupe
