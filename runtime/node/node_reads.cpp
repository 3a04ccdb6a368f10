// The part of a node that answers who looks at it: logs, output, its processes, and dumps of them.
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/core/process_title.hpp"
#include "runtime/node/node.hpp"
#include "runtime/node/process_list.hpp"

namespace troupe {

using namespace node;

namespace {

constexpr Duration kDumped = std::chrono::seconds(4);  // the head waits for 5
constexpr Duration kLook = std::chrono::milliseconds(50);
constexpr Duration kTitles = std::chrono::seconds(2);
constexpr std::size_t kMostDumpFiles = 2000;
constexpr std::size_t kKeptDumps = 20;

/// Below `folder`, dumps of earlier times; the last so many stay.
void drop_old_dumps(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> all;
  // Each step may fail, and a loop over the range would throw, and end the node.
  for (std::filesystem::directory_iterator at(folder, ignored), end; !ignored && at != end;
       at.increment(ignored))
    all.push_back(at->path());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i + kKeptDumps <= all.size(); ++i) std::filesystem::remove_all(all[i], ignored);
}

/// In order as names are.
std::string name_of_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  char text[40] = "";
  const bool read = ::gmtime_r(&now.tv_sec, &parts) != nullptr;
  const std::size_t length = read ? std::strftime(text, sizeof text, "%Y%m%dT%H%M%S", &parts) : 0;
  std::snprintf(text + length, sizeof text - length, ".%03ldZ", now.tv_nsec / 1'000'000);
  return text;
}

wire::LogPart as_part(wire::Bytes bytes) {
  const std::size_t end = bytes.size();
  return {.attempt = 1, .end = end, .closed = true, .bytes = std::move(bytes)};
}

}  // namespace

/// No answer finds no room or no link: who asked asks again.
void Node::answer_read(std::uint64_t number, Result<wire::LogPart> part) {
  wire::LogRead answer{.number = number};
  answer.ok = part.ok();
  if (part) {
    answer.part = *std::move(part);
  } else {
    answer.error = part.error();
  }
  if (head_ != nullptr) head_->send(wire::control_frame(answer, {id_, {}}));
}

void Node::read_log(const wire::ReadLog& ask) {
  const std::string& id = ask.ask.id;
  if (id.starts_with(kDump)) return dump(ask);
  if (id.starts_with(kProcesses)) return list_processes(ask.number);
  if (id.starts_with(kNodeLog)) return answer_read(ask.number, read_log_of_process(STDERR_FILENO, ask.ask));
  answer_read(ask.number, id.starts_with(kActorLog) ? outputs_.read(ask.ask) : jobs_.read(ask.ask));
}

namespace {

/// Empty of one that an earlier look still waits for.
ProcessTitle title_of(std::int64_t pid, StuckProcesses& stuck) {
  ProcessTitle title;
  stuck.look_at(static_cast<pid_t>(pid), [&] { title = read_process_title(pid); });
  return title;
}

/// Seconds since it began; none: it is gone. The kernel tells without a look at its memory.
std::optional<std::int64_t> up_s(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  std::string word;
  constexpr int kStart = 20;  // behind the name
  for (int i = 1; i < kStart; ++i) words >> word;
  std::int64_t start_ticks = 0;
  timespec since_boot{};
  const long ticks_per_s = ::sysconf(_SC_CLK_TCK);
  if (!(words >> start_ticks) || ticks_per_s <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0)
    return std::nullopt;
  return std::max<std::int64_t>(0, since_boot.tv_sec - start_ticks / ticks_per_s);
}

/// Says of each what it is by what it says of itself.
void read_titles(std::vector<ProcessStatus>& processes, StuckProcesses& stuck) {
  for (ProcessStatus& status : processes) {
    if (const auto up = up_s(status.pid)) status.notes.emplace_back(kUpNote, std::to_string(*up));
    if (!status.submission.empty()) continue;
    ProcessTitle said = title_of(status.pid, stuck);
    if (!said.title.empty()) status.title = std::move(said.title);
    for (auto& note : said.notes) status.notes.push_back(std::move(note));
  }
}

}  // namespace

