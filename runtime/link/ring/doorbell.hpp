/// How a process is woken when one of its rings gets something: one word in shared memory a process.
///
/// The owner arms the bell before it sleeps and looks at its rings once more; a sender rings only when the
/// bell is armed, so a busy receiver costs its senders one load of a shared cache line and no system call.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>

#include "runtime/core/fd.hpp"
#include "runtime/core/futex.hpp"

namespace troupe {

/// Two threads of the owner may sleep on it: the one that always receives, and one that waits for an answer
/// and receives meanwhile. A bell is armed for one of them, and a ring wakes that one.
enum class Sleeper : std::uint32_t { kReceiver = 1, kWaiter = 2 };

/// Thread-safe. The memory is mapped by the owner and by every peer that has a ring to it.
class Doorbell {
 public:
  static Result<Doorbell> create();
  static Result<Doorbell> map(UniqueFd fd);

  /// Owner: what others map it by; once. The bell goes on without it.
  UniqueFd take_fd() { return std::move(fd_); }

  /// Owner: from now on senders wake `sleeper`. Look at the rings once more before sleeping.
  void arm(Sleeper sleeper) {
    words().armed.store(static_cast<std::uint32_t>(sleeper), std::memory_order_seq_cst);
  }
  void disarm() { words().armed.store(0, std::memory_order_relaxed); }
  /// Owner: what `sleep` compares with; read it before arming.
  std::uint32_t count() const { return words().count.load(std::memory_order_acquire); }
  /// Owner: sleeps until rung after `count` was read, or until `timeout` is over.
  void sleep(Sleeper sleeper, std::uint32_t count, Duration timeout) {
    futex_wait(words().count, count, timeout, static_cast<std::uint32_t>(sleeper));
  }
  /// Owner: wakes every sleeper, armed or not.
  void wake_all() {
    words().count.fetch_add(1, std::memory_order_release);
    futex_wake(words().count, INT_MAX);
  }

  /// Sender: wakes the owner if it may be asleep. Call after the message is visible.
  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (words().armed.load(std::memory_order_relaxed) == 0) return;
    const std::uint32_t sleeper = words().armed.exchange(0, std::memory_order_acq_rel);
    if (sleeper == 0) return;
    words().count.fetch_add(1, std::memory_order_release);
    futex_wake(words().count, 1, sleeper);
  }

 private:
  struct Words {
    alignas(64) std::atomic<std::uint32_t> armed;
    std::atomic<std::uint32_t> count;
  };
  struct Unmap {
    void operator()(Words* words) const;
  };
  static Result<Doorbell> on(const SharedMemory& memory);
  Words& words() const { return *words_; }

  UniqueFd fd_;
  std::unique_ptr<Words, Unmap> words_;  ///< a mapping of its own, which needs no descriptor
};

}  // namespace troupe
