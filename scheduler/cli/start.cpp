// troupe start: a head and a node, or a node, under a supervisor that starts them again when they die.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <thread>

#include "runtime/core/log.hpp"
#include "scheduler/head/head.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "runtime/link/socket/link_codec.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/detach.hpp"

namespace troupe::cli {
namespace {

constexpr Duration kGoes = std::chrono::seconds(5);
constexpr Duration kSettled = std::chrono::seconds(10);  ///< who lived this long did not die of its start
constexpr int kMostDeaths = 5;

std::string host_name() {
  char name[256] = "node";
  ::gethostname(name, sizeof name - 1);
  return name;
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

/// What this process runs, from its start to its end.
class Supervisor {
 public:
  Supervisor(const StartOptions& options, const ClusterFolder& folder)
      : options_(options), folder_(folder), signals_(watch_signals()) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor() {
    if (node_) end(*node_);
    if (head_) {
      wire::send_control(head_->link, {}, wire::Leave{"its owner stops it"});
      end(*head_);
    }
  }

  void start_head();
  void start_node();
  void join(const std::optional<JoinToken>& token) {
    contact_.emplace(folder_.join(parse_endpoint(options_.address).value(), token).value());
  }
  /// Until a signal comes, or what it runs dies again and again.
  int run();
  std::string describe() const;

 private:
  void end(Child& child);
  void head_died();
  void node_died();
  void count_death(const std::string& who, Instant since);

  const StartOptions& options_;
  const ClusterFolder& folder_;
  UniqueFd signals_;
  MonotonicClock clock_;
  std::optional<Child> head_;
  std::optional<Child> node_;
  std::string head_listens_;  ///< with the port the system chose
  std::string advertised_;
  std::optional<HeadContact> contact_;
  Instant head_since_{};
  Instant node_since_{};
  int deaths_ = 0;
};

void Supervisor::start_head() {
  const auto keys = folder_.keys().load_or_generate("head").value();
  const auto own = folder_.own_keys().value();
  if (head_listens_.empty()) {
    head_listens_ = to_string(Endpoint{options_.bind, options_.port});
    if (is_any(options_.bind)) {
      // The address of the default route is what others most likely reach: documentation addresses are never
      // nearer.
      const auto facing = address_facing({options_.bind == "::" ? "2001:db8::1" : "192.0.2.1", 9});
      advertised_ = facing ? *facing : host_name();
    }
  }
  auto bundle = hand_over({keys, keys.public_key(), {{own.public_key(), kOwnerName}}}).value();
  auto child = start_child({.role = "head"}).value();
  const int fd = bundle.get();
  wire::send_control(child.link, {},
                     wire::HeadConfig{head_listens_, folder_.path() + "/store", advertised_, false},
                     std::span(&fd, 1));
  head_listens_ = wait_until_ready(child, "head");
  head_.emplace(std::move(child));
  head_since_ = clock_.now();
  Endpoint at = parse_endpoint(head_listens_).value();
  if (!advertised_.empty()) at.host = advertised_;
  folder_.save_head(at, keys.public_key()).value();
  contact_.emplace(HeadContact{at, keys.public_key(), own});
}

void Supervisor::start_node() {
  MemberOptions member;
  member.name = options_.name.empty() ? host_name() : options_.name;
  member.listen = !options_.listen.empty()                  ? options_.listen
                  : options_.head && !is_any(options_.bind) ? options_.bind
                                                            : "";
  member.cpus = options_.cpus < 0 ? usable_cores() : options_.cpus;
  node_.emplace(start_member(folder_, *contact_, member));
  node_since_ = clock_.now();
}

int Supervisor::run() {
  for (;;) {
    pollfd waits[] = {{signals_.get(), POLLIN, 0},
                      {head_ ? head_->pidfd.get() : -1, POLLIN, 0},
                      {node_->pidfd.get(), POLLIN, 0}};
    if (::poll(waits, std::size(waits), -1) < 0) continue;
    if (waits[0].revents != 0) return 0;
    if (waits[1].revents != 0) head_died();
    if (waits[2].revents != 0) node_died();
  }
}

void Supervisor::head_died() {
  log(LogLevel::kWarning, "the head died (" + reap(*head_) + "); it is started again from its store");
  head_.reset();
  count_death("head", head_since_);
  start_head();
}

void Supervisor::node_died() {
  const std::string how = reap(*node_);
  node_.reset();
  log(LogLevel::kWarning, "the node died (" + how + "); a new one takes its place");
  count_death("node", node_since_);
  start_node();
}

void Supervisor::count_death(const std::string& who, Instant since) {
  deaths_ = clock_.now() - since < kSettled ? deaths_ + 1 : 1;
  if (deaths_ < kMostDeaths) return;
  throw_error({ErrorCode::kUnavailable, "the " + who + " does not stay up",
               "it died " + std::to_string(deaths_) + " times in a row", "look at the lines above"});
}

void Supervisor::end(Child& child) {
  child.link = {};  // it leaves when its launcher is gone
  if (!wait_ended(child, kGoes)) signal_child(child, SIGKILL);
  reap(child);
}

std::string Supervisor::describe() const {
  const std::string at = to_string(contact_->address);
  const std::string private_folder =
      options_.folder == ClusterFolder::default_path() ? "" : " --folder " + options_.folder;
  if (!options_.head)
    return "joined the cluster at " + at + " (process " + std::to_string(::getpid()) + "; troupe stop" +
           private_folder + " ends it)\n";
  std::string text = "head and a node run at " + at + " (process " + std::to_string(::getpid()) +
                     "; troupe stop" + private_folder + " ends them)\n" + "keys and state      " +
                     folder_.path() + "\n" + "a job here          PROGRAM --address " + at + "\n";
  if (is_loopback(contact_->address.host))
    return text + "other machines      cannot reach it: start it with --bind 0.0.0.0 to let them\n";
  return text + "another machine     troupe start --address " + at + " --token-file -\n" +
         "                    and paste what `troupe token" + private_folder +
         "` prints here: it lets one machine in, within an hour\n";
}

int run(const StartOptions& options, Starter& starter) {
  const auto folder = ClusterFolder::open(options.folder).value();
  auto lock = folder.lock(options.head ? "head" : "node-" + std::to_string(::getpid())).value();
  std::optional<JoinToken> token;
  if (!options.token_file.empty()) token.emplace(read_token_file(options.token_file).value());
  if (options.detach) {
    starter = Starter::detach(folder.path() + (options.head ? "/head.log" : "/node.log"));
    lock.write_pid().value();
  }
  set_log_role(options.head ? "start" : "start " + options.name);
  Supervisor supervisor(options, folder);
  if (options.head) {
    supervisor.start_head();
  } else {
    supervisor.join(token);
  }
  supervisor.start_node();
  starter.ready(supervisor.describe());
  return supervisor.run();
}

}  // namespace

int start(StartOptions options) {
  if (options.folder.empty()) options.folder = ClusterFolder::default_path();
  Starter starter;
  try {
    return run(options, starter);
  } catch (const std::exception& error) {
    starter.failed(std::string("troupe: ") + error.what() + "\n");
    return 1;
  }
}

}  // namespace troupe::cli
