// troupe flight-recorder: lines up the dumps of a group's ranks.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "collectives/flight/analysis.hpp"
#include "collectives/flight/dump_files.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/whole_file.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/flight_trace.hpp"

namespace troupe::cli {
namespace {

namespace flight = collectives::flight;
using nlohmann::json;

std::vector<flight::Dump> read_all(std::vector<std::string> paths, const std::string& folder) {
  if (paths.empty() && !folder.empty()) paths.push_back(folder + "/flight");
  if (paths.empty()) {
    paths.push_back(flight::default_flight_folder());
    if (paths.front().empty()) {
      throw BadConfig(
          "cannot find the flight recorder's dumps",
          "TROUPE_FLIGHT_FOLDER is empty, or neither it nor TROUPE_FOLDER, XDG_STATE_HOME or HOME is set",
          "name the folder or the files");
    }
  }
  std::vector<flight::Dump> dumps;
  for (const auto& path : paths) {
    for (const auto& file : flight::find_dumps(path).value())
      dumps.push_back(flight::read_dump(file).value());
  }
  return dumps;
}

json report_as_json(const flight::Report& report) {
  json findings = json::array(), table = json::array();
  for (const auto& f : report.findings) {
    findings.push_back({{"kind", flight::kFindingKindNames[static_cast<std::size_t>(f.kind)]},
                        {"sequence", f.sequence},
                        {"ranks", f.ranks},
                        {"text", f.text},
                        {"details", f.details}});
  }
  for (const auto& column : report.table)
    table.push_back({{"ranks", column.ranks}, {"first", report.first_row}, {"operations", column.cells}});
  return {{"group", report.group},
          {"generation", to_string(report.generation)},
          {"backend", report.backend},
          {"size", report.size},
          {"ranks", report.ranks},
          {"compared_from", report.compared_from},
          {"agreed_through", report.agreed_through},
          {"diverged", !report.findings.empty()},
          {"findings", findings},
          {"notes", report.notes},
          {"table", table}};
}

int write_trace(const FlightRecorderOptions& options) {
  const auto dumps = read_all(options.paths, options.folder);
  std::size_t operations = 0;
  for (const auto& dump : dumps) operations += dump.operations.size();
  write_whole(options.trace, trace_of(dumps)).value();
  std::printf("%s: %s of %s; open it in ui.perfetto.dev or chrome://tracing\n",
              escape_text(options.trace).c_str(), count_of(operations, "operation").c_str(),
              count_of(dumps.size(), "dump").c_str());
  return 0;
}

}  // namespace

int flight_recorder(const FlightRecorderOptions& options) {
  std::vector<flight::Report> reports;
  try {
    if (!options.trace.empty()) return write_trace(options);
    reports = flight::analyse(read_all(options.paths, options.folder), options.last);
  } catch (const Error& error) {
    std::fprintf(stderr, "troupe: %s\n", escape_text(error.what()).c_str());
    return 2;
  }
  const std::size_t shown = options.all ? reports.size() : 1;
  bool diverged = false;
  json all = json::array();
  std::string text;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (i < shown) {
      diverged = diverged || !reports[i].findings.empty();
      all.push_back(report_as_json(reports[i]));
      text += (i == 0 ? "" : "\n") + flight::to_text(reports[i]);
    } else {
      text += (i == shown ? "\nolder, in full with --all:\n  " : "  ") + flight::to_line(reports[i]) + "\n";
    }
  }
  if (options.json) text = all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
  return diverged ? 1 : 0;
}

}  // namespace troupe::cli
