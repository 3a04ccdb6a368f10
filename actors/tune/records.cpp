#include "actors/tune/records.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

namespace troupe::tune {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;
constexpr const char* kTimes = R"(,"began_ms":)";

ErrorInfo corrupt(const std::string& why) {
  return {ErrorCode::kCorrupt, "a line of the sweep's records cannot be read", why,
          "begin the sweep anew under another name"};
}

// Numbers.

Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
std::optional<double> read_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

Json json_of(const Config& of) {
  Json config = Json::object();
  for (const Setting& setting : of.settings) {
    config[setting.name] = std::visit(
        [](const auto& value) -> Json {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) return number(value);
          return value;
        },
        setting.value);
  }
  return config;
}

void fill(Json& json, const TrialReported& e) {
  json["epoch"] = e.epoch;
  json["metrics"] = Json::object();
  for (const auto& [name, value] : e.metrics) json["metrics"][name] = number(value);
}
void fill(Json& json, const TrialEnded& e) {
  json["state_hash"] = e.state_hash;
  if (e.not_finite_step > 0) json["not_finite_step"] = e.not_finite_step;
}
void fill(Json& json, const TrialFailed& e) {
  json["error"] = e.error;
  if (e.is_final) json["final"] = true;
}
void fill(Json&, const SweepInterrupted&) {}

Json parse(std::string_view line) {
  Json json = Json::parse(line, nullptr, false);
  return json.is_object() ? json : Json();
}
/// Strings are text of the user's, too.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
std::string value_in(const SweepIdentity& all, std::string_view key) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == key; });
  return at == all.end() ? "" : at->second;
}
std::string string_in(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_string() ? at->get<std::string>() : "";
}

}  // namespace

// Lines.

std::string first_line(const SweepIdentity& identity) {
  Json json{{"event", "sweep"}, {"version", kVersion}};
  for (const auto& [key, value] : identity) json[key] = value;
  return dump(json);
}

std::string record_line(const SweepEvent& event, const Trial& before, const SweepStep& step) {
  static constexpr const char* kNames[] = {"report", "end", "failure", "interrupt"};
  Json json{{"event", kNames[event.index()]}, {"trial", before.number}, {"config", json_of(before.config)}};
  if (!std::holds_alternative<TrialReported>(event)) json["epoch"] = before.epoch;
  std::visit([&](const auto& e) { fill(json, e); }, event);
  json["decision"] = step.decision;
  json["why"] = step.reason;
  return dump(json);
}

std::vector<std::string> record_lines(const SweepEvent& event, const Trial& before, const SweepStep& step) {
  std::vector<std::string> lines{record_line(event, before, step)};
  for (const Clone& clone : step.clones) {
    lines.push_back(dump({{"event", "clone"},
                          {"trial", clone.trial},
                          {"config", json_of(clone.config)},
                          {"epoch", clone.epoch},
                          {"from", clone.donor},
                          {"decision", "clone"},
                          {"why", step.reason}}));
  }
  for (const Trial& trial : step.stopped) {
    lines.push_back(dump({{"event", "stop"},
                          {"trial", trial.number},
                          {"config", json_of(trial.config)},
                          {"epoch", trial.epoch},
                          {"decision", "stopped"},
                          {"why", trial.why}}));
  }
  return lines;
}

std::string with_times(std::string line, std::int64_t began_ms, std::int64_t at_ms) {
  line.pop_back();
  return line + kTimes + std::to_string(began_ms) + R"(,"at_ms":)" + std::to_string(at_ms) + "}";
}

std::string without_times(std::string_view line) {
  const auto at = line.rfind(kTimes);
  return at == std::string_view::npos ? std::string(line) : std::string(line.substr(0, at)) + "}";
}

Result<SweepIdentity> read_first_line(std::string_view line) {
  const Json json = parse(line);
  if (json.is_null() || string_in(json, "event") != "sweep")
    return corrupt("the first one is not of a sweep");
  if (json.value("version", Json()) != kVersion) return corrupt("it is of another version");
  SweepIdentity identity;
  for (const auto& [key, value] : json.items()) {
    if (key != "event" && key != "version" && value.is_string()) identity.emplace_back(key, value);
  }
  return identity;
}

Result<SweepEvent> read_record(std::string_view line) {
  const Json json = parse(line);
  const auto trial_at = json.is_null() ? json.end() : json.find("trial");
  if (json.is_null() || trial_at == json.end() || !trial_at->is_number_integer())
    return corrupt("it is no object with a trial: " + std::string(line.substr(0, 200)));
  const auto wide = trial_at->get<std::int64_t>();
  if (wide < 0 || wide > std::numeric_limits<int>::max()) return corrupt("there is no such trial");
  const int trial = static_cast<int>(wide);
  const std::string event = string_in(json, "event");
  if (event == "end") {
    const auto step = json.find("not_finite_step");
    const bool is_finite = step == json.end() || !step->is_number_integer();
    return SweepEvent(
        TrialEnded{trial, string_in(json, "state_hash"), is_finite ? 0 : step->get<std::int64_t>()});
  }
  if (event == "failure")
    return SweepEvent(TrialFailed{trial, string_in(json, "error"), json.contains("final")});
  const auto epoch = json.find("epoch");
  const auto metrics = json.find("metrics");
  if (event != "report" || epoch == json.end() || !epoch->is_number_integer() || metrics == json.end() ||
      !metrics->is_object())
    return corrupt("it is no report, end or failure: " + std::string(line.substr(0, 200)));
  TrialReported report{trial, static_cast<int>(epoch->get<std::int64_t>()), {}};
  for (const auto& [name, value] : metrics->items()) {
    const auto read = read_number(value);
    if (!read) return corrupt("the metric " + name + " is no number");
    report.metrics[name] = *read;
  }
  return SweepEvent(std::move(report));
}

