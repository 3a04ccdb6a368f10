#include "scheduler/init/process_roles.hpp"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "runtime/core/control_groups.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/process_title.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/host/process.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/link/zmq/zmq_transport.hpp"
#include "runtime/node/child.hpp"
#include "runtime/node/death_watch.hpp"
#include "runtime/node/dump_request.hpp"
#include "runtime/node/fork_server.hpp"
#include "runtime/node/gpus.hpp"
#include "runtime/node/memory_watch.hpp"
#include "runtime/node/node.hpp"
#include "runtime/node/program.hpp"
#include "runtime/node/pulse.hpp"
#include "runtime/wire/package_name.hpp"
#include "scheduler/head/head.hpp"
#include "scheduler/init/temporary_folder.hpp"
#include "scheduler/launch/run_spawned.hpp"
#include "scheduler/store/sqlite_storage.hpp"

namespace troupe {
namespace {

constexpr Duration kParentConfigures = std::chrono::seconds(30);
constexpr int kFolderLooks = 100;
constexpr int kFolderLook_us = 10'000;

[[noreturn]] void leave_with(SocketLink& parent, const ErrorInfo& error) {
  send_control(parent, {}, wire::NotReady{error});
  ::_exit(1);
}

/// SIGTERM as an event of the loop: whoever started us may be dead.
///
/// A handler and not a blocked signal read from a descriptor: libraries of the user's program start threads
/// before main, in which nobody blocked anything, and the kernel would end the process through one of them.
class TerminationSignal {
 public:
  TerminationSignal() : told_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    tell_fd = told_.get();
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      sender = info->si_pid;
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(tell_fd, &one, sizeof one);
    };
    ::sigaction(SIGTERM, &action, nullptr);
  }
  /// `obey` says whether the signal was for us; after that no other one is looked at.
  void watch(EventLoop& loop, std::function<bool()> obey) {
    loop.watch(told_.get(), [this, &loop, obey = std::move(obey)](bool, bool, bool) {
      std::uint64_t signals = 0;
      [[maybe_unused]] const auto got = ::read(told_.get(), &signals, sizeof signals);
      if (obey()) loop.forget(told_.get());
    });
  }

  /// Whether it came from somebody else than the program that started us, which lives: such a signal is to
  /// all processes at once (of a systemd unit, a Slurm step, a container), and the program, which has it,
  /// too, ends us once it has ended in order.
  bool is_for(pid_t program) const { return ::getppid() == program && sender != program; }

  /// Whether `launcher` is dead or dying; `is_lost`: its end of our link closed without a word. The kernel
  /// signals us in its name when a thread that we are a child of ends: of a process with several that may be
  /// before its descriptors are closed, or after, a while before it is gone, and once for each of them.
  bool tells_end_of(pid_t launcher, bool is_lost) const {
    if (::getppid() != launcher) return true;
    if (sender != launcher && !is_lost) return false;
    Child process;
    process.pid = launcher;
    process.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0)));
    return !process.pidfd || how_it_ends(process) || wait_ended(process, kDies);
  }

 private:
  /// What the last thread of a process may take, where the kernel does not tell that the process ends.
  static constexpr Duration kDies = std::chrono::seconds(1);
  static inline std::atomic<pid_t> sender{0};
  static inline int tell_fd = -1;  ///< what the handler, which has no argument, writes to
  UniqueFd told_;
};

struct Configured {
  wire::Control config;
  KeyBundle keys;
};

Configured configure(SocketLink& parent) {
  auto received = receive_control(parent, kParentConfigures);
  if (!received) leave_with(parent, received.error());
  if (received->fds.size() != 1)
    leave_with(parent, {ErrorCode::kRefused, "no keys came with the configuration", "", ""});
  auto keys = take_over(std::move(received->fds.front()));
  if (!keys) leave_with(parent, keys.error());
  return {std::move(received->message), *std::move(keys)};
}

/// The launcher is trusted: it brings a node's key as it brought the first ones.
void answer(SocketLink& parent, const wire::AdmitAsk& ask, Authorizer& authorizer) {
  wire::Answer answer{.request = ask.request};
  const auto key = parse_public_key(ask.public_key);
  if (key) {
    authorizer.allow(*key, to_hex(ask.node.value));
    answer.ok = true;
  } else {
    answer.error = key.error();
  }
  send_control(parent, {}, answer);
}

