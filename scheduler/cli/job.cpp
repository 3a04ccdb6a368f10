// troupe job: submitted jobs. What is asked of the head is scheduler/jobs; here are words, tables and exit
// codes.
#include "scheduler/cli/job.hpp"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/count.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/job_names.hpp"
#include "scheduler/cli/parked_jobs.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/cluster/submission_table.hpp"
#include "scheduler/jobs/job_client.hpp"
#include "scheduler/jobs/local_checks.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr const char* kJobFooter =
    "A job is any program, with its arguments as they are (no shell). It runs on a node that has the CPUs "
    "and\n"
    "GPUs asked for, and waits while none has (troupe job why ID). A program that uses troupe "
    "joins\n"
    "the cluster through that node.\n"
    "  troupe job submit -- mnist --trainers 2          follows its output, exits with its code\n"
    "  troupe job submit --detach -- python3 prepare.py prints the job's id alone\n"
    "  troupe job logs --follow ID\n"
    "States: QUEUED, STARTING, RUNNING, STOPPING, SUCCEEDED, FAILED, STOPPED; PARKED is a job name of which\n"
    "no program runs, but detached actors stay (troupe job stop NAME ends them).\n";

struct JobWords {
  JobClientOptions where;
  JobSpec spec;
  std::vector<std::string> environment;
  std::vector<std::string> ids;  ///< or names
  std::string output;
  bool detach = false;
  OutputOptions reading;
  std::string since;
  ResourceWords other;
  std::string state;  ///< of those that are listed
  std::int64_t limit = 0;
};

/// Set by SIGINT and SIGTERM while output is followed.
std::atomic<int> interrupted{0};

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { interrupted = signal; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

/// Everything, or a thrown IoError: a pipe that is closed ends the command.
void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EPIPE) {  // `| head`: it ends as any other command, and says nothing
      std::signal(SIGPIPE, SIG_DFL);
      std::raise(SIGPIPE);
    }
    if (wrote <= 0)
      throw_error(io_error("cannot write the output", errno, "is its reader gone, or the disk full?"));
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string entrypoint(const JobInfo& job) {
  std::string text;
  for (const std::string& word : job.program) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

std::string time_of(std::int64_t ms) {
  if (ms == 0) return "-";
  const std::time_t seconds = ms / 1000;
  std::tm parts{};
  char text[32];
  return ::localtime_r(&seconds, &parts) != nullptr && std::strftime(text, sizeof text, "%F %T", &parts) > 0
             ? text
             : "?";
}

/// Of a job that has not ended it is that of the attempt before.
std::optional<int> exit_code_of(const JobInfo& job, bool ended) {
  return job.has_ended() == ended ? job.driver_exit_code : std::nullopt;
}

}  // namespace

void take_output(const JobOutput& output) {
  if (output.stream == JobOutput::kOutput) return write_all(STDOUT_FILENO, output.bytes);
  write_all(STDERR_FILENO, (output.stream == JobOutput::kNote ? "troupe: " : "") + output.bytes);
}

void say_line(const std::string& line) {
  write_all(STDERR_FILENO, "troupe: " + line + "\n");
}

json as_json(const JobInfo& job) {
  json metadata = json::object();
  if (!job.name.empty()) metadata["job_name"] = job.name;
  const auto number = [](std::int64_t value) { return value == 0 ? json() : json(value); };
  const auto code = [&](bool ended) {
    const auto one = exit_code_of(job, ended);
    return one ? json(*one) : json();
  };
  return {{"type", "SUBMISSION"},
          {"submission_id", job.id},
          {"entrypoint", entrypoint(job)},
          {"status", to_string(job.status)},
          {"message", job.why},
          {"start_time", number(job.started_ms)},
          {"end_time", number(job.ended_ms)},
          {"metadata", metadata},
          {"driver_exit_code", code(true)},
          {"last_attempt_exit_code", code(false)},
          {"driver_node_id", job.node_id.empty() ? json() : json(job.node_id)},
          {"entrypoint_num_cpus", job.num_cpus},
          {"entrypoint_num_gpus", job.num_gpus},
          {"entrypoint_memory", job.memory},
          {"entrypoint_resources", json(job.resources)},
          {"entrypoint_label_selector", json(job.labels)},
          {"submit_time", job.submitted_ms},
          {"attempt", job.attempt},
          {"retries", job.retries},
          {"priority", job.priority},
          {"queue", job.queue},
          {"driver_node_name", job.node.empty() ? json() : json(job.node)}};
}

