#include "runtime/node/death_watch.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/node/dump_request.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxWords = 127;  ///< futex_waitv takes 128, and one says that the list has changed

/// The lock is a robust pthread mutex, which the kernel knows by its first word: the holder's thread id, or
/// FUTEX_OWNER_DIED. It wakes those that wait for the word if FUTEX_WAITERS is set.
pthread_mutex_t* mutex_in(const SharedMemory& memory) {
  return reinterpret_cast<pthread_mutex_t*>(memory.data());
}
std::atomic<std::uint32_t>& word_in(const SharedMemory& memory) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory.data());
}

futex_waitv waiter(const std::atomic<std::uint32_t>& word, std::uint32_t value, bool shared) {
  futex_waitv wait{};
  wait.val = value;
  wait.uaddr = reinterpret_cast<std::uintptr_t>(&word);
  wait.flags = FUTEX_32 | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  return wait;
}

}  // namespace

DeathWatch::DeathWatch(OnDeath on_death)
    : on_death_(std::move(on_death)), thread_(start_quiet_thread([this] { run(); })) {}

DeathWatch::~DeathWatch() {
  stopping_ = true;
  wake();
  thread_.join();
}

Result<SharedMemory> DeathWatch::make_lock() {
  auto memory = SharedMemory::create("troupe:life", bytes_with_dump_request(), true);
  if (!memory) return memory.error();
  pthread_mutexattr_t robust;
  ::pthread_mutexattr_init(&robust);
  ::pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(new (memory->data()) pthread_mutex_t, &robust);
  ::pthread_mutexattr_destroy(&robust);
  return memory;
}

void DeathWatch::add(ProcessId process, SharedMemory lock) {
  {
    const std::lock_guard guard(mutex_);
    const bool taken = word_in(lock) != 0;  // what was never taken is never let go
    if (!taken || entries_.size() >= kMaxWords) return;
    entries_.push_back({process, std::move(lock)});
  }
  wake();
}

void DeathWatch::remove(ProcessId process) {
  {
    const std::lock_guard guard(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) { return entry.process == process; });
  }
  wake();
}

void DeathWatch::wake() {
  ++changes_;
  ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void DeathWatch::run() {
  while (!stopping_) {
    std::vector<futex_waitv> waits{waiter(changes_, changes_, false)};
    std::vector<ProcessId> dead;
    {
      const std::lock_guard guard(mutex_);
      std::erase_if(entries_, [&](const Entry& entry) {
        const std::uint32_t value = word_in(entry.lock).fetch_or(FUTEX_WAITERS) | FUTEX_WAITERS;
        if ((value & FUTEX_TID_MASK) == 0) {
          dead.push_back(entry.process);
          return true;
        }
        waits.push_back(waiter(word_in(entry.lock), value, true));
        return false;
      });
    }
    for (const ProcessId process : dead) on_death_(process);
    if (!dead.empty()) continue;
    // An entry that is removed meanwhile counts as a change, so its memory may go.
    if (::syscall(SYS_futex_waitv, waits.data(), waits.size(), 0, nullptr, 0) >= 0) continue;
    if (errno == EAGAIN || errno == EINTR || errno == EFAULT) continue;  // a word changed, or its memory went
    // Before Linux 5.16 there is no such call, and a container may forbid it.
    log(LogLevel::kDebug,
        "deaths are told by pidfds alone: futex_waitv: " + std::string(std::strerror(errno)));
    return;
  }
}

Result<void> hold_lock(UniqueFd memory) {
  auto mapped = SharedMemory::map(std::move(memory));
  if (!mapped) return mapped.error();
  if (mapped->size() < sizeof(pthread_mutex_t) || ::pthread_mutex_trylock(mutex_in(*mapped)) != 0) {
    return ErrorInfo{ErrorCode::kRefused, "cannot take the lock that tells of this process's death",
                     "somebody else has it, or it is no lock", ""};
  }
  // The kernel finds the lock by this mapping when the thread ends, which may be after static objects do.
  static auto* const held = new std::vector<SharedMemory>;
  held->push_back(*std::move(mapped));
  return {};
}

}  // namespace troupe