/// Until the launcher or a signal ends it. Errors: why the head did not come up. `launcher_left`: it closed
/// the link.
Result<void> serve_as_head(SocketLink& parent, const wire::HeadConfig& config, const KeyBundle& keys,
                           TerminationSignal& termination, bool& launcher_left) {
  auto address = parse_endpoint(config.address);
  if (!address) return address.error();
  auto storage = open_sqlite_storage(config.folder);
  if (!storage) return storage.error();
  MonotonicClock clock;
  auto authorizer = std::make_shared<Authorizer>(clock);
  for (const auto& peer : keys.allowed) authorizer->allow(peer.key, peer.name);
  EventLoop loop;
  const auto transport = make_zmq_transport(clock);
  Head head(loop, *transport,
            {*address,
             config.advertised,
             keys.own,
             authorizer,
             *std::move(storage),
             {.ends_with_program = config.launcher != 0},
             {},
             config.folder + "/packages"});
  if (auto started = head.start(); !started) return started;
  send_control(parent, {}, wire::Ready{head.address()});
  loop.watch(parent.fd(), [&](bool, bool, bool) {
    Message received;
    for (;;) {
      const auto got = parent.receive(received);
      if (got == SocketLink::Got::kNothing) break;
      if (got == SocketLink::Got::kClosed) {
        launcher_left = true;
        loop.forget(parent.fd());
        return loop.stop();
      }
      auto message = wire::decode_control(received.header, received.body);
      if (!message) continue;
      if (auto* event = std::get_if<wire::ToHead>(&*message)) head.on(event->event);
      if (auto* ask = std::get_if<wire::AdmitAsk>(&*message)) answer(parent, *ask, *authorizer);
      if (std::holds_alternative<wire::Leave>(*message)) loop.stop();
    }
    parent.flush();
  });
  termination.watch(loop, [&] {
    if (config.launcher != 0 && termination.is_for(config.launcher)) return false;
    loop.stop();
    return true;
  });
  loop.every(kPulse, [&parent] { send_pulse(parent); });
  loop.run();
  return {};
}

int run_head(SocketLink parent) {
  ::prctl(PR_SET_NAME, "troupe-head");
  name_process("head");
  set_log_role("head");
  TerminationSignal termination;
  const auto configured = configure(parent);
  const auto* config = std::get_if<wire::HeadConfig>(&configured.config);
  if (config == nullptr)
    leave_with(parent, {ErrorCode::kRefused, "a head was given another role's configuration", "", ""});
  bool launcher_left = false;
  Result<void> served = check_thread_limit(kThreadsOfPart);
  try {
    if (served) served = serve_as_head(parent, *config, configured.keys, termination, launcher_left);
  } catch (const Error& error) {
    served = error.info();
  }
  if (!served) send_control(parent, {}, wire::NotReady{served.error()});
  // A temporary folder is the launcher's to remove: it starts this head again if that was only told to end.
  // When the launcher was killed, the folder is ours.
  const bool is_ours =
      config->launcher != 0 && (launcher_left || termination.tells_end_of(config->launcher, false));
  if (is_ours) remove_store(config->folder);
  return served ? 0 : 1;
}

/// What a node offers beside CPUs and GPUs.
cluster::OtherResources other_of_node(const wire::NodeConfig& config) {
  if (config.gateway) return {};
  cluster::OtherResources other = config.other;
  const std::int64_t memory = node::memory_to_offer(config.memory, usable_memory(), config.gpu_parts);
  if (memory > 0) add_amounts(other.amounts, {{std::string(cluster::kMemory), memory}}, 1);
  return other;
}

int run_node(SocketLink parent, std::optional<ForkServer> copies) {
  ::prctl(PR_SET_NAME, "troupe-node");
  const pid_t starter = ::getppid();
  TerminationSignal termination;
  auto configured = configure(parent);
  const auto* config = std::get_if<wire::NodeConfig>(&configured.config);
  if (config == nullptr)
    leave_with(parent, {ErrorCode::kRefused, "a node was given another role's configuration", "", ""});
  set_log_role("node " + config->name);
  name_process((config->gateway ? "way in of " : "node ") + config->name);
  if (const auto enough = check_thread_limit(kThreadsOfPart); !enough) leave_with(parent, enough.error());
  EventLoop loop;
  MonotonicClock clock;
  const auto transport = make_zmq_transport(clock);
  auto gpus = gpus_of_node(*config);
  if (!gpus) leave_with(parent, gpus.error());
  std::optional<Node> place;
  Node& node =
      place.emplace(loop, *transport,
                    Node::Options{*config, configured.keys.own, configured.keys.head, std::move(parent),
                                  *std::move(gpus), other_of_node(*config),
                                  [&clock] { return make_zmq_transport(clock); }, std::move(copies)});
  // The launcher hears of this node once it is a member: what a driver asks next finds it there.
  const auto not_up = [&node](const ErrorInfo& why) {
    node.tell_parent(wire::NotReady{why});
    ::_exit(1);
  };
  const bool hosts_driver = config->hosts_driver;
  const auto started = node.start([&](const Result<void>& joined) {
    if (!joined) not_up(joined.error());
    node.tell_parent(wire::Ready{node.address()});
    node.serve_parent();
    // A driver asks its own node for signs of life.
    if (!hosts_driver) loop.every(kPulse, [&node] { node.pulse(); });
  });
  if (!started) not_up(started.error());
  const bool is_of_program = config->hosts_driver || config->launcher != 0;
  termination.watch(loop, [&] {
    if (is_of_program && termination.is_for(starter)) return false;
    if (config->drain_ms == 0 || termination.tells_end_of(starter, false)) {
      node.leave("it was told to end");
    } else {
      node.drain(std::chrono::milliseconds(config->drain_ms), "SIGTERM on its machine");
    }
    return true;
  });
  loop.run();
  if (node.drains()) node.tell_parent(wire::Leave{"it has drained", true});
  if (!config->temporary_folder.empty() &&
      termination.tells_end_of(config->launcher, node.has_lost_parent())) {
    // A head that is stopped does not end with the launcher; nor does what tasks left in sessions of their
    // own.
    take_off_mark_of_cluster();
    node::kill_marked({mark_of_cluster(config->temporary_folder)});
    // The head may have begun to, and was killed.
    for (int i = 0; i < kFolderLooks && std::filesystem::exists(config->temporary_folder); ++i) {
      remove_unused_store(config->temporary_folder);
      ::usleep(kFolderLook_us);
    }
  }
  const bool may_hang = node.was_cut_off();
  place.reset();             // last words
  if (may_hang) ::_exit(0);  // the transport may stand on a thread that never ends
  return 0;
}

