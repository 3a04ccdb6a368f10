#include "scheduler/launch/worker_group.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "runtime/core/escape.hpp"
#include "scheduler/launch/error_file.hpp"
#include "scheduler/launch/rank_environment.hpp"

extern char** environ;

namespace troupe::launch {
namespace {

namespace fs = std::filesystem;

constexpr Duration kDrain = std::chrono::seconds(1);
constexpr int kOut = 1, kErr = 2;
constexpr std::uint64_t kSegments = 8;  // of a log

Result<std::string> make_folder(const std::string& parent, const std::string& name, const char* todo) {
  std::error_code error;
  fs::create_directories(parent, error);
  std::string path = parent + "/" + name + "_XXXXXX";
  if (error || ::mkdtemp(path.data()) == nullptr)
    return io_error("cannot make a folder in " + parent, error ? error.value() : errno, todo);
  return path;
}

std::string temporary_parent() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
}

}  // namespace

/// What a rank's standard output and error are, and what is done with them.
struct WorkerGroup::Streams {
  struct Stream {
    UniqueFd given;  ///< to the rank; none: it has this process's
    UniqueFd pipe;   ///< our end, with --redirects and --tee
    std::string file;
    int console = -1;  ///< with --tee
  };
  Stream output, errors;
};

WorkerGroup::WorkerGroup(EventLoop& loop, RunSpec spec, std::uint32_t node, std::string interface,
                         OnEvent on_event)
    : loop_(loop),
      spec_(std::move(spec)),
      node_(node),
      interface_(std::move(interface)),
      on_event_(std::move(on_event)) {}

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::make(EventLoop& loop, RunSpec spec, std::uint32_t node,
                                                       std::string interface, OnEvent on_event) {
  std::unique_ptr<WorkerGroup> made(
      new WorkerGroup(loop, std::move(spec), node, std::move(interface), std::move(on_event)));
  const RunSpec& given = made->spec_;
  const bool keeps = given.keeps_logs();
  std::string parent = given.log_folder.empty() ? temporary_parent() : given.log_folder;
  if (!parent.starts_with('/') && !given.folder.empty()) parent = given.folder + "/" + parent;
  auto folder = make_folder(
      parent, keeps ? given.run_id : "troupe-run",
      given.log_folder.empty() ? "set TMPDIR to a folder that can be written" : "give another --log-dir");
  if (!folder) return folder.error();
  (keeps ? made->log_folder_ : made->temporary_) = *folder;
  auto guard = ProcessGuard::start(made->temporary_);
  if (!guard) return guard.error();
  made->guard_ = *std::move(guard);
  return made;
}

WorkerGroup::~WorkerGroup() {
  relays_.clear();
  kill_all();
}  // the guard removes the temporary folder

void WorkerGroup::kill_all() {
  signal(SIGKILL);
  for (auto& [local_rank, worker] : workers_) {
    loop_.forget(worker.program.pidfd.get());
    reap(worker);
  }
  workers_.clear();
}

Result<void> WorkerGroup::start(const RankPlan& plan) {
  attempt_ = plan.attempt;
  if (auto good = check_command(spec_.command, spec_.folder); !good) return good;
  for (std::uint32_t local_rank = 0; local_rank < plan.processes; ++local_rank) {
    auto started = start_one(plan, local_rank);
    if (started) continue;
    kill_all();
    return started;
  }
  return {};
}

Result<void> WorkerGroup::start_one(const RankPlan& plan, std::uint32_t local_rank) {
  const std::string folder = (temporary_.empty() ? log_folder_ : temporary_) + "/attempt_" +
                             std::to_string(plan.attempt) + "/" + std::to_string(local_rank);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return io_error("cannot make the folder " + folder, error.value(), "give another --log-dir");
  auto streams = open_streams(local_rank, folder);
  if (!streams) return streams.error();
  Worker worker;
  worker.error_file = folder + "/error.json";
  auto started = node::start_program(
      {spec_.command,
       with_changes(environ, rank_environment(spec_, plan, local_rank, worker.error_file, interface_,
                                              [](const char* name) { return std::getenv(name); })),
       spec_.folder, streams->output.given.get(), streams->errors.given.get()});
  if (!started) return started.error();
  guard_.add(started->pid);
  worker.program = *std::move(started);
  for (Streams::Stream* stream : {&streams->output, &streams->errors}) {
    if (stream->pipe) relay(worker, std::move(stream->pipe), stream->file, stream->console, local_rank);
  }
  loop_.watch(worker.program.pidfd.get(), [this, local_rank](bool, bool, bool) { on_ended(local_rank); });
  workers_.emplace(local_rank, std::move(worker));
  return {};
}