void Node::list_processes(std::uint64_t number) {
  ProcessList list;
  for (const auto& worker : outputs_.running()) {
    ProcessStatus status{locals_->pid_of(worker.process), worker.label};
    if (status.pid <= 0) continue;
    status.job = worker.job;
    for (const auto& life : worker.lives) status.actors.push_back(life.actor);
    list.processes.push_back(std::move(status));
  }
  for (const auto& [id, pid] : jobs_.running()) list.processes.push_back({pid, "program of job " + id, id});
  list.packages = machine_->packages_on_their_way();
  const auto look = [this, number, list](StuckProcesses& stuck) {
    ProcessList said = list;
    read_titles(said.processes, stuck);
    return LookThread::Then([this, number, said] { answer_read(number, as_part(wire::encode(said))); });
  };
  title_looks_.post(look, kTitles,
                    [this, number, list] { answer_read(number, as_part(wire::encode(list))); });
}

/// Until all have written theirs, or have no more time.
struct Node::Dumping {
  std::uint64_t number = 0;
  DumpList list;
  std::vector<ProcessId> asked;  ///< one for each of its processes
  bool has_titles = false;
  Instant until{};
};

void Node::dump(const wire::ReadLog& ask) {
  const auto slash = ask.ask.id.find('/');
  const std::string job = slash == std::string::npos ? "" : ask.ask.id.substr(slash + 1);
  if (jobs_.folder().empty()) {
    return answer_read(ask.number, ErrorInfo{ErrorCode::kRefused, "cannot dump its processes",
                                             "it has no folder for files", "start nodes with troupe start"});
  }
  const std::string all = jobs_.folder() + "/.dumps";
  drop_old_dumps(all);
  const auto dumping = std::make_shared<Dumping>(Dumping{.number = ask.number});
  DumpList& list = dumping->list;
  list.folder = all + "/" + name_of_now();
  std::error_code error;
  std::filesystem::create_directories(list.folder, error);
  std::filesystem::permissions(list.folder, std::filesystem::perms::owner_all, error);
  if (error) {
    return answer_read(ask.number, io_error("cannot make the folder " + list.folder, error.value(),
                                            "make room, and the folder writable"));
  }
  std::vector<std::int64_t> pids;
  for (const auto& worker : outputs_.running()) {
    const bool is_meant = job.empty() || to_string(worker.job) == job;
    if (!is_meant || !locals_->ask_for_dump(worker.process, list.folder)) continue;
    pids.push_back(locals_->pid_of(worker.process));
    list.processes.push_back({pids.back(), worker.label, false});
    dumping->asked.push_back(worker.process);
  }
  const auto look = [dumping, pids](StuckProcesses& stuck) {
    std::vector<std::string> titles;
    titles.reserve(pids.size());
    for (const auto pid : pids) titles.push_back(title_of(pid, stuck).title);
    return LookThread::Then([dumping, titles] {
      for (std::size_t i = 0; i < titles.size(); ++i) {
        if (!titles[i].empty()) dumping->list.processes[i].title = titles[i];
      }
      dumping->has_titles = true;
    });
  };
  title_looks_.post(look, kTitles, [dumping] { dumping->has_titles = true; });
  dumping->until = clock_.now() + kDumped;
  look_at_dump(dumping);
}

void Node::look_at_dump(std::shared_ptr<Dumping> dumping) {
  DumpList& list = dumping->list;
  bool is_waiting = !dumping->has_titles;
  for (std::size_t i = 0; i < dumping->asked.size(); ++i) {
    auto& process = list.processes[i];
    process.answered = process.answered || locals_->is_dumped(dumping->asked[i]);
    is_waiting = is_waiting || (!process.answered && locals_->pid_of(dumping->asked[i]) > 0);
  }
  if (is_waiting && clock_.now() < dumping->until)
    return loop_.after(kLook, [this, dumping] { look_at_dump(dumping); });
  // Each step may fail, for want of descriptors, say: a loop over the range would throw, and end the node.
  std::error_code failed, ignored;
  for (std::filesystem::recursive_directory_iterator at(list.folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->is_regular_file(ignored) && list.files.size() < kMostDumpFiles)
      list.files.push_back(at->path().string());
  }
  std::sort(list.files.begin(), list.files.end());
  answer_read(dumping->number, as_part(wire::encode(list)));
}

void Node::act(ForgetProcess& a) {
  locals_->forget(a.process);
  outputs_.ended(a.process, a.reason);
  libraries_.erase(a.process);
}

}  // namespace troupe