/// SIGTERM to all processes of a cluster is for its program, or its start process; a worker is ended by its
/// node. A handler and not SIG_IGN, which programs that an actor executes would inherit; those that it forks
/// end as they would.
void leave_termination_to_node() {
  static const pid_t worker = ::getpid();
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int number) {
    if (::getpid() == worker) return;
    ::signal(number, SIG_DFL);
    ::raise(number);
  };
  ::sigaction(SIGTERM, &action, nullptr);
}

int run_worker(SocketLink link) {
  leave_termination_to_node();
  auto received = receive_control(link, kParentConfigures);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr) {
    log(LogLevel::kError, "a worker got no configuration from its node");
    return 1;
  }
  set_log_role(config->label);
  ::prctl(PR_SET_NAME, config->label.substr(0, 15).c_str());
  name_process(config->label);
  if (received->fds.size() == 1) {
    const auto served = serve_dumps(received->fds.front().duplicate().value());
    if (!served) log(LogLevel::kError, served.error().message());
  }
  // This thread lives as long as the process.
  const auto held =
      received->fds.size() == 1
          ? hold_lock(std::move(received->fds.front()))
          : Result<void>(ErrorInfo{ErrorCode::kRefused, "no lock came with the configuration", "", ""});
  if (!held) log(LogLevel::kError, held.error().message());
  // Paths from the program's folder on are good in its workers, too, where that folder is.
  if (const std::string folder = wire::folder_in(config->package);
      !folder.empty() && ::chdir(folder.c_str()) != 0)
    log(LogLevel::kInfo, "the program's folder " + folder + " is not here: this worker runs in its node's");
  ::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a line a person prints is seen when it is printed
  Process process({config->node, config->process, config->job, 0, config->label, config->host,
                   config->package, config->driver},
                  std::move(link), {[] { ::_exit(0); }, [](const wire::Output&) {}});
  process.run_until_told_to_leave();
  return 0;
}

/// Out of the environment, which children inherit.
std::string take_role() {
  const char* variable = std::getenv(kRoleVariable);
  std::string role = variable == nullptr ? "" : variable;
  ::unsetenv(kRoleVariable);
  return role;
}

}  // namespace

void become_role_if_asked() {
  hold_closed_streams();
  if (std::getenv(kRoleVariable) == nullptr) {
    // Once, and not in every process of the cluster.
    static const std::string wrong = wrong_log_variable();
    static const bool told = wrong.empty() || (log(LogLevel::kWarning, wrong), true);
    (void)told;
    return;
  }
  std::string role = take_role();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // ulimit -f: the write fails, and says so
  SocketLink link{UniqueFd(kLinkFd)};
  if (!link.peer_is_us()) {
    log(LogLevel::kError, "refused to become a " + role + ": no link of our own user on descriptor 3");
    ::_exit(1);
  }
  if (role == kForkServerRole) {
    link = serve_forks();
    role = take_role();
  }
  std::optional<ForkServer> copies;
  if (role == "node") {
    auto begun = begin_fork_server();
    copies = std::move(begun.server);
    if (begun.link) {
      link = *std::move(begun.link);
      role = take_role();
    }
  }
  int code = 1;
  try {
    if (role == "head") {
      code = run_head(std::move(link));
    } else if (role == "node") {
      code = run_node(std::move(link), std::move(copies));
    } else if (role == "worker") {
      code = run_worker(std::move(link));
    } else if (role == "spawned") {
      code = launch::run_spawned(std::move(link));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
  std::exit(code);
}

}  // namespace troupe
