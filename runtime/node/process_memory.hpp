/// How much memory processes have, as /proc tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace troupe::node {

/// Bytes of anonymous memory, in memory and swapped out, of a process: neither files nor shared memory, such
/// as objects. Pages that it shares after a fork count in full. 0: it is gone. Some 10 us: the kernel keeps
/// the sums.
std::int64_t anonymous_bytes(pid_t process);
/// The same, of shared pages its share: of one that two processes have, half. Some milliseconds a GiB, and
/// waits while the process holds the lock of its memory. Where it cannot be read: anonymous_bytes.
std::int64_t share_of_anonymous_bytes(pid_t process);
/// The processes of each of these process groups. Looks at every process of the machine.
std::map<pid_t, std::vector<pid_t>> processes_of_groups(const std::vector<pid_t>& groups);
/// Bytes that this machine has swapped out.
std::int64_t swapped_bytes();

}  // namespace troupe::node
