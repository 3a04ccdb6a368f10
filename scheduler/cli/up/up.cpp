#include "scheduler/cli/up/up.hpp"

#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/control_groups.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/wait_readable.hpp"
#include "runtime/node/memory_watch.hpp"
#include "runtime/node/program.hpp"
#include "runtime/security/secret.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/up/meeting.hpp"
#include "scheduler/cli/up/place.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/join_cluster.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

constexpr Duration kLook = std::chrono::milliseconds(200);
constexpr Duration kBeats = std::chrono::seconds(2);
constexpr Duration kAsks = std::chrono::seconds(4);
constexpr Duration kGoes = std::chrono::seconds(20);
constexpr std::uint32_t kTokenLives_s = 600;
constexpr int kSignalled = 128;

constexpr const char* kFooter =
    "Every host runs the same command; the launcher says which is the first. The first one starts a head and "
    "a node,\n"
    "and, once --min-nodes are there, the program as a job of that cluster: its output is this command's, "
    "and so is its\n"
    "exit code. The others start a node. A program that uses troupe finds all of them.\n"
    "  srun --nodes 4 --ntasks-per-node 1 troupe up --shared $HOME/.troupe-up -- mnist --trainers 4\n"
    "  mpirun -N 1 troupe up --shared /nfs/up -- ./my_job\n"
    "  troupe up --rank 0 --hosts 2 --shared /nfs/up -- ./my_job      by hand; --rank 1 on the other one\n";

struct UpOptions {
  std::string shared;
  std::string folder;
  std::string bind = "0.0.0.0";
  std::uint16_t port = 0;
  int rank = -1;
  int hosts = 0;
  int min_nodes = 0;
  double cpus = -1;
  int gpus = -1;
  ResourceWords other;
  double wait_s = 300;
  double heartbeat_timeout_s = 60;
  int grace_s = 30;
  std::vector<std::string> program;
};

Duration seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

void say(const std::string& text) {
  std::fprintf(stderr, "troupe up: %s\n", escape_text(text).c_str());
}

std::string new_id() {
  return to_hex(Secret<8>::generate().reveal());
}

/// SIGINT and SIGTERM as a descriptor: which of them came, if any.
class Signals {
 public:
  Signals() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGINT);
    ::sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw_error(io_error("cannot watch for signals", errno, "raise ulimit -n"));
  }
  /// The last one that came since the first call; 0: none.
  int came() {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      came_ = static_cast<int>(info.ssi_signo);
      ++count_;
    }
    return came_;
  }
  /// How many that were.
  int count() const { return count_; }

 private:
  UniqueFd fd_;
  int came_ = 0;
  int count_ = 0;
};

/// Keys and state of this host: removed with the run where nobody named the folder.
class OwnFolder {
 public:
  explicit OwnFolder(const std::string& given) : path_(given) {
    if (!path_.empty()) {
      static_cast<void>(ClusterFolder::open(path_).value());
      return;
    }
    std::string name = fs::temp_directory_path().string() + "/troupe-up-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      throw_error(io_error("cannot make a folder in " + fs::temp_directory_path().string(), errno,
                           "set TMPDIR, or give --folder"));
    path_ = name;
    is_ours_ = true;
  }
  ~OwnFolder() {
    std::error_code error;
    if (is_ours_) fs::remove_all(path_, error);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_ours_ = false;
};

