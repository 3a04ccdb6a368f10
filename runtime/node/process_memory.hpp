/// How much memory processes have, as /proc tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace troupe::node {

/// Bytes of anonymous memory, in memory and swapped out, of a process: neither files nor shared memory, such
/// as objects. 0: it is gone. Some 10 us: the kernel keeps the sums.
std::int64_t anonymous_bytes(pid_t process);
/// The same of all processes of each of these process groups. Looks at every process of the machine. Pages
/// that processes share after a fork count for each of them.
std::map<pid_t, std::int64_t> anonymous_bytes_of_groups(const std::vector<pid_t>& groups);
/// Bytes that this machine has swapped out.
std::int64_t swapped_bytes();

}  // namespace troupe::node
