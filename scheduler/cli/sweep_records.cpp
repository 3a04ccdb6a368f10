#include "scheduler/cli/sweep_records.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr off_t kMostRecordBytes = off_t{1} << 30;
constexpr int kMostTrials = 1'000'000;

ErrorInfo corrupt(const std::string& path, std::size_t line, const std::string& why) {
  return {ErrorCode::kCorrupt, "cannot read '" + path + "'", "line " + std::to_string(line) + " " + why,
          "is it a sweep's results.jsonl, of this version?"};
}

std::string text_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}
std::optional<std::int64_t> integer_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() ? std::optional(at->get<std::int64_t>())
                                                       : std::nullopt;
}
double number_of(const Json& object) {
  if (object.is_number()) return object.get<double>();
  const double infinite = std::numeric_limits<double>::infinity();
  return object == "inf" ? infinite : object == "-inf" ? -infinite : std::nan("");
}

/// What is wrong with it; nothing where it is an event of some trial.
std::string add_event(const Json& event, const std::string& metric, std::map<int, TrialRecord>& trials) {
  const auto number = event.is_object() ? integer_in(event, "trial") : std::nullopt;
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max()) return "is no event of a trial";
  TrialRecord& trial = trials[static_cast<int>(*number)];
  trial.number = static_cast<int>(*number);
  const Json before = trial.config;
  if (const auto config = event.find("config"); config != event.end() && config->is_object())
    trial.config = *config;
  const std::string what = text_in(event, "event"), decision = text_in(event, "decision");
  trial.why = text_in(event, what == "failure" ? "error" : "why");
  if (what == "report") {
    trial.epoch = static_cast<int>(integer_in(event, "epoch").value_or(0));
    const auto metrics = event.find("metrics");
    if (metrics == event.end() || !metrics->is_object()) return "reports no metrics";
    const auto value = metrics->find(metric);
    trial.value = value == metrics->end() ? std::nan("") : number_of(*value);
    trial.state = decision == "pause" ? "paused" : decision == "stop" ? "stopping" : "running";
  } else if (what == "clone") {
    const auto epoch = integer_in(event, "epoch").value_or(0), from = integer_in(event, "from").value_or(-1);
    trial.clones.push_back({static_cast<int>(from), static_cast<int>(epoch), trial.config, before,
                            trial.epoch, std::exchange(trial.value, std::nullopt)});
    trial.epoch = static_cast<int>(epoch);
    trial.state = "waiting";
  } else if (what == "stop") {
    trial.state = decision;
  } else if (what == "end") {
    trial.state = decision;
    trial.state_hash = text_in(event, "state_hash");
    if (event.contains("not_finite_step")) trial.value = std::nan("");
  } else if (what == "failure") {
    trial.state = decision == "retry" ? "waiting" : decision == "fail" ? "failed" : decision;
  } else {
    return "is no report, end, stop, failure or clone";
  }
  return "";
}

bool ended_well(const TrialRecord& trial) {
  return trial.has_ended() && trial.state != "failed" && trial.value;
}
bool is_better_value(std::optional<double> a, std::optional<double> b, bool more_is_better) {
  if (!a || std::isnan(*a)) return false;
  if (!b || std::isnan(*b)) return true;
  return more_is_better ? *a > *b : *a < *b;
}

/// A whole number that is written as a text.
std::optional<int> count_in(const Json& object, const char* key) {
  const std::string count = text_in(object, key);
  const char* end = count.data() + count.size();
  int number = 0;
  const auto read = std::from_chars(count.data(), end, number);
  const bool is_one = read.ec == std::errc() && read.ptr == end && number >= 1 && number <= kMostTrials;
  return is_one ? std::optional(number) : std::nullopt;
}

}  // namespace

bool SweepRecords::is_better(const TrialRecord& a, const TrialRecord& b) const {
  return is_better_value(a.value, b.value, more_is_better);
}

bool SweepRecords::is_better(const RepeatsRecord& a, const RepeatsRecord& b) const {
  if (a.trials == 0 || b.trials == 0) return a.trials > b.trials && b.trials == 0;
  return is_better_value(a.mean, b.mean, more_is_better);
}

std::vector<RepeatsRecord> SweepRecords::repeated() const {
  std::vector<RepeatsRecord> all;
  if (repeats == 1) return all;
  for (std::size_t at = 0; at < trials.size();) {
    RepeatsRecord one{trials[at].number / repeats * repeats, trials[at].config};
    std::vector<double> values;
    for (; at < trials.size() && trials[at].number < one.first + repeats; ++at) {
      if (ended_well(trials[at])) values.push_back(*trials[at].value);
    }
    one.trials = static_cast<int>(values.size());  // summed up as the sweep does
    for (const double value : values) one.mean += value / static_cast<double>(values.size());
    double squares = 0;
    for (const double value : values) squares += (value - one.mean) * (value - one.mean);
    if (one.trials > 1) one.deviation = std::sqrt(squares / (one.trials - 1));
    all.push_back(std::move(one));
  }
  return all;
}

