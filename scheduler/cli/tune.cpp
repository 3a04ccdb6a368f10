#include "scheduler/cli/tune.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "runtime/core/count.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/wait_readable.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/sweep_page.hpp"
#include "scheduler/cli/sweep_records.hpp"

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kEnds = std::chrono::seconds(60);
constexpr const char* kTuneFooter =
    "A sweep keeps its records in FOLDER/NAME (.folder and .name of tune::SweepOptions).\n"
    "  troupe tune show digits                 the trials, the best first\n"
    "  troupe tune show digits -o csv          a row for each report\n"
    "  troupe tune page digits                 curves and coordinates as one HTML file, to be opened "
    "anywhere\n"
    "  troupe tune best digits -o json         the best trial's fields\n";

struct TuneWords {
  std::string folder = "results";
  std::string name;
  std::string output = "table";
  std::string file;
};

std::string dump(const Json& object, int indent = -1) {
  return object.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// A field's or a figure's value, without the quotes of a text.
std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump(value);
}
std::string rounded(const Json& value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value.is_number() ? value.get<double>() : 0.0);
  return value.is_number_float() ? text : plain(value);
}

std::string value_text(const SweepRecords& sweep, std::optional<double> value) {
  if (!value) return "-";
  if (std::isnan(*value)) return "nan";
  char text[64];
  const bool share = sweep.metric.ends_with("accuracy");
  std::snprintf(text, sizeof text, share ? "%.2f %%" : "%.4g", share ? 100 * *value : *value);
  return text;
}

std::string config_text(const Json& config) {
  std::string text;
  for (const auto& [name, value] : config.items())
    text += (text.empty() ? "" : " ") + name + "=" + rounded(value);
  return escape_name(text);
}

std::string time_text(std::int64_t ms) {
  const std::time_t seconds = ms / 1000;
  std::tm parts{};
  char text[32];
  return ms != 0 && ::localtime_r(&seconds, &parts) != nullptr &&
                 std::strftime(text, sizeof text, "%F %T", &parts) > 0
             ? text
             : "-";
}

Json number_or_null(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json as_json(const TrialRecord& trial) {
  Json clones = Json::array();
  for (const CloneRecord& clone : trial.clones) {
    clones.push_back({{"from", clone.from},
                      {"epoch", clone.epoch},
                      {"config", clone.config},
                      {"before",
                       {{"config", clone.old_config},
                        {"epoch", clone.old_epoch},
                        {"value", number_or_null(clone.old_value)}}}});
  }
  return {{"trial", trial.number},
          {"config", trial.config},
          {"state", trial.state},
          {"epoch", trial.epoch},
          {"value", number_or_null(trial.value)},
          {"why", trial.why},
          {"clones", clones},
          {"state_hash", trial.state_hash}};
}

Json as_json(const RepeatsRecord& config) {
  const bool has_value = config.trials > 0;
  return {{"config", config.config},
          {"first_trial", config.first},
          {"trials", config.trials},
          {"mean", has_value ? number_or_null(config.mean) : Json()},
          {"deviation", has_value ? number_or_null(config.deviation) : Json()}};
}

/// "96.10 % with a deviation of 0.42 % over 3 trials".
std::string mean_text(const SweepRecords& sweep, const RepeatsRecord& config) {
  if (config.trials == 0) return "no result";
  return value_text(sweep, config.mean) + " with a deviation of " + value_text(sweep, config.deviation) +
         " over " + count_of(config.trials, "trial");
}
}  // namespace

Json as_json(const SweepRecords& sweep) {
  const TrialRecord* best = sweep.best();
  std::map<std::string, int> states;
  for (const TrialRecord& trial : sweep.trials) ++states[trial.state];
  Json object{{"name", sweep.name},
              {"state", sweep.state()},
              {"states", states},
              {"pid", sweep.pid == 0 ? Json() : Json(sweep.pid)},
              {"metric", sweep.metric},
              {"mode", sweep.more_is_better ? "max" : "min"},
              {"trials", sweep.wanted},
              {"ended", sweep.ended()},
              {"best", best == nullptr ? Json() : as_json(*best)}};
  if (sweep.repeats == 1) return object;
  const auto config = sweep.best_repeated();
  object["repeats"] = sweep.repeats;
  object["best_config"] = config ? as_json(*config) : Json();
  return object;
}

