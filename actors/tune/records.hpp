/// What a sweep leaves on the disk: FOLDER/results.jsonl, for its owner alone, a line for what it is, then
/// one for each event that it decided on, in their order. A sweep is a function of its first line and its
/// events, so the file is enough to go on from.
///
/// ```
/// {"event":"sweep","version":1,"job":"Digits{0.01}","space":"lr log_uniform(0.0001, 0.1)",...}
/// {"event":"report","trial":3,"config":{"lr":0.01},"epoch":1,"metrics":{"test/accuracy":0.9},
///  "decision":"continue","why":"..."}
/// {"event":"failure","trial":3,"config":{...},"epoch":1,"error":"...","decision":"retry"}
/// {"event":"end","trial":3,"config":{...},"epoch":1,"state_hash":"...","decision":"stopped","why":"..."}
/// {"event":"clone","trial":5,"config":{...},"epoch":4,"from":3,"decision":"clone","why":"..."}
/// {"event":"stop","trial":6,"config":{...},"epoch":3,"decision":"stopped","why":"..."}
/// ```
/// `config` is what the trial ran with when it reported. A `clone` says what it goes on with, and from whose
/// state after which epoch; a `stop` that it ended while it was paused. They stand behind the event that led
/// to them, and are written with it.
///
/// `decision` and `why` are there to be read, and to be compared when the file is replayed. Numbers that are
/// none are the strings "nan", "inf" and "-inf". Last, and never compared, stand `began_ms` and `at_ms`: when
/// the trial's processes were started and when the event came, in milliseconds since 1970.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/tune/sweep_machine.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::tune {

/// What makes a sweep the one it is, by name: {"space", "lr log_uniform(0.0001, 0.1)"}. In order.
using SweepIdentity = std::vector<std::pair<std::string, std::string>>;

// Of the cluster that it began on, by these names, for a resume wherever that is.
inline constexpr std::string_view kCpus = "cpus";              ///< threads = 0 are chosen by them
inline constexpr std::string_view kPlaces = "max_concurrent";  ///< trials at a time

/// The first line, without its end.
std::string first_line(const SweepIdentity& identity);
/// The line of an event that was decided on, without its end. `before`: the trial, before the event.
std::string record_line(const SweepEvent& event, const Trial& before, const SweepStep& step);
/// The same, then a line for each clone and each trial that was stopped while it waited. Those are no events:
/// read_record refuses them.
std::vector<std::string> record_lines(const SweepEvent& event, const Trial& before, const SweepStep& step);

/// The line with its times, and without them.
std::string with_times(std::string line, std::int64_t began_ms, std::int64_t at_ms);
std::string without_times(std::string_view line);

/// Total. Errors (kCorrupt) say what is wrong with the line.
Result<SweepIdentity> read_first_line(std::string_view line);
Result<SweepEvent> read_record(std::string_view line);
/// What two sweeps differ in, with both sides; empty if in nothing. Not compared are "again", a command for a
/// shell that trains its trial TRIAL again, and what is of the cluster.
std::string difference(const SweepIdentity& recorded, const SweepIdentity& ours);

/// The file, open. While it is, nobody else can open it. Movable. Not thread-safe.
class RecordFile {
 public:
  /// Makes the folder and the file with its first line. Errors: kRefused where there are records, or where a
  /// sweep that runs has the folder; kIo.
  static Result<RecordFile> create(const std::string& folder, const SweepIdentity& identity);
  /// Opens what a sweep has left, and cuts off a line that was not written to its end. Errors: kRefused where
  /// there is none, where it is of another sweep (with both sides), or where a sweep that runs has the
  /// folder; kCorrupt; kIo.
  static Result<RecordFile> open(const std::string& folder, const SweepIdentity& identity);

  /// The lines behind the first one, as they were when it was opened.
  const std::vector<std::string>& lines() const { return lines_; }
  const std::string& path() const { return path_; }
  /// What the first line says under a name; empty: nothing.
  std::string recorded(std::string_view key) const;
  /// Writes the line: it survives this program. Error (kIo).
  Result<void> append(const std::string& line);
  /// Makes what was written survive the machine. Error (kIo).
  Result<void> sync();

 private:
  RecordFile(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  static Result<RecordFile> take(const std::string& folder, int flags);

  UniqueFd file_;
  std::string path_;
  SweepIdentity identity_;
  std::vector<std::string> lines_;
  bool unsynced_ = false;
};

}  // namespace troupe::tune
