// troupe start: a head and a node, or a node, under a supervisor that starts them again when they die.
#include <sys/signalfd.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/core/escape.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/detach.hpp"
#include "scheduler/head/head.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "scheduler/init/supervisor.hpp"

namespace troupe::cli {
namespace {

constexpr Duration kGoes = std::chrono::seconds(5);
constexpr std::size_t kMostDeparted = 16;

std::string host_name() {
  char name[256] = "node";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string name_of_node(const StartOptions& options) {
  return options.name.empty() ? host_name() : options.name;
}

bool is_any(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

/// SIGINT and SIGTERM as a descriptor.
UniqueFd watch_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw_error(io_error("cannot watch for signals", errno, "raise ulimit -n"));
  return fd;
}

/// The next one that came; 0: none.
int read_signal(int signals) {
  signalfd_siginfo info{};
  return ::read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

/// What this process runs, from its start to its end.
class Machines {
 public:
  Machines(const StartOptions& options, const ClusterFolder& folder)
      : options_(options),
        folder_(folder),
        is_default_folder_(folder.path() ==
                           ClusterFolder::open(ClusterFolder::default_path()).value().path()),
        signals_(watch_signals()) {}
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  ~Machines() {
    if (node_) supervisor_.end({*node_}, kGoes);  // first: the head hears it leave
    if (head_) supervisor_.end({*head_}, kGoes);
  }

  void join(const std::optional<JoinToken>& token) {
    contact_.emplace(folder_.join(parse_endpoint(options_.address).value(), token).value());
  }
  void add_head();
  void add_node();
  /// Until all of it is up. False: a signal came first. Throws when it does not come up.
  bool start() {
    supervisor_.run(signals_.get(), [this] { return supervisor_.all_up(); });
    throw_failure();
    return supervisor_.all_up();
  }
  /// Until a signal comes, or what it runs dies again and again, or its node has drained. A node that joined
  /// drains at SIGTERM; the next signal ends it at once.
  void keep_up() {
    const auto is_over = [this] { return is_drained_ && !head_; };
    supervisor_.run(signals_.get(), is_over);
    const bool drains =
        !head_ && !is_drained_ && !supervisor_.failure() && options_.grace_s > 0 &&
        read_signal(signals_.get()) == SIGTERM &&
        supervisor_.tell(*node_, wire::Drain{options_.grace_s * 1000, "SIGTERM on its machine"});
    if (drains) {
      ends_ = true;
      log(LogLevel::kInfo, "SIGTERM: the node drains within " + std::to_string(options_.grace_s) +
                               " s; another signal ends it at once");
      supervisor_.run(signals_.get(), is_over);
    }
    throw_failure();
  }
  std::string describe() const;

 private:
  Child start_head();
  Child start_node();
  void tell_departed();
  void throw_failure() const {
    if (supervisor_.failure()) throw_error(*supervisor_.failure());
  }

  const StartOptions& options_;
  const ClusterFolder& folder_;
  const bool is_default_folder_;
  UniqueFd signals_;
  Supervisor supervisor_;
  std::optional<std::size_t> head_;
  std::optional<std::size_t> node_;
  std::string head_listens_;  ///< with the port the system chose
  std::string advertised_;
  std::string lost_;  ///< what it begins without: a line each
  bool head_up_ = false;
  std::optional<HeadContact> contact_;
  std::optional<NodeIdentity> member_;  ///< the node that runs
  struct Departed {
    NodeIdentity node;
    std::string how;
  };
  bool ends_ = false;              ///< the node is not started again
  bool is_drained_ = false;        ///< it has left for good
  std::deque<Departed> departed_;  ///< nodes that have died, of which the head was not told yet
};

void Machines::add_head() {
  head_listens_ = to_string(Endpoint{options_.bind, options_.port});
  if (is_any(options_.bind)) {
    // The address of the default route is what others most likely reach: documentation addresses are never
    // nearer.
    const auto facing = address_facing({options_.bind == "::" ? "2001:db8::1" : "192.0.2.1", 9});
    advertised_ = facing ? *facing : host_name();
  }
  Supervisor::Role role;
  role.name = "the head";
  role.start = [this] { return start_head(); };
  role.on_ready = [this](Child& child, const std::string& address) {
    head_listens_ = address;
    Endpoint at = parse_endpoint(address).value();
    if (!advertised_.empty()) at.host = advertised_;
    const auto key = folder_.keys().load_or_generate("head").value().public_key();
    folder_.save_head(at, key).value();
    contact_.emplace(HeadContact{at, key, folder_.own_keys().value()});
    head_up_ = true;
    log(LogLevel::kInfo, "the head listens at " + address + " (process " + std::to_string(child.pid) + ")");
  };
  role.on_death = [this](const std::string&) { head_up_ = false; };
  role.silence = kMostSilence;
  head_ = supervisor_.add(std::move(role));
}

Child Machines::start_head() {
  if (const auto lost = folder_.lost_of_head()) {
    log(LogLevel::kWarning, *lost);
    lost_ += *lost + "\n";
  }
  const auto keys = folder_.keys().load_or_generate("head").value();
  const auto own = folder_.own_keys().value();
  std::vector<UniqueFd> bundle;
  bundle.push_back(hand_over({keys, keys.public_key(), {{own.public_key(), kOwnerName}}}).value());
  auto child = start_child({.role = "head"}).value();
  send_control(child.link, {}, wire::HeadConfig{head_listens_, folder_.path() + "/store", advertised_},
               std::move(bundle));
  return child;
}

void Machines::add_node() {
  Supervisor::Role role;
  role.name = "the node";
  role.start = [this] { return start_node(); };
  role.may_start = [this] { return !options_.head || head_up_; };
  role.on_ready = [](Child& child, const std::string& address) {
    log(LogLevel::kInfo,
        "the node has joined; it listens at " + address + " (process " + std::to_string(child.pid) + ")");
  };
  role.on_message = [this](const wire::Control& message) {
    const auto* leave = std::get_if<wire::Leave>(&message);
    if (leave == nullptr || !leave->is_drained) return;
    is_drained_ = true;
    log(LogLevel::kInfo, "the node has drained and left");
  };
  role.is_over = [this] { return ends_ || is_drained_; };
  role.silence = kMostSilence;
  role.on_death = [this](const std::string& how) {
    if (is_drained_) return;
    is_drained_ = ends_;
    if (!member_) return;  // it did not come so far
    departed_.push_back({*std::exchange(member_, std::nullopt), how});
    if (departed_.size() > kMostDeparted) departed_.pop_front();
    tell_departed();
  };
  node_ = supervisor_.add(std::move(role));
}

/// A head that is away is told before the next node starts. One that refuses the key knows already.
void Machines::tell_departed() {
  while (!departed_.empty() && (head_up_ || !options_.head)) {
    const auto told = troupe::tell_departed(*contact_, departed_.front().node, departed_.front().how);
    if (!told && told.error().code != ErrorCode::kRefused) return;
    departed_.pop_front();
  }
}

Child Machines::start_node() {
  MemberOptions member;
  member.name = name_of_node(options_);
  member.listen = !options_.listen.empty()                  ? options_.listen
                  : options_.head && !is_any(options_.bind) ? options_.bind
                                                            : "";
  member.cpus = options_.cpus < 0 ? usable_cores() : options_.cpus;
  member.gpus = options_.gpus;
  member.memory = options_.other.bytes_or(-1);
  member.other = cluster::other_resources(0, options_.other.amounts(), options_.other.label_map());
  if (!options_.head) member.drain = std::chrono::seconds(options_.grace_s);
  tell_departed();
  Child child = launch_member(folder_, *contact_, member);
  member_ = member.identity;
  return child;
}

std::string Machines::describe() const {
  const std::string at = to_string(contact_->address);
  const std::string folder = is_default_folder_ ? "" : " --folder " + shell_word(folder_.path());
  const std::string program = is_default_folder_ ? "" : "TROUPE_FOLDER=" + shell_word(folder_.path()) + " ";
  const std::string process = std::to_string(::getpid());
  if (!options_.head)
    return "joined the cluster at " + at + " (process " + process + "; troupe stop" + folder + " ends it)\n";
  const std::string lost = options_.detach ? lost_ : "";  // else its log is on the terminal
  std::string text = lost + "head and a node run at " + at + " (process " + process + "; troupe stop" +
                     folder + " ends them)\n" + "keys and state      " + folder_.path() + "\n" +
                     "what runs there     troupe status" + folder + "\n" + "a job here          " + program +
                     "PROGRAM --address " + at + "\n";
  if (is_loopback(contact_->address.host))
    return text + "other machines      cannot reach it: start it with --bind 0.0.0.0 to let them\n";
  return text + "another machine     troupe token" + folder +
         " --output FILE    here: a secret that lets one machine in, within an hour\n" +
         "                    troupe start --address " + at + " --token-file FILE    there\n";
}

/// One node of a name runs from a folder: a second one would be taken for the first, with other settings.
RunLock lock_name(const ClusterFolder& folder, const std::string& name) {
  std::string file;
  for (const char c : name) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
    file += is_plain ? std::string(1, c) : "%" + std::to_string(static_cast<int>(c));
  }
  auto lock = RunLock::take(folder.path() + "/node-" + file + ".lock");
  if (!lock && lock.error().code == ErrorCode::kRefused)
    throw_error({ErrorCode::kRefused, "cannot start a node " + name + " from " + folder.path(),
                 "one of that name runs from there: " + lock.error().why,
                 "choose another --name or --folder, also where that node was drained: its name is free once "
                 "its start process ends, with all that this runs (troupe stop --folder " +
                     shell_word(folder.path()) + ")"});
  return std::move(lock).value();
}

int run(const StartOptions& options, Starter& starter) {
  const auto folder = ClusterFolder::open(options.folder).value();
  auto lock = folder.lock(options.head ? "head" : "node-" + std::to_string(::getpid())).value();
  auto name_lock = lock_name(folder, name_of_node(options));
  std::optional<JoinToken> token;
  if (!options.token_file.empty()) token.emplace(read_token_file(options.token_file).value());
  if (options.detach) {
    starter = Starter::detach(folder.path() + (options.head ? "/head.log" : "/node.log"));
    lock.write_pid().value();
    name_lock.write_pid().value();
    // In the background nobody sees what happens but in this log: who comes, who goes, and why.
    if (std::getenv("TROUPE_LOG") == nullptr) {
      ::setenv("TROUPE_LOG", "info", 1);
      set_log_level(LogLevel::kInfo);
    }
    ::setenv("TROUPE_LOG_TIME", "1", 1);
  }
  set_log_role(options.head ? "start" : "start " + name_of_node(options));
  check_thread_limit(kThreadsOfPart).value();
  const std::string address = folder.path() + "/address";
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(address, ignored);
  Machines machines(options, folder);
  // Submitted programs submit from there, too.
  ::setenv("TROUPE_FOLDER", std::filesystem::absolute(folder.path()).c_str(), 1);
  if (options.head) {
    machines.add_head();
  } else {
    machines.join(token);
  }
  machines.add_node();
  try {
    if (!machines.start()) return 0;
  } catch (...) {
    if (options.head && !was_there) std::filesystem::remove(address, ignored);  // no head is there
    throw;
  }
  starter.ready(machines.describe());
  machines.keep_up();
  return 0;
}

}  // namespace

int start(StartOptions options) {
  if (options.folder.empty()) options.folder = ClusterFolder::default_path();
  Starter starter;
  try {
    return run(options, starter);
  } catch (const std::exception& error) {
    starter.failed(error.what());
    return 1;
  }
}

}  // namespace troupe::cli