namespace {

/// What the best came to: a mean where configs are repeated.
std::string best_text(const SweepRecords& sweep) {
  if (const auto config = sweep.best_repeated())
    return escape_name(sweep.metric) + " " + mean_text(sweep, *config);
  const TrialRecord* best = sweep.best();
  return best == nullptr ? "-" : escape_name(sweep.metric) + " " + value_text(sweep, best->value);
}

int list(const TuneWords& words) {
  Json all = Json::array();
  const auto names = sweeps_in(words.folder);
  if (words.output == "table")
    std::printf("%-28s %-12s %11s %-20s %s\n", "sweep", "state", "trials", "last event", "best");
  bool good = true;
  for (const std::string& name : names) {
    const auto sweep = read_sweep(words.folder, name);
    if (!sweep) {  // the others are shown
      std::fprintf(stderr, "troupe: %s\n", escape_text(sweep.error().message()).c_str());
      good = false;
      continue;
    }
    if (words.output == "json") all.push_back(as_json(*sweep));
    if (words.output == "json") continue;
    const std::string trials = std::to_string(sweep->ended()) + "/" + std::to_string(sweep->wanted);
    std::printf("%-28s %-12s %11s %-20s %s\n", escape_name(name).c_str(), sweep->state().c_str(),
                trials.c_str(), time_text(sweep->changed_ms).c_str(), best_text(*sweep).c_str());
  }
  if (words.output == "json") std::printf("%s\n", dump(all, 2).c_str());
  if (names.empty() && words.output == "table")
    std::fprintf(stderr, "no sweep in '%s': name the folder where its program keeps records (--folder)\n",
                 escape_name(words.folder).c_str());
  return good ? 0 : 1;
}

std::string csv_cell(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

/// A row for each report and each clone, with a column for each field and figure that any of them has.
int print_csv(const SweepRecords& sweep) {
  std::vector<std::string> fields, figures;
  bool clones = false;
  const auto is_clone = [](const Json& line) { return line.value("event", "") == "clone"; };
  const auto collect = [](const Json& line, const char* key, std::vector<std::string>& names) {
    if (!line.contains(key)) return;
    for (const auto& [name, value] : line[key].items())
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const Json& line : sweep.lines) {
    collect(line, "config", fields);
    collect(line, "metrics", figures);
    clones = clones || is_clone(line);
  }
  std::vector<std::string> columns{"trial", "epoch", "decision", "began_ms", "at_ms"};
  if (clones) columns.push_back("from");
  std::string header;
  for (const auto& name : columns) header += (header.empty() ? "" : ",") + name;
  for (const auto& name : fields) header += "," + csv_cell(name);
  for (const auto& name : figures) header += "," + csv_cell(name);
  std::printf("%s\n", header.c_str());
  for (const Json& line : sweep.lines) {
    if (line.value("event", "") != "report" && !is_clone(line)) continue;
    std::string row;
    for (const std::string& key : columns)
      row += (row.empty() ? "" : ",") + csv_cell(line.contains(key) ? plain(line[key]) : "");
    const auto add = [&](const char* key, const std::vector<std::string>& names) {
      for (const auto& name : names)
        row += "," + csv_cell(line.contains(key) && line[key].contains(name) ? plain(line[key][name]) : "");
    };
    add("config", fields);
    add("metrics", figures);
    std::printf("%s\n", row.c_str());
  }
  return 0;
}

void print_trial(const SweepRecords& sweep, const TrialRecord& trial) {
  std::printf("%6d  %6d  %12s  %-9s  %s%s%s\n", trial.number, trial.epoch,
              value_text(sweep, trial.value).c_str(), trial.state.c_str(), config_text(trial.config).c_str(),
              trial.why.empty() ? "" : "  · ", escape_name(trial.why).c_str());
  for (const CloneRecord& clone : trial.clones)
    std::printf("%34s clone of trial %d after epoch %d, as %s; before: %s, %s after epoch %d\n", "·",
                clone.from, clone.epoch, config_text(clone.config).c_str(),
                config_text(clone.old_config).c_str(), value_text(sweep, clone.old_value).c_str(),
                clone.old_epoch);
}

int show(const TuneWords& words) {
  const auto sweep = read_sweep(words.folder, words.name).value();
  if (words.output == "csv") return print_csv(sweep);
  auto trials = sweep.trials;
  std::stable_sort(trials.begin(), trials.end(),
                   [&](const auto& a, const auto& b) { return sweep.is_better(a, b); });
  if (words.output == "json") {
    Json object = as_json(sweep);
    object["all"] = Json::array();
    for (const TrialRecord& trial : trials) object["all"].push_back(as_json(trial));
    for (const RepeatsRecord& config : sweep.repeated()) object["configs"].push_back(as_json(config));
    std::printf("%s\n", dump(object, 2).c_str());
    return 0;
  }
  for (const auto& [key, value] : sweep.lines.front().items()) {
    if (value.is_string() && key != "event" && key != "again")
      std::printf("%-10s %s\n", key.c_str(), escape_name(value.get<std::string>()).c_str());
  }
  std::printf("%-10s %s, %d of %d trials have ended\n\n", "state", sweep.state().c_str(), sweep.ended(),
              sweep.wanted);
  std::printf("%6s  %6s  %12s  %-9s  %s\n", "trial", "epoch", "value", "state", "fields");
  for (const TrialRecord& trial : trials) print_trial(sweep, trial);
  auto configs = sweep.repeated();
  std::stable_sort(configs.begin(), configs.end(),
                   [&](const auto& a, const auto& b) { return sweep.is_better(a, b); });
  if (!configs.empty()) std::printf("\nEach config %d times, the best first:\n", sweep.repeats);
  for (const RepeatsRecord& config : configs)
    std::printf("  %s: %s\n", config_text(config.config).c_str(), mean_text(sweep, config).c_str());
  return 0;
}

/// What trains a trial again; empty: it was cloned, the records do not say, or it has no state to come to.
std::string command_of(const SweepRecords& sweep, const TrialRecord& trial) {
  const auto at = sweep.lines.front().find("again");
  if (at == sweep.lines.front().end() || !at->is_string() || !trial.clones.empty()) return "";
  if (trial.state_hash.empty() || !trial.value || std::isnan(*trial.value)) return "";
  std::string command = *at;
  const auto slot = command.find(":TRIAL", command.find(" && TROUPE_TRIAL="));  // behind the folder
  return slot == std::string::npos ? "" : command.replace(slot + 1, 5, std::to_string(trial.number));
}

int best(const TuneWords& words) {
  const auto sweep = read_sweep(words.folder, words.name).value();
  const TrialRecord* best = sweep.best();
  if (best == nullptr)
    throw_error({ErrorCode::kRefused, "the sweep '" + words.name + "' has no best trial",
                 "none has come to its end", "wait for one, or see troupe tune show"});
  const std::string weights =
      words.folder + "/" + words.name + "/trial-" + std::to_string(best->number) + ".safetensors";
  const bool has_weights = ::access(weights.c_str(), R_OK) == 0;
  const std::string again = command_of(sweep, *best);
  if (words.output == "json") {
    Json object = as_json(*best);
    object["weights"] = has_weights ? Json(weights) : Json();
    object["again"] = again.empty() ? Json() : Json(again);
    if (const auto config = sweep.best_repeated()) object["repeats"] = as_json(*config);
    std::printf("%s\n", dump(object, 2).c_str());
    return 0;
  }
  std::printf("trial %d: %s %s after epoch %d\n", best->number, escape_name(sweep.metric).c_str(),
              value_text(sweep, best->value).c_str(), best->epoch);
  if (const auto config = sweep.best_repeated())
    std::printf("its config: %s %s\n", escape_name(sweep.metric).c_str(), mean_text(sweep, *config).c_str());
  for (const auto& [name, value] : best->config.items())
    std::printf("  %s = %s\n", escape_name(name).c_str(), escape_name(plain(value)).c_str());
  std::printf("state %s\n", best->state_hash.c_str());
  if (has_weights) std::printf("weights %s\n", escape_name(weights).c_str());
  if (!again.empty()) std::printf("again %s\n", escape_name(again).c_str());
  if (!best->clones.empty())
    std::printf(
        "no command trains it again alone: it goes on from the state of trial %d (troupe tune show)\n",
        best->clones.back().from);
  return 0;
}

/// SIGTERM, which ends it as Ctrl-C does: what runs is dropped, and the sweep can be resumed. (A shell that
/// starts a program in the background has it ignore SIGINT.)
int stop(const TuneWords& words) {
  const auto sweep = read_sweep(words.folder, words.name).value();
  const UniqueFd pidfd(sweep.pid == 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, sweep.pid, 0)));
  // The number may be another process's by now: the lock says whether it is still the sweep's.
  if (!pidfd || holder_of_lock(sweep.path) != sweep.pid) {
    std::printf("sweep %s does not run here\n", escape_name(words.name).c_str());
    return 0;
  }
  if (::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGTERM, nullptr, 0) != 0)
    throw_error(io_error("cannot stop process " + std::to_string(sweep.pid), errno, "run as its owner"));
  if (!wait_readable(pidfd.get(), kEnds))
    throw_error({ErrorCode::kTimeout, "sweep " + words.name + " has not ended",
                 "process " + std::to_string(sweep.pid) + " was told to, 60 s ago",
                 "look at its output, or kill it: the sweep can be resumed either way"});
  if (const auto after = read_sweep(words.folder, words.name); after && after->state() == "done") {
    std::printf("sweep %s has ended by itself: all its trials are over\n", escape_name(words.name).c_str());
    return 0;
  }
  std::printf("stopped sweep %s (process %d): it can be resumed\n", escape_name(words.name).c_str(),
              sweep.pid);
  return 0;
}

}  // namespace

