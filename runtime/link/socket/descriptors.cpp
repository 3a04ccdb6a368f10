#include "runtime/link/socket/descriptors.hpp"

#include <cstring>

namespace troupe {

void attach_descriptors(msghdr& message, std::span<char> control, std::span<const int> numbers) {
  if (numbers.empty()) return;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(numbers.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(numbers.size_bytes());
  std::memcpy(CMSG_DATA(header), numbers.data(), numbers.size_bytes());
}

void take_descriptors(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof received);
      fds.emplace_back(received);
    }
  }
}

}  // namespace troupe