std::string difference(const SweepIdentity& recorded, const SweepIdentity& ours) {
  const auto is_compared = [](const std::string& key) {
    return key != "again" && key != kCpus && key != kPlaces;
  };
  for (const auto& [key, value] : ours) {
    if (const std::string was = value_in(recorded, key); is_compared(key) && was != value)
      return "its " + key + " was '" + was + "', this one's is '" + value + "'";
  }
  for (const auto& [key, value] : recorded) {
    if (is_compared(key) && value_in(ours, key).empty())
      return "its " + key + " was '" + value + "', and this one has none";
  }
  return "";
}

// The file.

Result<RecordFile> RecordFile::take(const std::string& folder, int flags) {
  const std::string path = folder + "/results.jsonl";
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    const char* what = S_ISDIR(there.st_mode) ? "a folder" : S_ISFIFO(there.st_mode) ? "a pipe" : "no file";
    return ErrorInfo{ErrorCode::kRefused, "the sweep's records cannot be kept", "'" + path + "' is " + what,
                     "move it away, or name another folder or sweep"};
  }
  UniqueFd file(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  if (!file && errno == ENOENT)
    return ErrorInfo{ErrorCode::kRefused, "there is no sweep to go on with", "'" + path + "' is not there",
                     "begin it without resume, or name another one"};
  if (!file) return io_error("cannot open '" + path + "'", errno, "name a folder that can be written");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return ErrorInfo{ErrorCode::kRefused, "the sweep runs already", "another program writes '" + path + "'",
                     "wait for it to end, or give this one another name"};
  return RecordFile(std::move(file), path);
}

Result<RecordFile> RecordFile::create(const std::string& folder, const SweepIdentity& identity) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    return io_error("cannot make the folder '" + folder + "'", failed.value(),
                    "name one that can be written");
  auto made = take(folder, O_CREAT);
  if (!made) return made;
  if (::lseek(made->file_.get(), 0, SEEK_END) > 0)
    return ErrorInfo{ErrorCode::kRefused, "there is a sweep of this name already",
                     "its results are in '" + folder + "'",
                     "go on with it (resume), give this one another name, or remove that folder"};
  if (const auto wrote = made->append(first_line(identity)); !wrote) return wrote.error();
  made->identity_ = identity;
  return made;
}

Result<RecordFile> RecordFile::open(const std::string& folder, const SweepIdentity& identity) {
  auto opened = take(folder, 0);
  if (!opened) return opened;
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got = 0; (got = ::read(opened->file_.get(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read '" + opened->path_ + "'", errno);
    text.append(buffer, static_cast<std::size_t>(got));
  }
  const auto whole = text.rfind('\n');
  const std::size_t kept = whole == std::string::npos ? 0 : whole + 1;
  if (kept < text.size() && ::ftruncate(opened->file_.get(), static_cast<off_t>(kept)) != 0)
    return io_error("cannot write '" + opened->path_ + "'", errno);
  for (std::size_t at = 0; at < kept;) {
    const std::size_t end = text.find('\n', at);
    opened->lines_.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (opened->lines_.empty()) {  // it died before it had begun
    if (const auto wrote = opened->append(first_line(identity)); !wrote) return wrote.error();
    opened->identity_ = identity;
    return opened;
  }
  const auto recorded = read_first_line(opened->lines_.front());
  if (!recorded) return recorded.error();
  if (const auto other = difference(*recorded, identity); !other.empty())
    return ErrorInfo{ErrorCode::kRefused, "the sweep in '" + folder + "' is another one", other,
                     "resume it with what it was begun with, give this one another name, or remove that "
                     "folder and begin anew"};
  opened->lines_.erase(opened->lines_.begin());
  opened->identity_ = *recorded;
  return opened;
}

std::string RecordFile::recorded(std::string_view key) const {
  return value_in(identity_, key);
}

Result<void> RecordFile::append(const std::string& line) {
  const std::string text = line + "\n";
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t wrote = ::write(file_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0)
      return io_error("cannot write '" + path_ + "'", errno, "make room on the disk, and resume the sweep");
    rest.remove_prefix(static_cast<std::size_t>(wrote));
  }
  unsynced_ = true;
  return {};
}

Result<void> RecordFile::sync() {
  if (!std::exchange(unsynced_, false)) return {};
  if (::fdatasync(file_.get()) != 0)
    return io_error("cannot write '" + path_ + "'", errno, "make room on the disk, and resume the sweep");
  return {};
}

}  // namespace troupe::tune
