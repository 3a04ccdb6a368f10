#include "scheduler/cli/serve.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/serve_run.hpp"
#include "scheduler/cli/serving_programs.hpp"

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostReplicas = 1000;
constexpr const char* kServeFooter =
    "A deployment is what troupe::serve::run of a program serves. Programs of this user on this machine are\n"
    "asked: run it where the program runs. troupe serve run starts one as a job of a cluster; of one that "
    "runs\n"
    "on another machine, or as another user, it changes nothing.\n"
    "  troupe serve run digits.toml            again, after a change of the file: applies what changed\n"
    "  troupe serve list\n"
    "  troupe serve scale digits 2:8           at least 2 replicas, at most 8, by load\n"
    "  troupe serve update digits new.safetensors\n"
    "  troupe serve rollback digits\n"
    "  troupe serve stop digits                what was accepted is answered first\n";

struct ServeWords {
  std::string name;
  std::string replicas;
  std::string file;
  std::string output = "table";
  int port = 0;
  int pid = 0;
  int timeout_s = 600;
};

struct Range {
  int min = 1, max = 1;
};

/// "2:8" or "3".
std::optional<Range> parse_range(std::string_view text) {
  const auto read = [](std::string_view digits, int& number) {
    const char* end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, number);
    return result.ec == std::errc() && result.ptr == end && number >= 0 && number <= kMostReplicas;
  };
  Range range;
  const std::size_t colon = text.find(':');
  if (!read(text.substr(0, colon), range.min)) return std::nullopt;
  range.max = range.min;
  if (colon != std::string_view::npos && !read(text.substr(colon + 1), range.max)) return std::nullopt;
  return range.min <= range.max && range.max >= 1 ? std::optional(range) : std::nullopt;
}

const CLI::Validator kRange(
    [](std::string& text) {
      const std::string most = std::to_string(kMostReplicas);
      return parse_range(text)
                 ? std::string()
                 : "'" + text + "' is neither MIN:MAX, with MIN from 0 and MAX from 1 to " + most +
                       " and not below MIN, nor one number of replicas, from 1 to " + most;
    },
    "MIN:MAX");

// What programs tell.

std::string shown_field(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return "-";
  return escape_name(at->is_string() ? at->get<std::string>() : at->dump());
}

/// "2 of 1:4"
std::string replicas_text(const Json& deployment) {
  const Json replicas = deployment.value("replicas", Json::object());
  const std::string min = shown_field(replicas, "min"), max = shown_field(replicas, "max");
  return shown_field(replicas, "ready") + " of " + (min == max ? min : min + ":" + max);
}

void print_row(const Json& deployment, int pid) {
  std::printf("%-24s %-9s %10s %8s %7s %9s %8d  %s\n", shown_field(deployment, "name").c_str(),
              shown_field(deployment, "state").c_str(), replicas_text(deployment).c_str(),
              shown_field(deployment, "weights").c_str(), shown_field(deployment, "queued_rows").c_str(),
              shown_field(deployment, "ongoing_requests").c_str(), pid,
              shown_field(deployment, "url").c_str());
}

void print_one(const Json& deployment, int pid) {
  const auto line = [](const char* what, const std::string& text) {
    std::printf("%-11s %s\n", what, text.c_str());
  };
  const Json replicas = deployment.value("replicas", Json::object());
  const std::string next = shown_field(deployment, "rolls_out");
  line("deployment", shown_field(deployment, "name"));
  line("url", shown_field(deployment, "url"));
  line("program", "process " + std::to_string(pid));
  line("state", shown_field(deployment, "state"));
  const auto with_origin = [&](const std::string& version, const char* key) {
    const std::string from = shown_field(deployment, key);
    return version + (from == "-" ? "" : " (" + from + ")");
  };
  line("weights", with_origin(shown_field(deployment, "weights"), "weights_from") +
                      (next == "-" ? "" : ", and " + with_origin(next, "rolls_out_from") + " roll out"));
  line("replicas", replicas_text(deployment) + " ready, " + shown_field(replicas, "wanted") + " wanted, " +
                       shown_field(replicas, "starting") + " starting, " + shown_field(replicas, "ending") +
                       " ending");
  line("pids", shown_field(replicas, "pids"));
  line("queue", shown_field(deployment, "queued_rows") + " rows");
  line("requests", shown_field(deployment, "ongoing_requests") + " without an answer");
  if (const std::string why = shown_field(deployment, "last_failure"); why != "-") line("last death", why);
}

