#include "scheduler/cluster/submission_table.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"
#include "runtime/core/names.hpp"
#include "runtime/security/sha256.hpp"
#include "scheduler/cluster/limits.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMaxIdBytes = 64;
constexpr std::size_t kMaxFolderBytes = 4096;
constexpr const char* kWhat = "cannot submit the job";

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
ErrorInfo bad(std::string why, std::string todo) {
  return {ErrorCode::kBadInput, kWhat, std::move(why), std::move(todo)};
}
ErrorInfo too_much(std::string why, std::string todo) {
  return {ErrorCode::kLimit, kWhat, std::move(why), std::move(todo)};
}

std::optional<ErrorInfo> check_words(const SubmissionSpec& spec) {
  if (spec.program.empty() || spec.program[0].empty())
    return bad("no program is given", "name a program: troupe job submit -- PROGRAM args");
  std::size_t bytes = 0;
  for (const auto* list : {&spec.program, &spec.environment}) {
    if (list->size() > kMaxSubmissionWords)
      return too_much(
          std::to_string(list->size()) + " words are more than " + std::to_string(kMaxSubmissionWords),
          "pass a file instead");
    for (const std::string& word : *list) {
      bytes += word.size() + 1;
      if (word.find('\0') != std::string::npos)
        return bad("a word has a zero byte, which no program can be given", "pass a file instead");
    }
  }
  if (bytes > kMaxSubmissionBytes) {
    return too_much("its arguments and environment take " + std::to_string(bytes) + " bytes, and " +
                        std::to_string(kMaxSubmissionBytes) + " are the most",
                    "pass a file instead");
  }
  for (const std::string& entry : spec.environment) {
    const auto name = entry.find('=');
    if (name == 0 || name == std::string::npos)
      return bad("'" + clipped(entry.substr(0, 80)) + "' is no NAME=VALUE", "write --env NAME=VALUE");
  }
  return std::nullopt;
}

SubmissionTable::Size size_of(const SubmissionRecord& record) {
  return {record.spec.cpu_e4, record.spec.gpu_e4, record.spec.other};
}

}  // namespace

bool is_submission_id(const std::string& id) {
  return !id.empty() && id.size() <= kMaxIdBytes && is_plain(id[0]) &&
         std::all_of(id.begin(), id.end(),
                     [](char c) { return is_plain(c) || c == '_' || c == '-' || c == '.'; });
}

std::optional<ErrorInfo> check_submission(const SubmissionSpec& spec) {
  if (!is_submission_id(spec.id)) {
    return bad(
        "its id is not 1 to 64 letters, digits, '_', '-' and '.', of which the first is a letter or a digit",
        "choose another id, or leave it out");
  }
  if (auto wrong = check_name(spec.name, kWhat)) return wrong;
  if (auto wrong = check_words(spec)) return wrong;
  if (!spec.folder.empty() && (spec.folder[0] != '/' || spec.folder.size() > kMaxFolderBytes ||
                               spec.folder.find('\0') != std::string::npos))
    return bad(
        "its working directory is no absolute path of at most " + std::to_string(kMaxFolderBytes) + " bytes",
        "give the path that it has on the nodes");
  if (!spec.package.empty() &&
      (!is_sha256_hex(spec.package) || (spec.executable.empty() && !spec.folder.empty())))
    return bad("its package is none, or it runs in a folder of its node beside it",
               "submit it with this build");
  if (!spec.executable.empty() && (spec.package.empty() || !is_sha256_hex(spec.executable)))
    return bad("the digest of its program is none", "submit it with this build");
  if (spec.cpu_e4 < 0 || spec.cpu_e4 > kMaxCpu_e4)
    return bad(format_cpus(spec.cpu_e4) + " CPUs are not between 0 and " + format_cpus(kMaxCpu_e4),
               "ask for what a node has");
  if (!is_count_of_gpus(spec.gpu_e4))
    return bad(format_cpus(spec.gpu_e4) + " GPUs are neither a part of one, nor 0 to " +
                   std::to_string(kMaxGpus) + " whole ones",
               "ask for what a node has");
  if (const std::string wrong = wrong_about(spec.other); !wrong.empty())
    return bad(wrong, "ask for what a node has: --memory 512MiB, --resource tpu=1, --label zone=a");
  if (spec.priority < -kMaxPriority || spec.priority > kMaxPriority)
    return bad("the priority " + std::to_string(spec.priority) + " is not between -" +
                   std::to_string(kMaxPriority) + " and " + std::to_string(kMaxPriority),
               "choose one nearer to 0");
  if (!spec.queue.empty() && !is_submission_id(spec.queue))
    return bad("its queue is none: a name has 1 to 64 letters, digits, '_', '-' and '.'",
               "troupe queue list shows those that there are");
  if (spec.retries < 0 || spec.retries > kMaxRetries)
    return bad(std::to_string(spec.retries) + " retries are not between 0 and " + std::to_string(kMaxRetries),
               "ask for fewer");
  return std::nullopt;
}

const char* state_name(SubmissionState state) {
  constexpr const char* kNames[] = {"QUEUED",    "STARTING", "RUNNING", "STOPPING",
                                    "SUCCEEDED", "FAILED",   "STOPPED"};
  return kNames[static_cast<std::size_t>(state)];
}

SubmissionRecord& SubmissionTable::add(SubmissionRecord record) {
  const std::string id = record.spec.id;
  last_number_ = std::max(last_number_, record.number);
  by_number_.emplace(record.number, id);
  if (!record.spec.name.empty() && !has_ended(record.state)) names_[record.spec.name] = id;
  if (!record.spec.package.empty()) ++packages_[record.spec.package];
  const auto [at, is_new] = all_.emplace(id, std::move(record));
  TROUPE_ASSERT(is_new, "an id is of one submission");
  return at->second;
}

