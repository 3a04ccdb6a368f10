/// Descriptors that travel with a message of a Unix socket (SCM_RIGHTS).
#pragma once

#include <sys/socket.h>

#include <span>
#include <vector>

#include "runtime/core/fd.hpp"

namespace troupe {

/// `control`: zeroed, aligned as a cmsghdr, and at least CMSG_SPACE of the numbers; it must outlive the send.
void attach_descriptors(msghdr& message, std::span<char> control, std::span<const int> numbers);
/// Those that came with a received message are `fds`' from here on.
void take_descriptors(msghdr& message, std::vector<UniqueFd>& fds);

}  // namespace troupe
