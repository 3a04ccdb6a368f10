#include "runtime/node/job_programs.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/socket/named_socket.hpp"
#include "runtime/node/child.hpp"
#include "runtime/node/gpus.hpp"
#include "runtime/node/job_libraries.hpp"
#include "runtime/node/library_path.hpp"

extern char** environ;

namespace troupe::node {
namespace {

namespace fs = std::filesystem;

constexpr int kMostSlots = 64;
constexpr int kPipeBytes = 1 << 20;
/// Offered to the kernel before the node, and after workers.
constexpr const char* kOomScore = "400";
/// Names what runs of a job, for the node that comes after one that was killed.
constexpr const char* kMarkFile = "/mark";
/// No job has a name that begins so.
constexpr const char* kPackagesFolder = "/.packages";
/// And any word: of what a node did not come to remove, the next one does.
constexpr const char* kRemoved = "/.removed-";
constexpr std::size_t kMostKnocks = 64;
constexpr Duration kKnockPatience = std::chrono::seconds(10);
constexpr Duration kMarkPatience = std::chrono::seconds(10);
constexpr Duration kLastMarkPatience = std::chrono::seconds(2);  ///< of a node that ends

struct Pipe {
  UniqueFd reading, writing;
};
/// Of 1 MiB, where the system allows.
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<void> make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    return io_error("cannot make the folder " + path, error.value(), "make room, and the folder writable");
  ::chmod(path.c_str(), 0700);
  return {};
}

std::string key_of(const std::string& id, std::int32_t attempt) {
  return id + "/" + std::to_string(attempt);
}
std::string mark_of(const std::string& socket) {
  return std::string(kNodeSocketVariable) + "=" + socket;
}
std::string output_folder(const std::string& job, std::int32_t attempt) {
  return job + "/output/" + std::to_string(attempt);
}

ErrorInfo keeps_no_jobs() {
  return {ErrorCode::kRefused, "cannot start the job", "its node keeps no jobs: it has no folder",
          "start nodes with troupe start"};
}

/// Where its package is unpacked.
std::string packed_folder(const std::string& job, const cluster::SubmissionSpec& spec) {
  return job + (spec.executable.empty() ? "/work" : "/program");
}
std::string packed_program(const std::string& job, const cluster::SubmissionSpec& spec) {
  return packed_folder(job, spec) + "/" + fs::path(spec.program[0]).filename().string();
}

/// Whether there is an executable at `path` of that SHA-256.
bool is_that_file(const std::string& path, const std::string& sha256) {
  if (sha256.empty()) return false;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || ::access(path.c_str(), X_OK) != 0)
    return false;
  const auto hash = sha256_of_file(fd.get());
  return hash && *hash == sha256;
}

/// What the program sees: the node's own environment, what its submitter gave, and what the node says. The
/// later wins.
std::vector<std::string> environment_of(const StartProgram& what, const std::string& socket,
                                        const std::string& folder, const std::string& libraries) {
  std::map<std::string, std::string> all;
  const auto add = [&all](const std::string& entry) {
    const auto at = entry.find('=');
    if (at != std::string::npos) all[entry.substr(0, at)] = entry;
  };
  for (char** at = environ; *at != nullptr; ++at) add(*at);
  for (const char* ours : {kRoleVariable, "TROUPE_TOKEN_FILE", "OLDPWD", kJobLibrariesVariable})
    all.erase(ours);
  std::string gpus = std::string(kVisibleDevicesVariable) + "=";
  for (const std::string& gpu : what.gpus) gpus += (gpus.back() == '=' ? "" : ",") + gpu;
  add(gpus);
  if (what.attempt > 1) add("TROUPE_RESUME=auto");  // a training run goes on at its newest checkpoint
  for (const std::string& entry : what.spec.environment) add(entry);
  if (!libraries.empty()) {
    const std::string& others = all[kLibraryPathVariable];
    add(library_path(libraries, others.substr(std::min(others.size(), others.find('=') + 1))));
    add(std::string(kJobLibrariesVariable) + "=" + what.spec.package);
  }
  add(std::string(kJobIdVariable) + "=" + what.spec.id);
  add(mark_of(socket));
  add("PWD=" + folder);
  std::vector<std::string> list;
  list.reserve(all.size());
  for (auto& [name, entry] : all) list.push_back(std::move(entry));
  return list;
}

}  // namespace

