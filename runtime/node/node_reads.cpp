// The part of a node that answers who looks at it: logs, output, its processes, and dumps of them.
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>

#include "runtime/core/process_title.hpp"
#include "runtime/node/node.hpp"
#include "runtime/node/process_list.hpp"

namespace troupe {

using namespace node;

namespace {

constexpr Duration kDumped = std::chrono::seconds(4);  // the head waits for 5
constexpr Duration kLook = std::chrono::milliseconds(50);
constexpr std::size_t kMostDumpFiles = 2000;
constexpr std::size_t kKeptDumps = 20;

/// Below `folder`, dumps of earlier times; the last so many stay.
void drop_old_dumps(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) all.push_back(entry.path());
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
  return {.attempt = 1, .end = bytes.size(), .closed = true, .bytes = std::move(bytes)};
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
  if (id.starts_with(kProcesses)) return answer_read(ask.number, list_processes());
  if (id.starts_with(kNodeLog)) return answer_read(ask.number, read_log_of_process(STDERR_FILENO, ask.ask));
  answer_read(ask.number, id.starts_with(kActorLog) ? outputs_.read(ask.ask) : jobs_.read(ask.ask));
}

wire::LogPart Node::list_processes() const {
  ProcessList list;
  for (const auto& worker : outputs_.running()) {
    ProcessStatus status{locals_->pid_of(worker.process), worker.label};
    if (status.pid <= 0) continue;
    ProcessTitle said = read_process_title(status.pid);
    if (!said.title.empty()) status.title = std::move(said.title);
    status.notes = std::move(said.notes);
    status.job = worker.job;
    for (const auto& life : worker.lives) status.actors.push_back(life.actor);
    list.processes.push_back(std::move(status));
  }
  for (const auto& [id, pid] : jobs_.running()) list.processes.push_back({pid, "program of job " + id, id});
  return as_part(wire::encode(list));
}

void Node::dump(const wire::ReadLog& ask) {
  const auto slash = ask.ask.id.find('/');
  const std::string job = slash == std::string::npos ? "" : ask.ask.id.substr(slash + 1);
  if (jobs_.folder().empty()) {
    return answer_read(ask.number, ErrorInfo{ErrorCode::kRefused, "cannot dump its processes",
                                             "it has no folder for files", "start nodes with troupe start"});
  }
  const std::string all = jobs_.folder() + "/.dumps";
  drop_old_dumps(all);
  auto list = std::make_shared<DumpList>();
  list->folder = all + "/" + name_of_now();
  std::error_code error;
  std::filesystem::create_directories(list->folder, error);
  std::filesystem::permissions(list->folder, std::filesystem::perms::owner_all, error);
  if (error) {
    return answer_read(ask.number, io_error("cannot make the folder " + list->folder, error.value(),
                                            "make room, and the folder writable"));
  }
  std::vector<ProcessId> asked;
  for (const auto& worker : outputs_.running()) {
    const bool is_meant = job.empty() || to_string(worker.job) == job;
    if (!is_meant || !locals_->ask_for_dump(worker.process, list->folder)) continue;
    const auto pid = locals_->pid_of(worker.process);
    const std::string title = read_process_title(pid).title;
    list->processes.push_back({pid, title.empty() ? worker.label : title, false});
    asked.push_back(worker.process);
  }
  look_at_dump(ask.number, std::move(list), std::move(asked), clock_.now() + kDumped);
}

/// Until all have written theirs, or have no more time.
void Node::look_at_dump(std::uint64_t number, std::shared_ptr<DumpList> list, std::vector<ProcessId> asked,
                        Instant until) {
  bool is_waiting = false;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    list->processes[i].answered = list->processes[i].answered || locals_->is_dumped(asked[i]);
    is_waiting = is_waiting || (!list->processes[i].answered && locals_->pid_of(asked[i]) > 0);
  }
  if (is_waiting && clock_.now() < until) {
    return loop_.after(kLook, [this, number, list = std::move(list), asked = std::move(asked), until] {
      look_at_dump(number, list, asked, until);
    });
  }
  // Each step may fail, for want of descriptors, say: a loop over the range would throw, and end the node.
  std::error_code failed, ignored;
  for (std::filesystem::recursive_directory_iterator at(list->folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->is_regular_file(ignored) && list->files.size() < kMostDumpFiles)
      list->files.push_back(at->path().string());
  }
  std::sort(list->files.begin(), list->files.end());
  answer_read(number, as_part(wire::encode(*list)));
}

void Node::act(ForgetProcess& a) {
  locals_->forget(a.process);
  outputs_.ended(a.process, a.reason);
  libraries_.erase(a.process);
}

}  // namespace troupe