/// `troupe start`, which keeps a head and a node up, or a node.
class Start {
 public:
  Start(const UpOptions& options, const std::string& folder, std::vector<std::string> words)
      : log_(folder + "/up.log") {
    const UniqueFd log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!log) throw_error(io_error("cannot write " + log_, errno, "give another --folder"));
    std::vector<std::string> all{fs::read_symlink("/proc/self/exe").string(), "start", "--folder", folder};
    if (options.cpus >= 0) words.insert(words.end(), {"--cpus", std::to_string(options.cpus)});
    if (options.gpus >= 0) words.insert(words.end(), {"--gpus", std::to_string(options.gpus)});
    const auto other = options.other.words();
    all.insert(all.end(), other.begin(), other.end());
    all.insert(all.end(), words.begin(), words.end());
    node::ProgramOptions start;
    start.program = std::move(all);
    for (char** at = environ; *at != nullptr; ++at) start.environment.emplace_back(*at);
    start.environment.emplace_back("TROUPE_LOG_TIME=1");  // nobody reads up.log while it is written
    if (std::getenv("TROUPE_LOG") == nullptr) start.environment.emplace_back("TROUPE_LOG=info");
    start.output = log.get();
    start.errors = log.get();
    program_ = node::start_program(start).value();
  }
  ~Start() {
    if (has_ended()) return;
    node::signal_group(program_, SIGINT);  // at once: SIGTERM would have a node drain
    if (!wait_readable(program_.pidfd.get(), kGoes)) node::signal_group(program_, SIGKILL);
    wait_readable(program_.pidfd.get(), kGoes);
    static_cast<void>(has_ended());
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;

  /// To it alone: what runs on its node is handed over.
  void drain() { ::syscall(SYS_pidfd_send_signal, program_.pidfd.get(), SIGTERM, nullptr, 0); }
  bool has_ended() {
    if (!exit_) exit_ = node::reap_program(program_);
    return exit_.has_value();
  }
  /// Throws where it has ended: with its last words.
  void check() {
    if (!has_ended()) return;
    std::string last;
    if (const UniqueFd log(::open(log_.c_str(), O_RDONLY | O_CLOEXEC)); log) {
      char text[2048];
      const off_t end = ::lseek(log.get(), 0, SEEK_END);
      ::lseek(log.get(), std::max<off_t>(0, end - static_cast<off_t>(sizeof text)), SEEK_SET);
      if (const ssize_t got = ::read(log.get(), text, sizeof text); got > 0)
        last.assign(text, static_cast<std::size_t>(got));
    }
    while (last.ends_with('\n')) last.pop_back();
    throw_error({ErrorCode::kUnavailable, "this host's node does not run", last.substr(last.rfind('\n') + 1),
                 "the whole log is " + log_});
  }

 private:
  const std::string log_;
  node::Program program_;
  std::optional<node::ProgramExit> exit_;
};

class FirstHost {
 public:
  FirstHost(const UpOptions& options, const std::string& meeting)
      : options_(options), own_(options.folder), meeting_(MeetingHost::open(meeting).value()) {}

  int run() {
    meeting_.beat().value();
    start_.emplace(
        options_, own_.path(),
        std::vector<std::string>{"--head", "--bind", options_.bind, "--port", std::to_string(options_.port)});
    int code = 1;
    try {
      code = wait_for_nodes() ? run_program() : kSignalled + signals_.came();
    } catch (...) {
      meeting_.end(1);
      throw;
    }
    meeting_.end(code);
    return code;
  }

 private:
  template <class Answer>
  Result<Answer> ask(const wire::Control& message) {
    auto folder = ClusterFolder::find(own_.path());
    if (!folder) return folder.error();
    const auto contact = folder->contact();
    if (!contact) return contact.error();
    auto bytes = folder->ask(*contact, message, kAsks);
    if (!bytes) return bytes.error();
    return wire::decode<Answer>(*bytes);
  }
  /// A launcher that ends a run tells all processes at once, in whatever order: then the node's end is no
  /// failure.
  bool is_told_to_end() {
    if (!start_->has_ended()) return false;
    std::this_thread::sleep_for(kLook);
    if (signals_.came() == 0) start_->check();
    return true;
  }
  /// Lets hosts in that came since.
  void greet() {
    if (clock_.now() < next_look_) return;  // asked for every piece of output
    next_look_ = clock_.now() + kLook;
    if (clock_.now() >= next_beat_) {
      // A disk that is full or away for a moment does not end the run: the others wait for the next one.
      static_cast<void>(meeting_.beat());
      next_beat_ = clock_.now() + kBeats;
    }
    for (const std::string& id : meeting_.waiting()) {
      const auto token = ask<wire::TokenAnswer>(wire::TokenAsk{1, kTokenLives_s});
      if (!token) return;                                    // the head is on its way back
      static_cast<void>(meeting_.answer(id, token->token));  // else it is answered next time
    }
  }
  /// False: a signal came first.
  bool wait_for_nodes() {
    const Instant deadline = clock_.now() + seconds(options_.wait_s);
    for (std::size_t said = 0;;) {
      if (is_told_to_end()) return false;
      greet();
      std::size_t nodes = 0;
      if (const auto status = ask<wire::StatusAnswer>(wire::StatusAsk{1}))
        nodes =
            static_cast<std::size_t>(std::count_if(status->nodes.begin(), status->nodes.end(),
                                                   [](const auto& node) { return node.state == "alive"; }));
      const std::string count = std::to_string(nodes) + " of " + count_of(options_.min_nodes, "node") +
                                (options_.min_nodes == 1 ? " is there" : " are there");
      if (nodes != said) say(count);
      said = nodes;
      if (nodes >= static_cast<std::size_t>(options_.min_nodes)) return true;
      if (signals_.came() != 0) return false;
      if (clock_.now() >= deadline)
        throw_error({ErrorCode::kTimeout, "not all hosts have come",
                     count + " after " + std::to_string(static_cast<int>(options_.wait_s)) + " s",
                     "see what the others say, or give --min-nodes or --wait"});
      std::this_thread::sleep_for(kLook);
    }
  }
  int run_program() {
    JobClient jobs({.folder = own_.path()});
    JobSpec spec;
    spec.program = options_.program.front();
    spec.args.assign(options_.program.begin() + 1, options_.program.end());
    spec.node_dir = fs::current_path().string();
    const std::string id = jobs.submit(spec);
    bool is_stopping = false;
    bool is_over = false;
    const auto look = [&] {
      if (is_over = is_told_to_end(); is_over) return true;
      greet();
      if (signals_.came() != 0 && !is_stopping) {
        is_stopping = true;
        jobs.stop(id);
      }
      return false;
    };
    const JobInfo job =
        jobs.read_output(id, {.follow = true, .is_enough = look}, [](const JobOutput& output) {
          if (output.stream == JobOutput::kNote) return say(output.bytes);
          std::FILE* to = output.stream == JobOutput::kOutput ? stdout : stderr;
          std::fwrite(output.bytes.data(), 1, output.bytes.size(), to);
          std::fflush(to);
        });
    if (is_over) return kSignalled + signals_.came();
    if (job.status != JobStatus::kSucceeded) say("the program ended: " + job.why);
    return job.exit_code;
  }