json as_json(const JobQueue& queue) {
  const auto quota = [](const auto& limit) { return limit ? json(*limit) : json(); };
  return {{"queue", queue.name},
          {"cpus", quota(queue.cpus)},
          {"gpus", quota(queue.gpus)},
          {"memory", quota(queue.memory)},
          {"resources", json(queue.resources)},
          {"weight", queue.weight},
          {"cpus_used", queue.cpus_used},
          {"gpus_used", queue.gpus_used},
          {"memory_used", queue.memory_used},
          {"resources_used", json(queue.resources_used)},
          {"share", queue.share},
          {"waits", queue.waits},
          {"runs", queue.runs}};
}

json as_json(const JobReport& report) {
  json all = as_json(report.job);
  all["verdict"] = report.verdict;
  all["position"] = report.position == 0 ? json() : json(report.position);
  all["ahead"] = report.ahead;
  all["limiting"] = json::array();
  for (const auto& r : report.resources) {
    all["limiting"].push_back({{"resource", r.name},
                               {"need", r.need},
                               {"most_free_on_one_node", r.most_free},
                               {"most_on_one_node", r.most},
                               {"free_total", r.free},
                               {"total", r.total}});
  }
  all["nodes"] = json::array();
  for (const auto& node : report.nodes) all["nodes"].push_back({{"node", node.name}, {"lacks", node.lacks}});
  all["more_nodes"] = report.more_nodes;
  all["blockers"] = json::array();
  for (const auto& h : report.holders)
    all["blockers"].push_back({{"job", h.job},
                               {"node", h.node},
                               {"what", h.what},
                               {"num_cpus", h.num_cpus},
                               {"num_gpus", h.num_gpus},
                               {"memory", h.memory},
                               {"resources", json(h.resources)}});
  all["queues"] = json::array();
  for (const JobQueue& queue : report.queues) all["queues"].push_back(as_json(queue));
  return all;
}

