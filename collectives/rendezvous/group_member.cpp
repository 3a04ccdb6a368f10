#include "collectives/rendezvous/group_member.hpp"

namespace troupe::collectives {

const std::shared_ptr<ProcessGroup>& GroupMember::process_group() const {
  if (group_ == nullptr) {
    throw BadConfig("an actor has no process group", "none was formed of its group",
                    "call form_process_group on the group that spawn_group gave");
  }
  return group_;
}

std::uint16_t GroupMember::hold_meeting_port() {
  port_ = HeldPort::hold(0).value();
  return port_.port();
}

void GroupMember::join_process_group(const std::string& backend, const std::string& url,
                                     const std::string& key, int rank, int size, Duration timeout,
                                     std::uint64_t data_bytes) {
  group_.reset();
  const HeldPort port = std::exchange(port_, {});  // until rank 0 listens there
  InitOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  options.key = key;
  options.data_bytes = data_bytes;
  options.name = "actors";
  group_ = init_process_group(backend, url, options);
}

}  // namespace troupe::collectives