SubmissionRecord* SubmissionTable::find(const std::string& id) {
  const auto at = all_.find(id);
  return at == all_.end() ? nullptr : &at->second;
}
const SubmissionRecord* SubmissionTable::find(const std::string& id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? nullptr : &at->second;
}
const SubmissionRecord* SubmissionTable::named(const std::string& name) const {
  const auto at = names_.find(name);
  return at == names_.end() ? nullptr : find(at->second);
}

void SubmissionTable::enqueue(const SubmissionRecord& record) {
  queue_.emplace(place_of(record), record.spec.id);
  by_size_[queue_of(record.spec)][size_of(record)].insert(place_of(record));
}

std::vector<std::string> SubmissionTable::waiting_queues() const {
  std::vector<std::string> queues;
  for (const auto& [queue, sizes] : by_size_) queues.push_back(queue);
  return queues;
}

std::size_t SubmissionTable::unfinished_of(const std::string& queue) const {
  return static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), [&](const auto& entry) {
    return !has_ended(entry.second.state) && queue_of(entry.second.spec) == queue;
  }));
}

SubmissionRecord* SubmissionTable::next_of(const std::string& queue,
                                           const std::function<bool(const Size&)>& left_out) {
  const auto sizes = by_size_.find(queue);
  if (sizes == by_size_.end()) return nullptr;
  const QueuePlace* next = nullptr;
  for (const auto& [size, places] : sizes->second) {
    if (!left_out(size) && (next == nullptr || *places.begin() < *next)) next = &*places.begin();
  }
  return next == nullptr ? nullptr : find(queue_.at(*next));
}

void SubmissionTable::dequeue(const SubmissionRecord& record) {
  queue_.erase(place_of(record));
  if (const auto sizes = by_size_.find(queue_of(record.spec)); sizes != by_size_.end()) {
    const auto same = sizes->second.find(size_of(record));
    if (same != sizes->second.end() && same->second.erase(place_of(record)) == 1 && same->second.empty())
      sizes->second.erase(same);
    if (sizes->second.empty()) by_size_.erase(sizes);
  }
  delayed_.erase(record.spec.id);
}

std::optional<std::string> SubmissionTable::pop_due(Instant now) {
  auto id = delayed_.pop_due(now);
  if (id) enqueue(all_.at(*id));
  return id;
}

void SubmissionTable::ended(const SubmissionRecord& record, Instant forget_at) {
  TROUPE_ASSERT(has_ended(record.state), "only what has ended is history");
  leave(record);
  history_.set(record.spec.id, forget_at);
}

void SubmissionTable::leave(const SubmissionRecord& record) {
  dequeue(record);
  const auto name = names_.find(record.spec.name);
  if (name != names_.end() && name->second == record.spec.id) names_.erase(name);
}

void SubmissionTable::remove(const SubmissionRecord& record) {
  leave(record);
  history_.erase(record.spec.id);
  by_number_.erase(record.number);
  forget_package(record);
  all_.erase(all_.find(record.spec.id));  // and with it `record`
}

std::optional<SubmissionRecord> SubmissionTable::trim(
    Instant now, std::size_t most, Duration later,
    const std::function<bool(const std::string& id)>& is_needed) {
  constexpr int kLooks = 16;  // the next call looks at others
  for (int look = 0; look < kLooks; ++look) {
    const auto id = history_.size() > most ? history_.pop_first() : history_.pop_due(now);
    if (!id) return std::nullopt;
    if (is_needed(*id)) {
      history_.set(*id, now + later);
      continue;
    }
    SubmissionRecord record = std::move(all_.extract(*id).mapped());
    by_number_.erase(record.number);
    forget_package(record);
    return record;
  }
  return std::nullopt;
}

void SubmissionTable::forget_package(const SubmissionRecord& record) {
  const auto at = packages_.find(record.spec.package);
  if (at != packages_.end() && --at->second == 0) packages_.erase(at);
}

void SubmissionTable::check() const {
  std::size_t waiting = 0, over = 0;
  for (const auto& [id, record] : all_) {
    TROUPE_ASSERT(id == record.spec.id && by_number_.contains(record.number),
                  "a submission is known by id and number");
    const bool waits = queue_.contains(place_of(record)) || delayed_.contains(id);
    TROUPE_ASSERT(waits == (record.state == SubmissionState::kQueued), "what is queued waits");
    TROUPE_ASSERT(history_.contains(id) == has_ended(record.state), "what has ended is history");
    TROUPE_ASSERT(has_ended(record.state) || record.spec.name.empty() || names_.at(record.spec.name) == id,
                  "a name leads to the one that has not ended");
    waiting += waits ? 1 : 0;
    over += has_ended(record.state) ? 1 : 0;
  }
  std::size_t sized = 0;
  for (const auto& [queue, sizes] : by_size_) {
    for (const auto& [size, places] : sizes) {
      sized += places.size();
      for (const QueuePlace& place : places) {
        const SubmissionRecord& record = all_.at(queue_.at(place));
        TROUPE_ASSERT(size_of(record) == size && queue_of(record.spec) == queue,
                      "the queue by size is the queue");
      }
    }
  }
  TROUPE_ASSERT(sized == queue_.size(), "all of it");
  TROUPE_ASSERT(queue_.size() + delayed_.size() == waiting, "only what is queued waits");
  TROUPE_ASSERT(history_.size() == over && by_number_.size() == all_.size(), "nothing else is kept");
}

}  // namespace troupe::cluster
