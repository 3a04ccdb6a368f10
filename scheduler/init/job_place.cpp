#include "scheduler/init/job_place.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/link/socket/named_socket.hpp"
#include "runtime/node/job_programs.hpp"
#include "runtime/node/package.hpp"

namespace troupe {

std::string socket_of_this_job() {
  const char* name = std::getenv(node::kNodeSocketVariable);
  return name == nullptr ? "" : name;
}

SocketLink link_of_this_job(const std::string& socket) {
  SocketLink link = connect_by_name(socket).value();
  std::vector<UniqueFd> fds;
  fds.emplace_back(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  if (!fds[0]) throw_error(io_error("cannot read this program's own executable", errno, "is /proc mounted?"));
  wire::DriverHello hello;
  const char* libraries = std::getenv(node::kJobLibrariesVariable);
  hello.package = own_package(libraries == nullptr ? "" : libraries).value();
  if (!send_control(link, {}, hello, std::move(fds))) {
    throw_error({ErrorCode::kUnavailable, "cannot join the cluster through the node that runs this job",
                 link.why_closed(), "the job has ended: submit it again"});
  }
  return link;
}

}  // namespace troupe