std::optional<RepeatsRecord> SweepRecords::best_repeated() const {
  std::optional<RepeatsRecord> best;
  for (RepeatsRecord& one : repeated()) {
    if (one.trials == 0 || (best && !is_better(one, *best))) continue;
    best = std::move(one);
  }
  return best;
}

const TrialRecord* SweepRecords::best() const {
  const auto config = best_repeated();
  const TrialRecord* best = nullptr;
  for (const TrialRecord& trial : trials) {
    if (!ended_well(trial) || (config && trial.number / repeats * repeats != config->first)) continue;
    if (best == nullptr || is_better(trial, *best)) best = &trial;
  }
  return best;
}

int SweepRecords::ended() const {
  return static_cast<int>(
      std::count_if(trials.begin(), trials.end(), [](const auto& trial) { return trial.has_ended(); }));
}

std::string SweepRecords::state() const {
  return pid != 0 ? "running" : ended() >= wanted ? "done" : "interrupted";
}

Result<SweepRecords> read_sweep(const std::string& folder, const std::string& name) {
  SweepRecords sweep;
  sweep.name = name;
  sweep.path = folder + "/" + name + "/results.jsonl";
  struct stat there {};
  const bool is_there = !name.empty() && ::stat(sweep.path.c_str(), &there) == 0;
  if (!is_there && !name.empty() && errno != ENOENT && errno != ENOTDIR)
    return io_error("cannot open '" + sweep.path + "'", errno, "is it yours to read?");
  if (!is_there || !S_ISREG(there.st_mode)) {
    const char* what = !is_there                 ? "is not there"
                       : S_ISDIR(there.st_mode)  ? "is a folder"
                       : S_ISFIFO(there.st_mode) ? "is a pipe"
                                                 : "is no file";
    return ErrorInfo{ErrorCode::kRefused, "there is no sweep '" + name + "'", "'" + sweep.path + "' " + what,
                     "see troupe tune list, or give --folder"};
  }
  if (there.st_size > kMostRecordBytes)
    return corrupt(sweep.path, 1, "begins more than 1 GiB, which is too much to show");
  std::ifstream file(sweep.path);
  if (!file) return io_error("cannot open '" + sweep.path + "'", errno, "is it yours to read?");
  std::map<int, TrialRecord> trials;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    Json object = Json::parse(line, nullptr, false);
    const std::size_t number = sweep.lines.size() + 1;
    if (number == 1) {
      if (!object.is_object() || text_in(object, "event") != "sweep" || integer_in(object, "version") != 1)
        return corrupt(sweep.path, 1, "is not the first one of a sweep");
      sweep.metric = text_in(object, "metric");
      sweep.more_is_better = sweep.metric.find("(less") == std::string::npos;
      sweep.metric = sweep.metric.substr(0, sweep.metric.rfind(" ("));
      const auto trials_in = count_in(object, "trials");
      if (!trials_in) return corrupt(sweep.path, 1, "names no number of trials");
      sweep.wanted = *trials_in;
      sweep.repeats = count_in(object, "repeats").value_or(1);
    } else if (const auto wrong = add_event(object, sweep.metric, trials); !wrong.empty()) {
      return corrupt(sweep.path, number, wrong);
    }
    sweep.changed_ms = std::max(sweep.changed_ms, integer_in(object, "at_ms").value_or(0));
    sweep.lines.push_back(std::move(object));
  }
  if (sweep.lines.empty()) return corrupt(sweep.path, 1, "is not whole: the sweep has just begun, or died");
  for (auto& [number, trial] : trials) sweep.trials.push_back(std::move(trial));
  sweep.pid = holder_of_lock(sweep.path);
  return sweep;
}

std::vector<std::string> sweeps_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (std::filesystem::directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    if (std::filesystem::exists(at->path() / "results.jsonl", none)) names.push_back(at->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int holder_of_lock(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return 0;
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    // "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; who waits has "->" behind the number.
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major, &minor, &inode) == 4 &&
        inode == file.st_ino && major == ::major(file.st_dev) && minor == ::minor(file.st_dev) && pid > 0)
      return pid;
  }
  return 0;
}

}  // namespace troupe::cli