  const UpOptions& options_;
  MonotonicClock clock_;
  Signals signals_;
  OwnFolder own_;
  MeetingHost meeting_;
  Instant next_look_{}, next_beat_{};
  std::optional<Start> start_;
};

/// A node, until the first host says that it is over, or says nothing any more.
int join(const UpOptions& options, const std::string& meeting) {
  MonotonicClock clock;
  Signals signals;
  const OwnFolder own(options.folder);
  MeetingGuest guest(meeting, new_id());
  struct Leaves {
    MeetingGuest& guest;
    ~Leaves() { guest.leave(); }
  } leaves{guest};
  std::optional<Start> start;
  const Instant deadline = clock.now() + seconds(options.wait_s);
  bool drains = false;
  for (;; std::this_thread::sleep_for(kLook)) {
    if (const int signal = signals.came(); signal != 0) {
      const bool may_drain = signal == SIGTERM && signals.count() == 1 && options.grace_s > 0;
      if (!may_drain || !start || start->has_ended()) return kSignalled + signal;
      if (!std::exchange(drains, true)) {
        say("SIGTERM: this host's node drains within " + std::to_string(options.grace_s) +
            " s; another signal ends it at once");
        start->drain();
      }
    }
    if (start && start->has_ended()) {
      std::this_thread::sleep_for(kLook);  // the launcher may be ending all processes at once
      if (signals.came() == 0) start->check();
      continue;
    }
    if (const auto code = guest.ended()) {
      if (*code != 0) say("the first host's program ended with exit code " + std::to_string(*code));
      return 0;  // it is the first host's to tell
    }
    if (start) {
      if (guest.silence(clock.now()) > seconds(options.heartbeat_timeout_s))
        throw_error(
            {ErrorCode::kUnavailable, "the run has no first host any more",
             "it gave no sign for " + std::to_string(static_cast<int>(options.heartbeat_timeout_s)) + " s",
             "see what it said"});
      continue;
    }
    guest.ask();
    if (const auto token = guest.token()) {
      const Endpoint head = read_token_file(*token).value().head;
      start.emplace(options, own.path(),
                    std::vector<std::string>{"--address", to_string(head), "--token-file", *token, "--grace",
                                             std::to_string(options.grace_s)});
    } else if (clock.now() >= deadline) {
      throw_error({ErrorCode::kTimeout, "the first host did not come",
                   "nobody answered in " + meeting + " for " +
                       std::to_string(static_cast<int>(options.wait_s)) + " s",
                   "is --shared a folder that all hosts see, and does a host with rank 0 run?"});
    }
  }
}

