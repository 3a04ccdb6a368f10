#include "collectives/flight/flight_recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "collectives/flight/dump_files.hpp"
#include "collectives/normal_end.hpp"
#include "runtime/core/dumps.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives::flight {
namespace {

/// Somebody said that they want no dumps.
bool flight_folder_is_off() {
  const char* folder = std::getenv("TROUPE_FLIGHT_FOLDER");
  return folder != nullptr && *folder == '\0';
}

/// The recorders of this process, for dump_all. Both live as long as the process: a group may be destroyed
/// after main.
struct Registry {
  std::mutex mutex;
  std::vector<const FlightRecorder*> recorders;
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// Where a recorder with these options dumps to, if it is not told.
Result<std::string> folder_for(const FlightOptions& options, const std::string& folder) {
  std::string into = folder;
  if (into.empty()) into = options.folder ? *options.folder : default_flight_folder();
  if (into.empty()) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot dump the flight recorder", "there is no folder for dumps",
                     "name one, or set TROUPE_FLIGHT_FOLDER"};
  }
  return into;
}

}  // namespace

FlightRecorder::FlightRecorder(const ProcessGroup& group, FlightOptions options)
    : rank_(group.rank()),
      size_(group.size()),
      generation_(group.generation()),
      backend_(group.backend()),
      options_(std::move(options)),
      timeline_(options_.timeline ? *options_.timeline : timeline_folder()),
      formed_ns_(wall_ns()),
      ring_(timeline_.empty() ? kRemembered : kRememberedOfTimeline) {
  add_dumper([](const std::string& folder) {
    const auto written = dump_all("it was asked for (troupe dump)", folder);
    if (!written) log(LogLevel::kError, written.error().message());
  });
  const std::lock_guard lock(registry().mutex);
  registry().recorders.push_back(this);
}

FlightRecorder::~FlightRecorder() {
  {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().recorders, this);
  }
  leave_timeline("its group ended");
}

std::shared_ptr<FlightRecorder> record(ProcessGroup& group, FlightOptions options) {
  auto recorder = std::make_shared<FlightRecorder>(group, std::move(options));
  group.set_recorder(recorder);
  return recorder;
}

void FlightRecorder::leave_timelines() {
  const std::lock_guard lock(registry().mutex);  // so that none goes meanwhile
  for (const FlightRecorder* recorder : registry().recorders) recorder->leave_timeline("its job has ended");
}

void FlightRecorder::leave_timeline(std::string_view reason) const {
  {
    const std::lock_guard lock(mutex_);
    if (timeline_.empty() || launched_ == 0) return;
  }
  leave(reason, timeline_);
}

std::uint64_t FlightRecorder::launch(const Op& call, Instant now) {
  const std::lock_guard lock(mutex_);
  Operation& op = ring_[++launched_ % ring_.size()];
  op.number = launched_;
  op.call = call;
  op.call.input = op.call.output = {};
  op.call.counts.clear();
  op.call.from_counts.clear();
  if (!is_message(call.kind)) collectives_ = call.sequence;
  op.state = State::kLaunched;
  op.launched_ns = now.count();
  op.took_ns = 0;
  op.error.clear();
  return op.number;
}

void FlightRecorder::refused(std::uint64_t number, std::string_view error, bool group_failed) {
  {
    const std::lock_guard lock(mutex_);
    Operation* op = find(number);
    if (op == nullptr) return;
    op->state = State::kRefused;
    op->error = error.substr(0, kMaxErrorBytes);
    if (!is_message(op->call.kind)) collectives_ = op->call.sequence - 1;
  }
  if (group_failed) dump_failure(error);
}

void FlightRecorder::note(std::uint64_t first, std::size_t operations, State from, State to) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t number = first; number < first + operations; ++number) {
    Operation* op = find(number);
    if (op != nullptr && is_open(op->state) && op->state <= from) op->state = to;
  }
}