JobPrograms::~JobPrograms() {
  std::set<std::string> marks;
  for (auto& [id, running] : running_) {
    if (!running.exit) signal_group(running.program, SIGKILL);
    marks.insert(mark_of(running.name));
  }
  if (marks.empty()) return;
  if (!looks_.finish([marks](StuckProcesses& stuck) { kill_marked(marks, stuck); }, kLastMarkPatience))
    log(LogLevel::kWarning,
        "what programs of jobs left behind may go on: a process that was looked at is stuck");
}

Result<void> JobPrograms::open(const std::string& folder) {
  if (folder.empty()) return {};
  for (int slot = 0; slot < kMostSlots; ++slot) {
    const std::string path = folder + "/jobs/" + std::to_string(slot);
    if (auto made = make_folder(path); !made) return made;
    UniqueFd lock(::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) return io_error("cannot write " + path + "/lock", errno, "make the folder writable");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    lock_ = std::move(lock);
    slot_ = path;
    break;
  }
  if (slot_.empty())
    return ErrorInfo{ErrorCode::kLimit, "cannot keep jobs in " + folder,
                     std::to_string(kMostSlots) + " nodes were started from it",
                     "give each machine a --folder of its own"};
  shelf_.emplace(slot_ + kPackagesFolder);
  const auto packages = shelf_->open();
  if (!packages) return packages.error();
  for (const std::string& id : *packages) shelf_->remove(id);  // nobody knows any more whose they were
  JobFilesFound found;
  std::vector<std::string> libraries;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(slot_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(ignored) && !name.starts_with('.')) found.ids.push_back(name);
    if (name.starts_with(kLibrariesOf)) libraries.push_back(name);
    if (name.starts_with(kRemoved + 1)) remove_later(entry.path().string());
  }
  for (const std::string& name : libraries) remove_files(name);
  // A node that was killed could not end what its programs had left behind.
  std::set<std::string> marks;
  for (const std::string& id : found.ids) {
    std::ifstream file(folder_of(id) + kMarkFile);
    std::string name;
    if (std::getline(file, name)) marks.insert(mark_of(name));
  }
  kill_marked(marks);
  if (!found.ids.empty()) tell_(std::move(found));
  return {};
}

void JobPrograms::unpack(const UnpackJob& what) {
  work_.post([this, spec = what.spec] { loop_.post([this, unpacked = prepare(spec)] { tell_(unpacked); }); });
}

/// In work_'s thread.
JobUnpacked JobPrograms::prepare(const cluster::SubmissionSpec& spec) {
  if (!shelf_) return {spec.id, false, keeps_no_jobs()};
  const std::string to = packed_folder(folder_of(spec.id), spec);
  std::error_code ignored;  // its program may have made a folder that nobody reads
  if (fs::is_directory(to, ignored) || is_that_file(spec.program[0], spec.executable))
    return {spec.id, false, {}};
  if (auto made = make_folder(folder_of(spec.id)); !made) return {spec.id, false, made.error()};
  const auto unpacked = shelf_->unpack(spec.package, to);
  if (unpacked) {
    damaged_.erase(spec.package);
    return {spec.id, false, {}};
  }
  if (unpacked.error().code == ErrorCode::kUnavailable) return {spec.id, true, {}};
  const ErrorCode wrong = unpacked.error().code;
  if (wrong == ErrorCode::kCorrupt || wrong == ErrorCode::kBadInput || wrong == ErrorCode::kLimit) {
    shelf_->remove(spec.package);  // it was checked when it came: the disk has changed it since
    if (damaged_.insert(spec.package).second) {
      log(LogLevel::kWarning,
          "package " + spec.package.substr(0, 12) +
              " is damaged on this node's disk, and is fetched again: " + unpacked.error().why);
      return {spec.id, true, {}};
    }
    damaged_.erase(spec.package);  // twice: so the disk is bad, and the job ends with that
  }
  return {spec.id, false, unpacked.error()};
}

