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

extern char** environ;

namespace troupe::node {
namespace {

namespace fs = std::filesystem;

constexpr int kMostSlots = 64;
/// Names what runs of a job, for the node that comes after one that was killed.
constexpr const char* kMarkFile = "/mark";
constexpr std::size_t kMostKnocks = 64;
constexpr Duration kKnockPatience = std::chrono::seconds(10);

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

/// What the program sees: the node's own environment, what its submitter gave, and what the node says. The
/// later wins.
std::vector<std::string> environment_of(const StartProgram& what, const std::string& socket,
                                        const std::string& folder) {
  std::map<std::string, std::string> all;
  const auto add = [&all](const std::string& entry) {
    const auto at = entry.find('=');
    if (at != std::string::npos) all[entry.substr(0, at)] = entry;
  };
  for (char** at = environ; *at != nullptr; ++at) add(*at);
  for (const char* ours : {kRoleVariable, "TROUPE_TOKEN_FILE", "OLDPWD"}) all.erase(ours);
  std::string gpus = std::string(kVisibleDevicesVariable) + "=";
  for (const std::string& gpu : what.gpus) gpus += (gpus.back() == '=' ? "" : ",") + gpu;
  add(gpus);
  for (const std::string& entry : what.spec.environment) add(entry);
  add(std::string(kJobIdVariable) + "=" + what.spec.id);
  add(mark_of(socket));
  add("PWD=" + folder);
  std::vector<std::string> list;
  for (auto& [name, entry] : all) list.push_back(std::move(entry));
  return list;
}

}  // namespace

JobPrograms::~JobPrograms() {
  for (auto& [id, running] : running_) {
    if (!running.exit) signal_group(running.program, SIGKILL);
    kill_marked({mark_of(running.name)});
  }
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
  JobFilesFound found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(slot_, ignored)) {
    if (entry.is_directory(ignored)) found.ids.push_back(entry.path().filename().string());
  }
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
  if (slot_.empty()) {
    return ErrorInfo{ErrorCode::kRefused, "cannot start the job", "its node keeps no jobs: it has no folder",
                     "start nodes with troupe start"};
  }
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
  auto program = start_program({what.spec.program, environment_of(what, running.name, work), work});
  if (!program) return program.error();
  running.program = *std::move(program);
  output_.add(key_of(what.spec.id, what.attempt), std::move(running.program.output),
              std::move(running.program.errors), LogSegments(output, {}));
  return running;
}

void JobPrograms::signal(const std::string& id, int signal) {
  const auto at = running_.find(id);
  if (at != running_.end() && !at->second.exit) signal_group(at->second.program, signal);
}

void JobPrograms::kill(const std::string& id) {
  signal(id, SIGKILL);
  if (const auto at = running_.find(id); at != running_.end()) kill_marked({mark_of(at->second.name)});
}

void JobPrograms::program_ended(const std::string& id) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  Running& running = at->second;
  running.exit = reap_program(running.program);
  if (!running.exit) return;  // not yet: the pidfd stays readable
  loop_.forget(running.program.pidfd.get());
  loop_.forget(running.socket.get());
  kill_marked({mark_of(running.name)});
  std::error_code ignored;
  fs::remove(folder_of(id) + kMarkFile, ignored);
  output_.finish(key_of(id, running.attempt), [this, id] {
    loop_.post([this, id] {
      const auto ended = running_.extract(id);
      if (ended.empty()) return;
      const Running& gone = ended.mapped();
      tell_(ProgramEnded{id, gone.attempt, gone.exit->code, gone.exit->signal});
    });
  });
}

void JobPrograms::remove_files(const std::string& id) {
  std::error_code error;
  fs::remove_all(folder_of(id), error);
  if (error) log(LogLevel::kWarning, "cannot remove " + folder_of(id) + ": " + error.message());
}

Result<wire::LogPart> JobPrograms::read(const wire::LogAsk& ask) const {
  const bool open =
      output_.is_open(key_of(ask.id, ask.attempt));  // before the read: what is closed has all of it
  auto part = read_log(output_folder(folder_of(ask.id), ask.attempt), ask);
  if (!part) return part.error();
  part->attempt = ask.attempt;
  part->closed = !open;
  return part;
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