void FlightRecorder::waiting(std::uint64_t first, std::size_t operations) {
  note(first, operations, State::kLaunched, State::kWaiting);
}

void FlightRecorder::enqueued(std::uint64_t first, std::size_t operations) {
  note(first, operations, State::kWaiting, State::kEnqueued);
}

void FlightRecorder::ended(std::uint64_t first, std::size_t operations, Duration took,
                           std::string_view error) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t number = first; number < first + operations; ++number) {
    Operation* op = find(number);
    if (op == nullptr || !is_open(op->state)) continue;
    op->state = error.empty() ? State::kCompleted : State::kFailed;
    op->took_ns = took.count();
    op->error = error.substr(0, kMaxErrorBytes);
  }
}

void FlightRecorder::dump_failure(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    if (dumped_ || (is_told_to_end(reason) && all_completed())) return;
    dumped_ = true;
  }
  const bool off = options_.folder ? options_.folder->empty() : flight_folder_is_off();
  if (!off) leave(reason, {});
  leave_timeline(reason);  // what ends by this error may not come to the group's end
}

void FlightRecorder::leave(std::string_view reason, const std::string& folder) const {
  std::string why;
  try {
    const auto written = dump(reason, folder);
    if (written) return log(LogLevel::kInfo, "the last collectives of this rank are in " + *written);
    why = written.error().message();
  } catch (const std::exception& error) {  // out of memory
    why = error.what();
  }
  static std::once_flag warned;
  std::call_once(warned, [&] { log(LogLevel::kWarning, "no dump of the last collectives: " + why); });
}

Dump FlightRecorder::snapshot(std::string_view reason) const {
  Dump dump{.group = options_.group,
            .generation = generation_,
            .backend = backend_,
            .rank = rank_,
            .size = size_,
            .host = host_name(),
            .pid = ::getpid(),
            .formed_ns = formed_ns_,
            .reason = std::string(reason)};
  const std::lock_guard lock(mutex_);
  dump.dumped_ns = wall_ns();
  dump.monotonic_ns = clock_.now().count();
  dump.launched = launched_;
  dump.collectives = collectives_;
  const auto kept = std::min<std::uint64_t>(launched_, ring_.size());
  dump.operations.reserve(kept);
  for (std::uint64_t n = launched_ - kept + 1; n <= launched_; ++n) {
    dump.operations.push_back(ring_[n % ring_.size()]);
    dump.operations.back().launched_ns += dump.dumped_ns - dump.monotonic_ns;
  }
  return dump;
}

Result<std::string> FlightRecorder::dump(std::string_view reason, const std::string& folder) const {
  auto into = folder_for(options_, folder);
  return into ? write_dump(*into, snapshot(reason), *into != timeline_)
              : into;  // a timeline keeps all groups
}

Result<std::vector<std::string>> FlightRecorder::dump_all(std::string_view reason,
                                                          const std::string& folder) {
  std::vector<std::string> paths;
  std::optional<ErrorInfo> first;
  std::vector<std::pair<Result<std::string>, Dump>> dumps;
  {
    const std::lock_guard lock(registry().mutex);  // so that none goes meanwhile; no group waits for a disk
    for (const FlightRecorder* recorder : registry().recorders)
      dumps.emplace_back(folder_for(recorder->options_, folder), recorder->snapshot(reason));
  }
  for (const auto& [into, dump] : dumps) {
    auto written = into ? write_dump(*into, dump) : into;
    if (written) {
      paths.push_back(*std::move(written));
    } else if (!first) {
      first = written.error();
    }
  }
  if (first) return *first;
  return paths;
}

bool FlightRecorder::all_completed() const {
  return std::all_of(ring_.begin(), ring_.end(),
                     [](const Operation& op) { return op.number == 0 || op.state == State::kCompleted; });
}

Operation* FlightRecorder::find(std::uint64_t number) {
  Operation& op = ring_[number % ring_.size()];
  return op.number == number ? &op : nullptr;  // or it has left the ring
}

}  // namespace troupe::collectives::flight
