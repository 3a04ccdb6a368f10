#include "runtime/core/thread_limit.hpp"

#include <sys/resource.h>

#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/quiet_thread.hpp"

namespace troupe {
namespace {

constexpr rlim_t kPlenty = 4096;  ///< nobody who may start more is short of them

}  // namespace

Result<void> check_thread_limit(std::size_t count) {
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
    } catch (const std::system_error& error) {
      checked = cannot_start_thread(error.code());
    }
  }
  for (std::thread& thread : threads) thread.join();
  return checked;
}

ErrorInfo cannot_start_thread(const std::error_code& why) {
  if (why != std::errc::resource_unavailable_try_again)
    return {ErrorCode::kIo, "cannot start a thread", why.message(), ""};
  return {ErrorCode::kIo, "cannot start a thread", "the limit on processes (ulimit -u) is reached",
          "raise it: ulimit -u 4096"};
}

}  // namespace troupe