void print_json(const Json& object) {
  std::printf("%s\n", object.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

// Programs.

struct Found {
  int pid = 0;
  Json deployment;
};

/// Every deployment of every program. `good` is false where a program does not answer: the others are told.
std::vector<Found> find_all(bool& good) {
  std::vector<Found> all;
  for (const int pid : serving_pids()) {
    const auto answer = ask_program(pid, {{"do", "status"}}, kAnswers);
    if (!answer) {
      if (answer.error().code == ErrorCode::kUnavailable) continue;  // it has just ended
      std::fprintf(stderr, "troupe: %s\n", escape_text(answer.error().message()).c_str());
      good = false;
      continue;
    }
    for (const Json& one : answer->value("deployments", Json::array()))
      if (one.is_object()) all.push_back({pid, one});
  }
  return all;
}

Found find_one(const ServeWords& words) {
  bool good = true;
  std::vector<Found> named;
  const auto all = find_all(good);
  for (const Found& one : all) {
    const bool is_it = one.deployment.value("name", Json()) == words.name;
    const bool is_there = words.port == 0 || one.deployment.value("port", Json()) == words.port;
    if (is_it && is_there && (words.pid == 0 || one.pid == words.pid)) named.push_back(one);
  }
  if (named.size() == 1) return named.front();
  if (named.empty())
    throw_error({ErrorCode::kRefused, "there is no deployment '" + words.name + "' here",
                 !good ? "a program of this user on this machine has not answered: it may be that one's"
                 : all.empty() ? "no program of this user on this machine serves"
                               : "programs of this user on this machine serve others",
                 "see troupe serve list, on the machine where its program runs"});
  std::string where;
  for (const Found& one : named)
    where += (where.empty() ? "" : ", ") + shown_field(one.deployment, "url") + " of process " +
             std::to_string(one.pid);
  throw_error({ErrorCode::kRefused, "there are several deployments '" + words.name + "'", where,
               "say which by --pid or --port"});
}

int list(const ServeWords& words) {
  bool good = true;
  const auto all = find_all(good);
  if (words.output == "json") {
    Json listed = Json::array();
    for (const Found& one : all) {
      listed.push_back(one.deployment);
      listed.back()["pid"] = one.pid;
    }
    print_json(listed);
    return good ? 0 : 1;
  }
  std::printf("%-24s %-9s %10s %8s %7s %9s %8s  %s\n", "deployment", "state", "replicas", "weights", "queued",
              "ongoing", "process", "url");
  for (const Found& one : all) print_row(one.deployment, one.pid);
  if (all.empty() && good) std::fprintf(stderr, "no program of this user serves on this machine\n");
  return good ? 0 : 1;
}

int status(const ServeWords& words) {
  Found one = find_one(words);
  if (words.output == "json") {
    one.deployment["pid"] = one.pid;
    print_json(one.deployment);
  } else {
    print_one(one.deployment, one.pid);
  }
  return 0;
}

/// Asks the deployment that is named; prints its answer as JSON, or else the line that `told` makes of it.
template <class Told>
int change(const ServeWords& words, Json question, const Told& told) {
  const Found one = find_one(words);
  question["name"] = words.name;
  question["port"] = one.deployment.value("port", Json());
  const Json answer = ask_program(one.pid, question, std::chrono::seconds(words.timeout_s)).value();
  if (words.output == "json") {
    print_json(answer);
  } else {
    std::printf("%s\n", told(answer).c_str());
  }
  return 0;
}

int scale(const ServeWords& words) {
  const Range range = *parse_range(words.replicas);
  return change(words, {{"do", "scale"}, {"min", range.min}, {"max", range.max}}, [&](const Json& answer) {
    return escape_name(words.name) + ": " + replicas_text(answer.value("deployment", Json::object())) +
           " replicas are ready";
  });
}

int update(const ServeWords& words) {
  if (::access(words.file.c_str(), R_OK) != 0)
    throw_error(io_error("cannot read '" + words.file + "'", errno, "name a file of weights"));
  const std::string path = std::filesystem::absolute(words.file).string();
  return change(words, {{"do", "update"}, {"weights", path}}, [&](const Json& answer) {
    return escape_name(words.name) + ": weights " + shown_field(answer, "version") + " answer";
  });
}

int rollback(const ServeWords& words) {
  return change(words, {{"do", "rollback"}}, [&](const Json& answer) {
    return escape_name(words.name) + ": weights " + shown_field(answer, "version") + " answer";
  });
}

int stop(const ServeWords& words) {
  return change(words, {{"do", "stop"}}, [&](const Json&) { return "stopped " + escape_name(words.name); });
}

const CLI::App* add_run(CLI::App& app, ServeRunWords& run) {
  auto* command =
      app.add_subcommand("run", "Start a program that serves as a job, as a file says, or apply its changes");
  command->footer(
      "  program = \"build/serve\"               the file, in TOML (docs/serving.md)\n"
      "  [deployments.digits]\n"
      "  weights = \"digits.safetensors\"\n"
      "  replicas = \"1:4\"\n"
      "What runs is read by its socket: of a program of this user on this machine alone.\n");
  command->add_option("file", run.file, "TOML file")->required();
  command->add_flag("--restart", run.restart,
                    "Start the program again where it cannot change while it serves");
  command->add_flag(
      "--replace", run.replace,
      "Start the program, changed, beside the one that runs: it takes its place, and no request "
      "is lost");
  command->add_flag("--detach", run.detach, "Do not wait until its deployments answer");
  command->add_option("--timeout", run.timeout_s, "Seconds to wait for it; it goes on after that")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  add_head_options(*command, run.where.folder, run.where.address);
  return command;
}

}  // namespace

int serve(int argc, char** argv) {
  CLI::App app("Shows what programs on this machine serve, and changes it while they serve", "troupe serve");
  app.footer(kServeFooter);
  app.require_subcommand(1);
  ServeWords words;
  const auto add = [&](const char* name, const char* about, bool named) {
    auto* command = app.add_subcommand(name, about);
    if (named) {
      command->add_option("name", words.name, "Of the deployment")
          ->required()
          ->check(not_empty("give a name that troupe serve list shows"));
      command->add_option("--pid", words.pid, "Of the program, where several serve one of that name")
          ->check(CLI::PositiveNumber);
      command->add_option("--port", words.port, "Where it listens, likewise")->check(CLI::Range(1, 65535));
    }
    command->add_option("-o,--output", words.output, "What is printed")
        ->capture_default_str()
        ->check(CLI::IsMember({"table", "json"}));
    return command;
  };
  const auto may_take_long = [&](CLI::App* command) {
    command->add_option("--timeout", words.timeout_s, "Seconds to wait for it; it goes on after that")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    return command;
  };
  const auto* list_command = add("list", "Deployments, with their replicas and weights", false);
  const auto* status_command = add("status", "One deployment in full", true);
  auto* scale_command = add("scale", "Let it have other numbers of replicas", true);
  scale_command->add_option("replicas", words.replicas, "The least and the most of them, or one number")
      ->required()
      ->check(kRange);
  auto* update_command = may_take_long(
      add("update", "Let other weights answer; waits until they do, and loses no request", true));
  update_command
      ->add_option("weights", words.file, "A safetensors file, or a checkpoint's manifest, of this machine")
      ->required();
  const auto* rollback_command =
      may_take_long(add("rollback", "Back to the weights from before the last update", true));
  may_take_long(
      add("stop", "Take no more requests, answer those it has, and end; the program goes on", true));
  ServeRunWords run;
  const auto* run_command = add_run(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  if (run_command->parsed()) return serve_run(run);
  if (list_command->parsed()) return list(words);
  if (status_command->parsed()) return status(words);
  if (scale_command->parsed()) return scale(words);
  if (update_command->parsed()) return update(words);
  if (rollback_command->parsed()) return rollback(words);
  return stop(words);
}

}  // namespace troupe::cli