/// What is not given is the launcher's.
Place place_of(UpOptions& options) {
  Place place;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const auto found = place_from(variable).value();
  if (found) place = *found;
  if (!found && options.rank < 0)
    throw BadConfig("cannot tell which host this is",
                    "no launcher that is known started it (srun, mpirun, a Kubernetes Job)",
                    "give --rank and --hosts");
  if (options.rank >= 0) place.rank = options.rank;
  if (options.hosts > 0) place.hosts = options.hosts;
  place.hosts = std::max(place.hosts, 1);
  if (place.run.empty()) place.run = "run";
  if (place.cpus && options.cpus < 0) options.cpus = std::min(*place.cpus, usable_cores());
  if (place.memory_bytes && options.other.memory.empty()) {
    const auto given = static_cast<std::uint64_t>(*place.memory_bytes);
    const std::uint64_t usable = std::min(given, usable_memory().value_or(given));
    const std::int64_t offered = node::memory_to_offer(-1, usable, 1);
    if (offered > 0) options.other.memory = std::to_string(offered);
  }
  if (options.min_nodes == 0) options.min_nodes = place.hosts;
  return place;
}

}  // namespace

int up(int argc, char** argv) {
  char** const separator =
      std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  UpOptions o;
  if (separator != argv + argc) o.program.assign(separator + 1, argv + argc);
  CLI::App app("Runs a program on a cluster of the hosts that a launcher starts it on", "troupe up");
  app.footer(kFooter);
  end_usage_with(app, "-- PROGRAM [args...]");
  app.add_option("--shared", o.shared, "Folder that all hosts see, for as long as the run lasts")
      ->required()
      ->check(not_empty("name a folder"));
  app.add_option("--min-nodes", o.min_nodes,
                 "The program starts once so many nodes are there [default: all hosts]")
      ->check(CLI::Range(1, 4096));
  app.add_option("--rank", o.rank, "Which host this is, 0 is the first [default: as the launcher says]")
      ->check(CLI::Range(0, 4095));
  app.add_option("--hosts", o.hosts, "How many there are [default: as the launcher says]")
      ->check(CLI::Range(1, 4096));
  app.add_option("--bind", o.bind, "Numeric address of the head, on the first host")->capture_default_str();
  app.add_option("--port", o.port, "Port of the head; 0: any free one")->capture_default_str();
  app.add_option("--cpus", o.cpus, "CPUs that actors may hold here [default: the cores this process may use]")
      ->check(CLI::Range(0.0, 100'000.0));
  app.add_option("--gpus", o.gpus, "GPUs that actors may hold here [default: all that CUDA finds]")
      ->check(CLI::Range(0, 256));
  add_resource_options(app, o.other, kOfferedHelp);
  app.add_option("--folder", o.folder,
                 "Keys and state of this host [default: a new folder, removed at the end]")
      ->check(not_empty());
  app.add_option("--wait", o.wait_s, "Seconds until all hosts must be there")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86'400.0));
  app.add_option("--heartbeat-timeout", o.heartbeat_timeout_s, "Seconds without a sign of the first host")
      ->capture_default_str()
      ->check(CLI::Range(5.0, 86'400.0));
  app.add_option(
         "--grace", o.grace_s,
         "Seconds for the node of another host than the first to drain at SIGTERM; 0: it ends at once")
      ->capture_default_str()
      ->check(CLI::Range(0, 86'400));
  try {
    app.parse(static_cast<int>(separator - argv), argv);
    if (o.program.empty())
      throw CLI::ValidationError("name the program after --: troupe up --shared FOLDER -- PROGRAM args");
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  const Place place = place_of(o);
  const bool is_counted = o.hosts > 0 || place.hosts > 1;  // a StatefulSet does not say how many there are
  if (is_counted && place.rank >= place.hosts) {
    std::fprintf(stderr, "troupe up: there is no rank %d of %s: ranks are 0 to %d\n", place.rank,
                 count_of(place.hosts, "host").c_str(), place.hosts - 1);
    return 2;
  }
  if (is_counted && o.min_nodes > place.hosts) {
    std::fprintf(stderr, "troupe up: --min-nodes %d is more than there are hosts: %d\n", o.min_nodes,
                 place.hosts);
    return 2;
  }
  const std::string meeting = o.shared + "/troupe-up-" + place.run;
  if (place.rank != 0) return join(o, meeting);
  return FirstHost(o, meeting).run();
}

}  // namespace troupe::cli