void JobPrograms::take(const TakeJobPart& what) {
  work_.post([this, part = what.part] {
    const auto held = shelf_ ? shelf_->append(part) : Result<PackageShelf::Held>(keeps_no_jobs());
    JobPartTaken taken{part.hash, held ? held->next : 0, held && held->whole, {}};
    if (!held) taken.error = held.error();
    loop_.post([this, taken = std::move(taken)] { tell_(taken); });
  });
}

void JobPrograms::drop_package(const std::string& package) {
  work_.post([this, package] {
    if (shelf_) shelf_->remove(package);
  });
}

void JobPrograms::start(const StartProgram& what) {
  const std::string id = what.spec.id;
  auto started = run(what);
  if (!started) return tell_(ProgramNotStarted{id, what.attempt, started.error()});
  Running& running = running_.insert_or_assign(id, *std::move(started)).first->second;
  loop_.watch(running.program.pidfd.get(), [this, id](bool, bool, bool) { program_ended(id); });
  loop_.watch(running.socket.get(), [this, id](bool, bool, bool) { somebody_connects(id); });
  tell_(ProgramStarted{id, what.attempt});
}

Result<JobPrograms::Running> JobPrograms::run(const StartProgram& what) {
  if (slot_.empty()) return keeps_no_jobs();
  const std::string job = folder_of(what.spec.id);
  const std::string output = output_folder(job, what.attempt);
  const std::string work = what.spec.folder.empty() ? job + "/work" : what.spec.folder;
  std::error_code ignored;
  fs::remove_all(output, ignored);
  if (auto made = make_folder(output); !made) return made.error();
  if (what.spec.folder.empty()) {
    if (auto made = make_folder(work); !made) return made.error();
  }
  Running running;
  running.attempt = what.attempt;
  running.name = "troupe-job-" + to_hex(SystemRandom().next());
  std::ofstream(job + kMarkFile) << running.name << "\n";
  auto listening = listen_by_name(running.name);
  if (!listening) return listening.error();
  running.socket = *std::move(listening);
  auto out = make_pipe(), errors = make_pipe();
  if (!out || !errors) return out ? errors.error() : out.error();
  std::vector<std::string> words = what.spec.program;
  const std::string packed = packed_program(job, what.spec);
  if (!what.spec.executable.empty() && fs::exists(packed, ignored)) words[0] = packed;
  auto program = start_program({words, environment_of(what, running.name, work, libraries_of(what.spec.id)),
                                work, out->writing.get(), errors->writing.get(), true, kOomScore});
  if (!program) return program.error();
  running.program = *std::move(program);
  output_.add(key_of(what.spec.id, what.attempt), std::move(out->reading), std::move(errors->reading),
              LogSegments(output, {}));
  return running;
}

void JobPrograms::signal(const std::string& id, int signal) {
  const auto at = running_.find(id);
  if (at != running_.end() && !at->second.exit) signal_group(at->second.program, signal);
}

pid_t JobPrograms::pid_of(const std::string& id) const {
  const auto at = running_.find(id);
  return at == running_.end() || at->second.exit ? -1 : at->second.program.pid;
}

void JobPrograms::kill(const std::string& id) {
  signal(id, SIGKILL);
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  const auto look = [mark = mark_of(at->second.name)](StuckProcesses& stuck) {
    kill_marked({mark}, stuck);
    return LookThread::Then([] {});
  };
  looks_.post(look, kMarkPatience, [] {});
}

void JobPrograms::program_ended(const std::string& id) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  Running& running = at->second;
  running.exit = reap_program(running.program);
  if (!running.exit) return;  // not yet: the pidfd stays readable
  loop_.forget(running.program.pidfd.get());
  loop_.forget(running.socket.get());
  const auto look = [this, id, mark = mark_of(running.name)](StuckProcesses& stuck) {
    kill_marked({mark}, stuck);
    return LookThread::Then([this, id] {
      std::error_code ignored;
      fs::remove(folder_of(id) + kMarkFile, ignored);
      finish(id);
    });
  };
  looks_.post(look, kMarkPatience, [this, id] { finish(id); });  // the node that comes next ends what is left
}