/// Text of users is inside, so nothing of it may end the script element. The command is not: a page is sent
/// to others, and it may name a token.
std::string page_of(const SweepRecords& sweep) {
  Json lines = sweep.lines;
  if (!lines.empty()) lines.front().erase("again");
  std::string records = dump({{"name", sweep.name}, {"lines", std::move(lines)}});
  std::string safe;
  for (const char c : records) safe += c == '<' ? std::string("\\u003c") : std::string(1, c);
  std::string page(kSweepPage);
  constexpr std::string_view kSlot = "@RECORDS@";
  return page.replace(page.find(kSlot), kSlot.size(), safe);
}

namespace {

int page(TuneWords words) {
  const auto sweep = read_sweep(words.folder, words.name).value();
  if (words.file.empty()) words.file = words.folder + "/" + words.name + "/page.html";
  const std::string text = page_of(sweep);
  std::FILE* file = words.file == "-" ? stdout : std::fopen(words.file.c_str(), "we");
  if (file == nullptr)
    throw_error(io_error("cannot write '" + words.file + "'", errno, "give --output FILE"));
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file == stdout) return wrote ? 0 : 1;
  if (std::fclose(file) != 0 || !wrote)
    throw_error(io_error("cannot write '" + words.file + "'", errno, "is the disk full?"));
  std::printf("%s\n", words.file.c_str());
  return 0;
}

}  // namespace

