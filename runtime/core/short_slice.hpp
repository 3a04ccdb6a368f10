/// A thread that others wait for, and that does little each time it wakes.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe {

/// The calling thread runs for a short while at a time, and in return soon after it wakes: Linux from 6.12 on
/// lets it go before threads with longer slices. Without it, one that wakes on a busy core waits until what
/// runs there has had its slice, some milliseconds. It gets no more of the CPU. Threads that it starts
/// inherit it. On other kernels, and under another policy than the usual one, nothing changes.
inline void ask_for_short_slices() {
  struct {  // struct sched_attr, which glibc does not have
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } thread{};
  if (::syscall(SYS_sched_getattr, 0, &thread, sizeof thread, 0) != 0 || thread.policy != 0) return;
  thread.runtime_ns = 100'000;  // the least that the kernel takes
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &thread, 0));
}

}  // namespace troupe