Result<WorkerGroup::Streams> WorkerGroup::open_streams(std::uint32_t local_rank, const std::string& folder) {
  const int rank = static_cast<int>(local_rank);
  const bool is_shown = spec_.shown.empty() || std::count(spec_.shown.begin(), spec_.shown.end(), rank) != 0;
  const int tee = spec_.tee.of(rank), redirect = spec_.redirects.of(rank);
  Streams streams;
  for (const int bit : {kOut, kErr}) {
    auto& stream = bit == kOut ? streams.output : streams.errors;
    const std::string path = folder + (bit == kOut ? "/stdout.log" : "/stderr.log");
    if (((tee | redirect) & bit) != 0) {
      // What cannot be made is said before the rank starts.
      if (!UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)))
        return io_error("cannot write " + path, errno, "free space, or give another --log-dir");
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
      stream.pipe = UniqueFd(ends[0]);
      stream.given = UniqueFd(ends[1]);
      stream.file = path;
      if ((tee & bit) != 0 && is_shown) stream.console = bit == kOut ? STDOUT_FILENO : STDERR_FILENO;
    } else if (!is_shown) {
      stream.given = UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
      if (!stream.given) return io_error("cannot write /dev/null", errno, "raise ulimit -n");
    }
  }
  return streams;
}

void WorkerGroup::relay(Worker& worker, UniqueFd pipe, const std::string& file, int console,
                        std::uint32_t local_rank) {
  const std::string prefix = "[" + escape_name(spec_.role) + std::to_string(local_rank) + "]:";
  OutputRelay::Hooks hooks;
  hooks.ended = [this] {
    loop_.post([this] { check_quiet(); });  // not from within itself
  };
  hooks.failed = [this](const char* what, int error) {
    on_event_(OutputFailed{io_error(std::string("output of a rank is lost: ") + what, error,
                                    "free space, or give another --log-dir")});
  };
  hooks.trimmed = [this, file] { on_event_(OutputTrimmed{node_, file, spec_.log_limit_bytes}); };
  node::SegmentFiles log(file, {spec_.log_limit_bytes / kSegments, spec_.log_limit_bytes},
                         node::SegmentFiles::Names::kNewest);
  auto made = std::make_shared<OutputRelay>(loop_, std::move(pipe), std::move(log), console, prefix,
                                            std::move(hooks));
  worker.relays.push_back(made);
  relays_.push_back(std::move(made));
}

void WorkerGroup::signal(int signal) {
  for (const auto& [local_rank, worker] : workers_) {
    node::signal_group(worker.program, signal);
    node::signal_group(worker.program, SIGCONT);
  }
}

/// Waits for its end.
WorkerEnd WorkerGroup::reap(Worker& worker) {
  pollfd gone{worker.program.pidfd.get(), POLLIN, 0};
  while (::poll(&gone, 1, -1) < 0) {
  }
  node::signal_group(worker.program, SIGKILL);  // what it has forked ends with it
  guard_.remove(worker.program.pid);            // before the number can be another's
  const auto exit = node::reap_program(worker.program).value_or(node::ProgramExit{});
  return {.pid = worker.program.pid, .code = exit.code, .signal = exit.signal};
}

void WorkerGroup::on_ended(std::uint32_t local_rank) {
  const auto at = workers_.find(local_rank);
  if (at == workers_.end()) return;
  Worker worker = std::move(at->second);
  workers_.erase(at);
  loop_.forget(worker.program.pidfd.get());
  WorkerEnd end = reap(worker);
  if (end.code != 0 || end.signal != 0) {
    end.error = read_error_file(worker.error_file);
    if (!end.error.empty() && !log_folder_.empty()) end.error_file = worker.error_file;
  }
  for (const auto& weak : worker.relays) {
    if (const auto relay = weak.lock()) relay->finish(kDrain);
  }
  on_event_(WorkerEnded{attempt_, node_, local_rank, std::move(end)});
  check_quiet();
}

void WorkerGroup::when_quiet(std::function<void()> callback) {
  when_quiet_ = std::move(callback);
  check_quiet();
}

void WorkerGroup::check_quiet() {
  std::erase_if(relays_, [](const auto& relay) { return relay->has_ended(); });
  if (is_quiet() && when_quiet_) std::exchange(when_quiet_, nullptr)();
}

}  // namespace troupe::launch