int tune(int argc, char** argv) {
  CLI::App app("Shows what sweeps have written down, and stops them", "troupe tune");
  app.footer(kTuneFooter);
  app.require_subcommand(1);
  TuneWords words;
  const auto add = [&](const char* name, const char* about, bool named, std::vector<std::string> outputs) {
    auto* command = app.add_subcommand(name, about);
    if (named)
      command->add_option("name", words.name, "Of the sweep")
          ->required()
          ->check(not_empty("give a name that troupe tune list shows"));
    command->add_option("--folder", words.folder, "Where sweeps keep their records")
        ->capture_default_str()
        ->check(not_empty());
    if (!outputs.empty())
      command->add_option("-o,--output", words.output, "What is printed")
          ->capture_default_str()
          ->check(CLI::IsMember(std::move(outputs)));
    return command;
  };
  auto* list_command = add("list", "Sweeps, with how far they are", false, {"table", "json"});
  auto* show_command = add("show", "A sweep's trials, the best first", true, {"table", "json", "csv"});
  auto* best_command = add("best", "The best trial: fields, state, weights", true, {"table", "json"});
  const auto* stop_command = add("stop", "End the program that sweeps, as Ctrl-C does", true, {});
  auto* page_command = add("page", "Write a sweep as one HTML file, with pictures", true, {});
  page_command->add_option("-o,--output", words.file,
                           "Where to; - is standard output [default: FOLDER/NAME/page.html]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  if (list_command->parsed()) return list(words);
  if (show_command->parsed()) return show(words);
  if (best_command->parsed()) return best(words);
  if (stop_command->parsed()) return stop(words);
  return page(words);
}

}  // namespace troupe::cli