void JobPrograms::finish(const std::string& id) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  const Running& running = at->second;
  output_.finish(key_of(id, running.attempt), [this, id] {
    loop_.post([this, id] {
      const auto ended = running_.extract(id);
      if (ended.empty()) return;
      const Running& gone = ended.mapped();
      tell_(ProgramEnded{id, gone.attempt, gone.exit->code, gone.exit->signal, false});
    });
  });
}

void JobPrograms::remove_files(const std::string& id) {
  output_.forget(id + "/");
  const std::string removed = slot_ + kRemoved + to_hex(SystemRandom().next());
  if (std::error_code none; fs::rename(folder_of(id), removed, none), none) {
    if (none != std::errc::no_such_file_or_directory)
      log(LogLevel::kWarning, "cannot remove " + folder_of(id) + ": " + none.message());
    return;
  }
  remove_later(removed);
}

void JobPrograms::remove_later(const std::string& folder) {
  work_.post([folder] {
    std::error_code error;
    fs::remove_all(folder, error);
    if (error) log(LogLevel::kWarning, "cannot remove " + folder + ": " + error.message());
  });
}

Result<wire::LogPart> JobPrograms::read(const wire::LogAsk& ask) const {
  const std::string key = key_of(ask.id, ask.attempt);
  const bool open = output_.is_open(key);  // before the read: what is closed has all of it
  auto part = read_log(output_folder(folder_of(ask.id), ask.attempt), ask);
  const wire::Bytes note = open ? wire::Bytes() : output_.note_at_end(key);
  if (!part && note.empty()) return part.error();
  if (!part) part = wire::LogPart{};  // its folder is gone, and what is lost is said nevertheless
  add_to_end(*part, ask, note);
  part->attempt = ask.attempt;
  part->closed = !open;
  return part;
}

std::vector<std::pair<std::string, pid_t>> JobPrograms::running() const {
  std::vector<std::pair<std::string, pid_t>> list;
  for (const auto& [id, running] : running_) {
    if (!running.exit) list.emplace_back(id, running.program.pid);
  }
  return list;
}

std::string JobPrograms::libraries_of(const std::string& id) const {
  const std::string folder = folder_of(id) + "/work/" + kLibrariesFolder;
  std::error_code ignored;  // its program may have made a folder that nobody reads
  return !slot_.empty() && fs::is_directory(folder, ignored) ? folder : "";
}

// Drivers that come in.

void JobPrograms::somebody_connects(const std::string& id) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  auto link = accept_by_name(at->second.socket);
  if (!link) return;
  if (!link->peer_is_us() || knocks_.size() >= kMostKnocks) return;  // closed
  const std::uint64_t connection = ++last_knock_;
  const int fd = link->fd();
  knocks_.emplace(connection, Knock{id, *std::move(link), {}, clock_.now()});
  loop_.watch(fd, [this, connection](bool, bool, bool) { knock_readable(connection); });
}

void JobPrograms::knock_readable(std::uint64_t connection) {
  const auto at = knocks_.find(connection);
  if (at == knocks_.end()) return;
  Knock& knock = at->second;
  Message message;
  const auto got = knock.link.receive(message);
  if (got == SocketLink::Got::kNothing) return;
  loop_.forget(knock.link.fd());
  auto control = got == SocketLink::Got::kMessage ? wire::decode_control(message.header, message.body)
                                                  : Result<wire::Control>(ErrorInfo{});
  const auto* hello = control ? std::get_if<wire::DriverHello>(&*control) : nullptr;
  if (hello == nullptr || message.fds.size() != 1) {
    knocks_.erase(at);
    return;
  }
  knock.executable = std::move(message.fds.front());
  tell_(DriverKnocked{connection, knock.id, *hello});
}

std::optional<JobPrograms::Knock> JobPrograms::take_knock(std::uint64_t connection) {
  auto taken = knocks_.extract(connection);
  if (taken.empty()) return std::nullopt;
  return std::move(taken.mapped());
}

void JobPrograms::tick() {
  for (auto at = knocks_.begin(); at != knocks_.end();) {
    if (clock_.now() - at->second.since < kKnockPatience) {
      ++at;
      continue;
    }
    loop_.forget(at->second.link.fd());
    at = knocks_.erase(at);
  }
}

}  // namespace troupe::node