namespace {

std::string last_line(const JobInfo& job) {
  return "job " + job.id + " " + to_string(job.status) + ": " + escape_name(job.why) + "\n";
}

/// Whether to stop the job (true) or to leave it alone. Asked on a terminal alone: elsewhere the job goes on.
bool shall_stop(const std::string& id) {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return false;
  std::fprintf(stderr, "\nstop job %s, or detach and let it run? [s/d] ", id.c_str());
  std::fflush(stderr);
  char answer = 0;
  if (::read(STDIN_FILENO, &answer, 1) != 1) return false;  // a second Ctrl-C detaches, too
  return answer == 's' || answer == 'S';
}

int follow(JobClient& jobs, const std::string& id, OutputOptions reading, bool attached) {
  reading.is_enough = [] { return interrupted != 0; };
  JobInfo job = jobs.read_output(id, reading, take_output);
  if (interrupted != 0 && !job.has_ended()) {
    if (attached && shall_stop(id)) {
      interrupted = 0;
      jobs.stop(id);
      job = jobs.read_output(id, {.follow = true, .tail = 0, .is_enough = reading.is_enough}, take_output);
    }
    if (!job.has_ended()) {
      write_all(STDERR_FILENO, "job " + id + " goes on: troupe job logs --follow " + id +
                                   " follows it, troupe job stop " + id + " ends it\n");
      return attached ? 128 + (interrupted == 0 ? SIGINT : interrupted.load()) : 0;
    }
  }
  write_all(STDERR_FILENO, last_line(job));
  return attached ? job.exit_code : 0;
}

/// What no head takes, wherever it is and whatever it knows.
void check_values(JobWords& words) {
  for (const std::string& entry : words.environment) {
    const auto at = entry.find('=');
    if (at == 0 || at == std::string::npos) {
      throw_error({ErrorCode::kBadInput, "cannot submit the job",
                   "'" + escape_name(entry) + "' is no NAME=VALUE", "write --env NAME=VALUE"});
    }
    words.spec.env[entry.substr(0, at)] = entry.substr(at + 1);
  }
  words.spec.memory = words.other.bytes_or(0);
  words.spec.resources = words.other.amounts();
  words.spec.labels = words.other.label_map();
  JobSpec values = words.spec;
  static_cast<void>(submission_of(values));
}

int submit(JobWords& words) {
  try {
    check_values(words);
  } catch (const Error& error) {
    std::fprintf(stderr, "troupe: %s\n", escape_text(error.what()).c_str());
    return 2;
  }
  JobClient jobs(words.where);
  // A signal ends the command, until there may be a job that would go on unsaid.
  const auto watch = words.detach ? std::function<void()>() : watch_interrupts;
  const std::string id = jobs.submit(words.spec, say_line, watch);
  if (words.detach) {
    std::printf("%s\n", id.c_str());
    return 0;
  }
  write_all(STDERR_FILENO, "job " + id + " is submitted\n");
  return follow(jobs, id, {.follow = true}, true);
}

int list_parked(const JobWords& words, json list) {
  const bool is_meant = (words.state.empty() || words.state == "PARKED") && words.spec.queue.empty();
  const auto all = is_meant ? ask_status(words.where.folder, words.where.address) : wire::StatusAnswer{};
  for (const auto& job : all.jobs) {
    if (!job.parked) continue;
    if (words.output == "json") {
      list.push_back(parked_as_json(all, job));
    } else {
      std::printf("%-22s %-16s %-12s %-10s %s\n", job.submission.empty() ? "-" : job.submission.c_str(),
                  escape_name(job.name).c_str(), "-", "PARKED", escape_name(why_parked(all, job)).c_str());
    }
  }
  if (words.output == "json") print_json(list);
  return 0;
}

int list(const JobWords& words) {
  JobClient jobs(words.where);
  auto all = jobs.list();
  const std::size_t there = all.size();
  std::erase_if(all, [&](const JobInfo& job) {
    return (!words.state.empty() && words.state != to_string(job.status)) ||
           (!words.spec.queue.empty() && words.spec.queue != job.queue);
  });
  const std::size_t found = all.size();
  if (words.limit > 0 && found > static_cast<std::size_t>(words.limit))
    all.resize(static_cast<std::size_t>(words.limit));
  say_left_out(found - all.size());
  if (found == 0 && there > 0 && words.state != "PARKED") {
    std::string queues;
    for (const JobQueue& queue : jobs.queues()) queues += (queues.empty() ? "" : ", ") + queue.name;
    say_none("job", there, words.spec.queue.empty() ? "" : "the queues are " + queues);
  }
  if (words.output == "json") {
    json list = json::array();
    for (const JobInfo& job : all) list.push_back(as_json(job));
    return list_parked(words, std::move(list));
  }
  std::printf("%-22s %-16s %-12s %-10s %5s %-16s %-20s %s\n", "job", "name", "queue", "state", "code", "node",
              "submitted", "program");
  for (const JobInfo& job : all) {
    const auto ended_with = exit_code_of(job, true);
    const std::string code = ended_with ? std::to_string(*ended_with) : "-";
    std::printf("%-22s %-16s %-12s %-10s %5s %-16s %-20s %s\n", job.id.c_str(), escape_name(job.name).c_str(),
                job.queue.c_str(), to_string(job.status), code.c_str(), job.node.c_str(),
                time_of(job.submitted_ms).c_str(), shown_name(entrypoint(job)).c_str());
  }
  return list_parked(words, {});
}

/// What a program of troupe is called among the programs that have joined, and in troupe actor list.
std::vector<const cluster::JobRecord*> sessions_of(const std::string& id, const wire::StatusAnswer& all) {
  std::vector<const cluster::JobRecord*> found;
  for (const auto& job : all.jobs) {
    if (job.submission == id) found.push_back(&job);
  }
  return found;
}

void print(const JobInfo& job) {
  const auto line = [](const char* what, const std::string& text) {
    std::printf("%-12s %s\n", what, text.c_str());
  };
  line("job", escape_name(job.id));
  if (!job.name.empty()) line("name", escape_name(job.name));
  line("program", escape_name(entrypoint(job)));
  line("queue", job.queue);
  line("state", to_string(job.status));
  line("why", escape_name(job.why));
  if (const auto code = exit_code_of(job, true)) line("exit code", std::to_string(*code));
  if (const auto code = exit_code_of(job, false)) line("last attempt", "exit code " + std::to_string(*code));
  if (!job.node.empty()) line("node", job.node + " (" + job.node_id + ")");
  if (job.attempt > 1 || job.retries > 0)
    line("attempt", std::to_string(job.attempt) + " of " + std::to_string(job.retries + 1));
  line("submitted", time_of(job.submitted_ms));
  line("started", time_of(job.started_ms));
  line("ended", time_of(job.ended_ms));
}

/// With how far its package is, which its node alone knows.
void add_package(const JobWords& words, const JobInfo& job, std::string& why) {
  try {
    if (const std::string text = package_on_its_way(words.where, job); !text.empty()) why += "; " + text;
  } catch (const Error&) {  // the head went meanwhile: the job's record is what is known
  }
}

int show(const JobWords& words, JobInfo job) {
  add_package(words, job, job.why);
  wire::StatusAnswer all;
  std::vector<SeenProcess> processes;
  if (job.attempt > 0) {
    try {
      all = ask_status(words.where.folder, words.where.address);
      if (!job.has_ended()) processes = processes_of(job.id, all, ask_processes(words.where, all));
    } catch (const Error& error) {  // of a head that went meanwhile, the job's record is what is known
      std::fprintf(stderr, "troupe: its programs are not shown: %s\n", escape_text(error.what()).c_str());
    }
  }
  if (words.output == "json") {
    json shown = as_json(job);
    shown["sessions"] = json::array();
    for (const auto* session : sessions_of(job.id, all)) {
      shown["sessions"].push_back(
          {{"name", session->name}, {"id", to_string(session->job)}, {"ended", session->ended}});
    }
    shown["processes"] = as_json(all, processes);
    print_json(shown);
  } else {
    print(job);
    for (const auto* session : sessions_of(job.id, all))
      std::printf("%-12s %s (%s)%s\n", "session", escape_name(session->name).c_str(),
                  to_string(session->job).c_str(),
                  session->parked  ? (", which is parked: " + escape_name(why_parked(all, *session))).c_str()
                  : session->ended ? ", which has ended"
                                   : "");
    print_processes(all, processes);
  }
  return 0;
}

int explain(const JobWords& words, JobReport report) {
  add_package(words, report.job, report.sentence);
  report.job.why = report.sentence;
  if (words.output == "json") {
    print_json(as_json(report));
    return 0;
  }
  std::printf("job %s %s: %s\n", report.job.id.c_str(), to_string(report.job.status),
              escape_name(report.sentence).c_str());
  for (const auto& node : report.nodes) {
    std::string lacks;
    for (const std::string& one : node.lacks) lacks += (lacks.empty() ? "lacks " : "; ") + one;
    std::printf("  %-16s %s\n", escape_name(node.name).c_str(),
                lacks.empty() ? "has the room" : lacks.c_str());
  }
  if (report.more_nodes > 0)
    std::printf("  and %s that lack%s no less\n", count_of(report.more_nodes, "node").c_str(),
                report.more_nodes == 1 ? "s" : "");
  return 0;
}

/// All of them, also where one cannot be stopped.
int stop(JobClient& jobs, const std::vector<std::string>& names) {
  int code = 0;
  for (const std::string& name : names) {
    try {
      const std::string id = job_called(jobs, name);
      std::printf("%s", last_line(jobs.stop(id.empty() ? name : id)).c_str());
    } catch (const Error& error) {
      if (names.size() == 1) throw;
      std::fprintf(stderr, "troupe: %s\n", escape_text(error.what()).c_str());
      code = 1;
    }
  }
  return code;
}

struct Commands {
  CLI::App* submit = nullptr;
  CLI::App* list = nullptr;
  CLI::App* status = nullptr;
  CLI::App* why = nullptr;
  CLI::App* logs = nullptr;
  CLI::App* stop = nullptr;
  CLI::App* wait = nullptr;
};

Commands add_commands(CLI::App& app, JobWords& words) {
  Commands all;
  const auto add = [&](const char* name, const std::string& example, const char* about) {
    auto* command = app.add_subcommand(name, about);
    command->footer(example + "\n");
    add_head_options(*command, words.where.folder, words.where.address);
    return command;
  };
  const auto with_ids = [&](CLI::App* command, const char* what) {
    const auto check = not_empty("give an id or a name that troupe job list shows");
    return command->add_option("id", words.ids, what)->required()->check(check);
  };
  const auto of_one = [&](CLI::App* command) { with_ids(command, "The job's id, or its name")->expected(1); };
  const auto with_output = [&](CLI::App* command) {
    command->add_option("-o,--output", words.output, "table, or json for programs, with Ray's field names")
        ->check(CLI::IsMember({"table", "json"}));
  };
  all.submit = add("submit", "  troupe job submit --name sums --num-cpus 2 --retries 1 -- python3 sums.py",
                   "Submit a job");
  end_usage_with(*all.submit, "-- PROGRAM [args...]");
  all.submit->add_option("--name", words.spec.name, "For people; no two jobs that have not ended share one");
  all.submit->add_flag("--replace", words.spec.replace, "Stop the job of its name first, and await its end");
  all.submit->add_option("--id", words.spec.id,
                         "Submitted twice under one id, a job runs once [default: a new one]");
  all.submit->add_option(
      "--working-dir", words.spec.working_dir,
      "A folder of this machine: it travels, and the job runs in its copy [default: an empty one]");
  all.submit->add_option("--node-dir", words.spec.node_dir,
                         "Instead: where it runs, a folder that every node has; nothing travels");
  all.submit->add_flag("--with-libraries", words.spec.with_libraries,
                       "The shared libraries that the program needs travel with it, but the C library's");
  all.submit->add_option("--env", words.environment, "NAME=VALUE, as often as need be")->take_all();
  all.submit->add_option("--num-cpus", words.spec.num_cpus, "CPUs that the program itself holds")
      ->capture_default_str()
      ->check(number_of("CPUs", 1'000'000));
  all.submit->add_option("--num-gpus", words.spec.num_gpus, "GPUs that it holds, and sees")
      ->capture_default_str()
      ->check(number_of("GPUs", 1'000'000));
  add_resource_options(*all.submit, words.other,
                       {"Memory that it holds, as 512MiB: it is ended if it has more when its node is short",
                        "NAME=AMOUNT of a custom resource that it holds, as often as need be",
                        "KEY=VALUE: it runs on a node with that label alone; as often as need be"});
  all.submit->add_option("--retries", words.spec.retries, "How often it is started again when it fails")
      ->capture_default_str()
      ->check(whole_number(0, cluster::kMaxRetries));
  all.submit
      ->add_option("--priority", words.spec.priority,
                   "Of its queue's jobs that wait the highest starts first")
      ->capture_default_str()
      ->check(whole_number(-cluster::kMaxPriority, cluster::kMaxPriority));
  all.submit->add_option("--queue", words.spec.queue, "The queue that it is in (troupe queue list) [default]")
      ->check(not_empty("name one that troupe queue list shows, or leave it out"));
  all.submit->add_flag("--detach", words.detach, "Print the job's id alone, and follow nothing");
  all.list = add("list", "  troupe job list --state RUNNING --queue research --limit 20",
                 "Show the jobs, the newest first");
  with_output(all.list);
  all.list->add_option("--state", words.state, "Those in that state alone")
      ->check(CLI::IsMember(
          {"QUEUED", "STARTING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "STOPPED", "PARKED"}));
  all.list->add_option("--queue", words.spec.queue, "Those of that queue alone")->check(not_empty());
  all.list->add_option("--limit", words.limit, "The newest so many of those alone [default: all]")
      ->check(whole_number(1, 1'000'000));
  all.status = add("status", "  troupe job status ID -o json", "Show one job, and why it is in its state");
  of_one(all.status);
  with_output(all.status);
  all.why = add("why", "  troupe job why ID",
                "Say why a job waits: what it asks for, what each node lacks, who starts before it");
  of_one(all.why);
  with_output(all.why);
  all.logs = add("logs", "  troupe job logs --follow --since 10m ID", "Print a job's output");
  of_one(all.logs);
  all.logs->add_flag("--follow,-f", words.reading.follow,
                     "Go on until the job has ended, and say how it did");
  all.logs->add_option("--tail", words.reading.tail, "The last lines alone, of the latest attempt")
      ->check(whole_number(0, 1'000'000));
  all.logs->add_option("--attempt", words.reading.attempt, "That one alone, from 1 on [default: all]")
      ->check(whole_number(1, 1'000'000));
  all.logs->add_option("--since", words.since, kSinceHelp)->check(since_time());
  all.stop = add("stop", "  troupe job stop ID",
                 "End jobs: SIGTERM to their process groups, SIGKILL after 10 s; of a parked one its actors");
  with_ids(all.stop, "Ids or names of jobs");
  all.wait =
      add("wait", "  troupe job wait ID; echo $?", "Wait until a job has ended, and exit with its code");
  of_one(all.wait);
  return all;
}

}  // namespace

int print_output(const JobClientOptions& where, const std::string& id, const OutputOptions& reading) {
  JobClient jobs(where);
  if (reading.follow) {
    watch_interrupts();
    return follow(jobs, id, reading, false);
  }
  jobs.read_output(id, reading, take_output);
  return 0;
}

int job(int argc, char** argv) {
  // What follows -- is the program's, whatever it looks like.
  char** const separator =
      std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  JobWords words;
  if (separator != argv + argc && separator + 1 != argv + argc) {
    words.spec.program = separator[1];
    words.spec.args.assign(separator + 2, argv + argc);
  }
  CLI::App app("Submits jobs to a cluster, shows, follows and ends them.", "troupe job");
  app.footer(kJobFooter);
  app.require_subcommand(1);
  const Commands commands = add_commands(app, words);
  try {
    app.parse(static_cast<int>(separator - argv), argv);
    if (commands.submit->parsed() == (separator == argv + argc))
      throw CLI::ValidationError(commands.submit->parsed()
                                     ? "name the program after --: troupe job submit -- PROGRAM args"
                                     : "only troupe job submit takes a program after --");
    // Of a script whose variable is empty: two tries would be two jobs.
    if (commands.submit->count("--id") != 0 && words.spec.id.empty())
      throw CLI::ValidationError("--id is empty: name the job, or leave --id out");
  } catch (const CLI::ParseError& error) {
    // A program's own words, such as -c, are no options of ours.
    const auto extra = app.remaining(true);
    if (commands.submit->parsed() && separator == argv + argc && !extra.empty() && extra[0][0] != '-') {
      std::fprintf(stderr, "troupe job submit: name the program after --: troupe job submit -- %s ...\n",
                   escape_text(shell_word(extra[0])).c_str());
      return 2;
    }
    return say_usage(app, error);
  }
  if (commands.submit->parsed()) return submit(words);
  if (commands.list->parsed()) return list(words);
  JobClient jobs(words.where);
  if (commands.stop->parsed()) return stop(jobs, words.ids);
  std::string id;
  std::optional<ParkedJob> parked;
  try {
    id = job_called(jobs, words.ids[0]);
    if (id.empty()) parked = find_parked(words.where, words.ids[0]);
  } catch (const Error&) {  // those that wait long for a head that is away do so below
    if (!commands.wait->parsed() && !words.reading.follow) throw;
  }
  if (parked) {
    if (commands.logs->parsed()) refuse_logs_of_parked(*parked);
    return commands.wait->parsed() ? wait_for_parked(words.where, *parked)
                                   : show_parked(*parked, words.output == "json");
  }
  if (id.empty()) id = words.ids[0];  // the head says what is wrong with it
  if (commands.status->parsed()) return show(words, jobs.status(id));
  if (commands.why->parsed()) return explain(words, jobs.why(id));
  if (commands.logs->parsed()) {
    words.reading.since_ms = read_since(words.since);
    return print_output(words.where, id, words.reading);
  }
  const JobInfo ended = jobs.wait(id);
  std::fprintf(stderr, "%s", last_line(ended).c_str());
  return ended.exit_code;
}

}  // namespace troupe::cli
