#include "scheduler/init/process_roles.hpp"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/host/process.hpp"
#include "runtime/core/log.hpp"
#include "runtime/node/child.hpp"
#include "runtime/node/death_watch.hpp"
#include "scheduler/head/head.hpp"
#include "scheduler/store/sqlite_storage.hpp"
#include "runtime/node/node.hpp"
#include "runtime/link/zmq/zmq_transport.hpp"
#include "runtime/link/socket/link_codec.hpp"

namespace troupe {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);

[[noreturn]] void leave_with(transport::LocalLink& parent, const ErrorInfo& error) {
  wire::send_control(parent, {}, wire::NotReady{error});
  ::_exit(1);
}

/// SIGTERM ends the loop as if the parent had gone: whoever started us may be dead.
///
/// A handler and not a blocked signal read from a descriptor: libraries of the user's program start threads
/// before main, in which nobody blocked anything, and the kernel would end the process through one of them.
class TerminationSignal {
 public:
  TerminationSignal() : told_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    tell_fd = told_.get();
    struct sigaction action {};
    action.sa_handler = [](int) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(tell_fd, &one, sizeof one);
    };
    ::sigaction(SIGTERM, &action, nullptr);
  }
  void watch(EventLoop& loop, std::function<void()> end) {
    loop.watch(told_.get(), [this, &loop, end = std::move(end)](bool, bool, bool) {
      loop.forget(told_.get());
      end();
    });
  }

 private:
  static inline int tell_fd = -1;  ///< what the handler, which has no argument, writes to
  UniqueFd told_;
};

struct Configured {
  wire::Control config;
  KeyBundle keys;
};

Configured configure(transport::LocalLink& parent) {
  auto received = wire::receive_control(parent, kConfigured);
  if (!received) leave_with(parent, received.error());
  if (received->fds.size() != 1)
    leave_with(parent, {ErrorCode::kRefused, "no keys came with the configuration", "", ""});
  auto keys = take_over(std::move(received->fds.front()));
  if (!keys) leave_with(parent, keys.error());
  return {std::move(received->message), *std::move(keys)};
}

int run_head(transport::LocalLink parent, const cluster::PlacementPolicy& placement) {
  ::prctl(PR_SET_NAME, "troupe-head");
  set_log_role("head");
  TerminationSignal termination;
  auto configured = configure(parent);
  const auto* config = std::get_if<wire::HeadConfig>(&configured.config);
  if (config == nullptr)
    leave_with(parent, {ErrorCode::kRefused, "a head was given another role's configuration", "", ""});
  auto address = parse_endpoint(config->address);
  if (!address) leave_with(parent, address.error());
  auto storage = open_sqlite_storage(config->folder);
  if (!storage) leave_with(parent, storage.error());
  MonotonicClock clock;
  auto authorizer = std::make_shared<Authorizer>(clock);
  for (const auto& peer : configured.keys.allowed) authorizer->allow(peer.key, peer.name);
  EventLoop loop;
  const auto transport = make_zmq_transport(clock);
  Head head(loop, *transport,
            {*address, config->advertised, configured.keys.own, authorizer, *std::move(storage), placement});
  if (auto started = head.start(); !started) leave_with(parent, started.error());
  wire::send_control(parent, {}, wire::Ready{head.address()});
  bool orphaned = false;
  loop.watch(parent.fd(), [&](bool, bool, bool) {
    transport::Packet packet;
    if (parent.receive(packet, false) == transport::LinkStatus::kClosed) {
      orphaned = true;
      loop.forget(parent.fd());
      return loop.stop();
    }
    const auto header = wire::decode_header(packet.bytes);
    if (!header) return;
    auto message = wire::decode_control(*header, wire::ByteView(packet.bytes).subspan(wire::kHeaderBytes));
    if (!message) return;
    if (auto* event = std::get_if<wire::ToHead>(&*message)) head.on(event->event);
    if (std::get_if<wire::Leave>(&*message) != nullptr) loop.stop();
  });
  termination.watch(loop, [&] { orphaned = true, loop.stop(); });
  loop.run();
  // The folder of an embedded cluster is its launcher's to remove; when that was killed, it is ours.
  std::error_code ignored;
  if (orphaned && config->temporary) std::filesystem::remove_all(config->folder, ignored);
  return 0;
}

int run_node(transport::LocalLink parent) {
  ::prctl(PR_SET_NAME, "troupe-node");
  TerminationSignal termination;
  auto configured = configure(parent);
  const auto* config = std::get_if<wire::NodeConfig>(&configured.config);
  if (config == nullptr)
    leave_with(parent, {ErrorCode::kRefused, "a node was given another role's configuration", "", ""});
  set_log_role("node " + config->name);
  EventLoop loop;
  MonotonicClock clock;
  const auto transport = make_zmq_transport(clock);
  auto parent_copy = parent.socket().duplicate();
  if (!parent_copy) leave_with(parent, parent_copy.error());
  Node node(
      loop, *transport,
      {*config, configured.keys.own, configured.keys.head, transport::LocalLink(*std::move(parent_copy))});
  // The launcher hears of this node once it is a member: what a driver asks next finds it there.
  const auto started = node.start([&](const Result<void>& joined) {
    if (!joined) leave_with(parent, joined.error());
    wire::send_control(parent, {}, wire::Ready{node.address()});
    parent.socket().reset();  // the node has the other descriptor
    node.serve_parent();
  });
  if (!started) leave_with(parent, started.error());
  termination.watch(loop, [&] { node.leave("its launcher is gone"); });
  loop.run();
  return 0;
}

int run_worker(transport::LocalLink link) {
  auto received = wire::receive_control(link, kConfigured);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr) {
    log(LogLevel::kError, "a worker got no configuration from its node");
    return 1;
  }
  set_log_role(config->label);
  ::prctl(PR_SET_NAME, config->label.substr(0, 15).c_str());
  // This thread lives as long as the process.
  const auto held =
      received->fds.size() == 1
          ? hold_lock(std::move(received->fds.front()))
          : Result<void>(ErrorInfo{ErrorCode::kRefused, "no lock came with the configuration", "", ""});
  if (!held) log(LogLevel::kError, held.error().message());
  ::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a line a person prints is seen when it is printed
  const Process::Config mine{config->node,  config->process, config->job,    0,
                             config->label, config->host,    config->package};
  Process process(
      mine, std::move(link), [] { ::_exit(0); }, [](const wire::Output&) {});
  process.run_until_told_to_leave();
  return 0;
}

}  // namespace

void become_role_if_asked(const cluster::PlacementPolicy& placement) {
  const char* variable = std::getenv(kRoleVariable);
  if (variable == nullptr) return;
  const std::string role = variable;
  ::unsetenv(kRoleVariable);
  ::signal(SIGPIPE, SIG_IGN);
  transport::LocalLink link{UniqueFd(kLinkFd)};
  if (!link.peer_is_us()) {
    log(LogLevel::kError, "refused to become a " + role + ": no link of our own user on descriptor 3");
    ::_exit(1);
  }
  int code = 1;
  try {
    if (role == "head") {
      code = run_head(std::move(link), placement);
    } else if (role == "node") {
      code = run_node(std::move(link));
    } else if (role == "worker") {
      code = run_worker(std::move(link));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  std::exit(code);
}

}  // namespace troupe
