#include "scheduler/cli/serve_run.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "runtime/config/serving_file.hpp"
#include "runtime/config/small_file.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/progress.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/job_names.hpp"
#include "scheduler/cli/serving_programs.hpp"

namespace troupe::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr Duration kAnswerWithin = std::chrono::seconds(10);
constexpr Duration kAskAgain = std::chrono::milliseconds(200);

config::ServingFile read_serving_file(const std::string& path) {
  const std::string text = config::read_small_file(path, config::kMostServingBytes).value();
  const auto folder = std::filesystem::absolute(path).parent_path();
  // One from the root on may be the node's alone.
  const auto wrong_path = [&](const std::string& of) {
    const auto whole = (folder / of).lexically_normal();
    std::error_code error;
    const bool is_here = std::filesystem::exists(whole, error);
    if (is_here && !std::filesystem::is_regular_file(whole, error))
      return escape_name(whole.string()) + " is no file";
    if (std::filesystem::path(of).is_absolute() || is_here) return std::string();
    return "there is no file " + escape_name(whole.string());
  };
  auto file = config::parse_serving_file(text, path, wrong_path).value();
  config::resolve_paths(file, folder.string());
  return file;
}

JobSpec spec_of(const config::ServingFile& file) {
  const config::ServingProgram& job = file.job;
  return {.program = job.program,
          .args = job.args,
          .name = job.name,
          .working_dir = job.working_dir,
          .node_dir = job.node_dir,
          .env = {{config::kServingVariable, config::to_toml(file).value()}},
          .num_cpus = job.num_cpus,
          .num_gpus = job.num_gpus,
          .retries = job.retries,
          .priority = job.priority,
          .queue = job.queue};
}

/// The program that is the job, if it runs here and serves.
struct ServingProgramHere {
  int pid = 0;
  std::string config;  ///< what was applied last
  OrderedJson deployments;
  OrderedJson refused;  ///< those that do not come to listen, and why
};
/// `silent`: why one that serves here may be it, and has not answered.
std::optional<ServingProgramHere> program_of(const std::string& job, std::string* silent = nullptr) {
  for (const int pid : serving_pids()) {
    const auto answer = ask_program(pid, {{"do", "status"}}, kAnswerWithin);
    if (!answer && answer.error().code != ErrorCode::kUnavailable && silent != nullptr)
      *silent = escape_text(answer.error().message());
    if (!answer || answer->value("job", OrderedJson()) != job) continue;
    const OrderedJson config = answer->value("config", OrderedJson());
    return ServingProgramHere{pid, config.is_string() ? config.get<std::string>() : std::string(),
                              answer->value("deployments", OrderedJson::array()),
                              answer->value("refused", OrderedJson())};
  }
  return std::nullopt;
}

std::string text_of(const OrderedJson& object, const char* key) {
  const OrderedJson value = object.is_object() ? object.value(key, OrderedJson()) : OrderedJson();
  return escape_name(value.is_string() ? value.get<std::string>() : value.dump());
}

/// Whether a program before that one runs, too, and serves on without it: one that was replaced has ended, or
/// serves nothing any more. One of which nothing is heard here is taken for one that does.
bool has_former(JobClient& jobs, const std::string& name, const std::string& job) {
  const int place = place_of_job(name, job);
  for (const JobInfo& one : jobs.list()) {
    const int before = one.has_ended() ? 0 : place_of_job(name, one.name);
    if (before == 0 || before >= place) continue;
    const auto program = program_of(one.id);
    if (!program || serves_on(program->deployments)) return true;
  }
  return false;
}

/// Whether a program that was heard here before serves on, now that the one that was to take its place has
/// ended.
bool serves_still(JobClient& jobs, const std::string& former) {
  std::string silent;
  const auto program = program_of(former, &silent);
  return goes_on(jobs.status(former).has_ended(), program ? &program->deployments : nullptr, !silent.empty());
}

std::string state_of(const JobInfo& job) {
  return job.status == JobStatus::kRunning
             ? "its program runs on node " + escape_name(job.node)
             : "its job is " + std::string(to_string(job.status)) + ": " + escape_name(job.why);
}

/// The job whose place it takes; empty: none.
std::string former_of(const JobSpec& spec) {
  const auto at = spec.env.find(config::kTakeOverVariable);
  return at == spec.env.end() ? "" : at->second;
}

ErrorInfo ended_before(JobClient& jobs, const std::string& deployment, const JobInfo& job,
                       const std::string& name, const ServeRunWords& words, const std::string& former) {
  std::string said;
  try {
    jobs.read_output(job.id, {.tail = 20}, [&](const JobOutput& output) { said += output.bytes; });
  } catch (const Error&) {  // one that was stopped before it began has none
  }
  std::string others;
  if (former.empty() ? has_former(jobs, name, job.name) : serves_still(jobs, former)) {
    others = "; the one before it serves on";
  } else if (!former.empty()) {
    others = "; the one before it does not serve either, so nobody does: start one with troupe job wait " +
             former + "; troupe serve run " + shell_word(words.file);
  }
  return {ErrorCode::kRefused, "the program ended before it served '" + deployment + "'", job.why + others,
          said.empty() ? "it printed nothing" : "it printed: " + escape_text(said)};
}

/// Until all deployments of the file answer; says now and then which do not. Throws where the job ends
/// before, and where one of them is not going to. `former`: as former_of().
void wait_until_up(JobClient& jobs, const std::string& id, const config::ServingFile& file,
                   const ServeRunWords& words, const std::string& former) {
  const Instant latest = MonotonicClock().now() + std::chrono::seconds(words.timeout_s);
  ProgressTimes says(MonotonicClock().now());
  std::set<std::string> waits;
  for (const auto& [name, entry] : file.deployments) waits.insert(name);
  for (;;) {
    if (const auto program = program_of(id)) {
      for (const OrderedJson& one : program->deployments) {
        const std::string state = text_of(one, "state");
        if (state == "starting" || state == "stopping" || waits.erase(text_of(one, "name")) == 0) continue;
        std::printf("%s: %s\n", text_of(one, "name").c_str(), text_of(one, "url").c_str());
        std::fflush(stdout);
      }
      if (auto refused = refused_of(waits, program->refused)) {
        refused->todo = "its program goes on (troupe job logs --follow ";
        refused->todo.append(id).append("): troupe job stop ").append(id).append(" ends it");
        throw_error(*std::move(refused));
      }
    }
    if (waits.empty()) return;
    const JobInfo job = jobs.status(id);
    if (job.has_ended()) throw_error(ended_before(jobs, *waits.begin(), job, file.job.name, words, former));
    if (MonotonicClock().now() > latest) {
      const bool is_beside = has_former(jobs, file.job.name, job.name);
      const bool has_replaced = !is_beside && place_of_job(file.job.name, job.name) > 1;
      throw_error({ErrorCode::kTimeout, "'" + *waits.begin() + "' does not serve yet", state_of(job),
                   "it goes on: troupe job logs --follow " + id +
                       (is_beside ? "; troupe job stop " + shell_word(job.name) +
                                        " ends it, and the one before it serves on"
                        : has_replaced ? "; the program before it serves no more, and this one has its place"
                                       : "") +
                       "; a program on another machine is asked there (troupe serve list)"});
    }
    if (says.is_due(MonotonicClock().now()))
      say_line("waits until '" + *waits.begin() + "' answers: " + state_of(job));
    std::this_thread::sleep_for(kAskAgain);
  }
}

std::string submit_serving(JobClient& jobs, const JobSpec& spec, const config::ServingFile& file,
                           const ServeRunWords& words) {
  std::string id = jobs.submit(spec, say_line);
  std::printf("job %s is submitted\n", id.c_str());
  std::fflush(stdout);
  if (!words.detach) wait_until_up(jobs, id, file, words, former_of(spec));
  return id;
}

/// A job beside the one that runs: its program takes the place of that one's, which then ends.
int replace_serving(JobClient& jobs, const JobInfo& former, const config::ServingFile& file,
                    const ServeRunWords& words) {
  JobSpec spec = spec_of(file);
  spec.name = file.job.name + "~" + std::to_string(place_of_job(file.job.name, former.name) + 1);
  spec.env[config::kTakeOverVariable] = former.id;
  const std::string id = submit_serving(jobs, spec, file, words);
  if (words.detach) return 0;
  const Instant latest = MonotonicClock().now() + std::chrono::seconds(words.timeout_s);
  ProgressTimes says(MonotonicClock().now());
  std::set<int> told;
  JobInfo ended = jobs.status(former.id);
  for (; !ended.has_ended(); ended = jobs.status(former.id)) {
    const auto before = program_of(former.id), after = program_of(id);
    if (before && after) {
      for (const int port : left_ports(before->deployments, after->deployments)) {
        if (told.insert(port).second)
          (void)ask_program(before->pid, {{"do", "taken"}, {"port", port}}, kAnswerWithin);
      }
    }
    if (MonotonicClock().now() > latest)
      throw_error({ErrorCode::kTimeout, "job " + former.id + " has not ended",
                   "another program answers in its place; a program ends so where it is in wait()",
                   "troupe job stop " + former.id});
    if (says.is_due(MonotonicClock().now()))
      say_line("waits until job " + former.id + " has answered what it has, and ends");
    std::this_thread::sleep_for(kAskAgain);
  }
  if (ended.status == JobStatus::kSucceeded) {
    std::printf("job %s has answered what it had, and ended\n", former.id.c_str());
  } else {  // it was killed, say, and what it had is lost
    std::printf("job %s %s: %s\n", former.id.c_str(), to_string(ended.status),
                escape_name(ended.why).c_str());
  }
  return 0;
}

/// Scale and new weights, one after another: what is done stays done where the next one fails.
void change_running(const ServingProgramHere& program, const config::ServingChanges& changes, int timeout_s) {
  for (const auto& change : changes.running) {
    const std::string name = escape_name(change.deployment);
    if (change.replicas) {
      const auto& [min, max] = *change.replicas;
      ask_program(program.pid, {{"do", "scale"}, {"name", change.deployment}, {"min", min}, {"max", max}},
                  kAnswerWithin)
          .value();
      const std::string least = min == max ? "" : std::to_string(min) + " to ";
      std::printf("%s: %s%s\n", name.c_str(), least.c_str(), count_of(max, "replica").c_str());
    }
    if (change.weights) {
      const OrderedJson answer =
          ask_program(program.pid,
                      {{"do", "update"}, {"name", change.deployment}, {"weights", *change.weights}},
                      std::chrono::seconds(timeout_s))
              .value();
      std::printf("%s: weights %s answer\n", name.c_str(), text_of(answer, "version").c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace

std::optional<ErrorInfo> refused_of(const std::set<std::string>& waits, const OrderedJson& refused) {
  for (const std::string& name : waits) {
    if (!refused.is_object() || !refused.contains(name)) continue;
    return ErrorInfo{ErrorCode::kRefused, "'" + name + "' is not going to serve",
                     text_of(refused, name.c_str()), ""};
  }
  return std::nullopt;
}

bool serves_on(const OrderedJson& deployments) {
  return std::any_of(deployments.begin(), deployments.end(),
                     [](const OrderedJson& one) { return text_of(one, "state") != "stopping"; });
}

std::vector<int> left_ports(const OrderedJson& before, const OrderedJson& after) {
  const auto places_in = [](const OrderedJson& deployments) {
    std::map<std::string, std::set<int>> places;
    for (const OrderedJson& one : deployments) {
      const auto name = one.is_object() ? one.value("name", OrderedJson()) : OrderedJson();
      const auto port = one.is_object() ? one.value("port", OrderedJson()) : OrderedJson();
      if (name.is_string() && port.is_number_unsigned())
        places[name.get<std::string>()].insert(port.get<int>());
    }
    return places;
  };
  const auto now = places_in(after);
  std::map<int, bool> left;
  for (const auto& [name, ports] : places_in(before)) {
    const auto at = now.find(name);
    for (const int port : ports) {
      const bool moved = ports.size() == 1 && at != now.end() && !at->second.contains(port);
      const auto [it, is_new] = left.emplace(port, moved);
      it->second = it->second && moved;
    }
  }
  std::vector<int> all;
  for (const auto& [port, moved] : left) {
    if (moved) all.push_back(port);
  }
  return all;
}

bool goes_on(bool has_ended, const OrderedJson* deployments, bool is_silent) {
  if (has_ended) return false;
  return deployments == nullptr ? is_silent : serves_on(*deployments);
}

int serve_run(const ServeRunWords& words) {
  const config::ServingFile file = read_serving_file(words.file);
  JobClient jobs(words.where);
  std::optional<JobInfo> job;  // the last that took the place of one before
  for (const JobInfo& one : jobs.list()) {
    const int place = one.has_ended() ? 0 : place_of_job(file.job.name, one.name);
    if (place > (job ? place_of_job(file.job.name, job->name) : 0)) job = one;
  }
  if (!job) {
    submit_serving(jobs, spec_of(file), file, words);
    return 0;
  }

  JobSpec again = spec_of(file);
  again.name = job->name;
  again.replace = true;
  std::string silent;
  const auto program = program_of(job->id, &silent);
  if (!program || program->config.empty()) {
    if (words.restart) {
      submit_serving(jobs, again, file, words);
      return 0;
    }
    // One that was to take another's place, and hangs, say: the other one serves on.
    const bool is_beside = has_former(jobs, file.job.name, job->name);
    const std::string where = job->status == JobStatus::kRunning ? "it runs on node " + escape_name(job->node)
                                                                 : escape_text(job->why);
    const std::string what = "job " + job->id + " has the name '" + escape_name(job->name) + "', ";
    const std::string why =
        !silent.empty() ? "and may be one that does not answer: " + silent + "; " + where
        : is_beside ? "is being started in the place of the one before it, and does not serve yet: " + where
                    : "and is no program that serves here: " + where;
    throw_error({ErrorCode::kRefused, "cannot apply " + words.file, what + why,
                 is_beside ? "wait until it serves (troupe job logs --follow " + job->id +
                                 "), or end it, and apply the file to the one before it: troupe job stop " +
                                 shell_word(job->name) + "; or apply it on the machine where it runs"
                           : "apply it on the machine where it runs, or start it again: --restart"});
  }
  if (words.replace) return replace_serving(jobs, *job, file, words);
  const auto now = config::parse_serving_file(program->config, "what was applied before").value();
  const auto changes = config::changes_between(now, file);
  if (!changes.restarted.empty()) {
    if (words.restart) {
      submit_serving(jobs, again, file, words);
      return 0;
    }
    std::string why;
    for (const std::string& one : changes.restarted) why += (why.empty() ? "" : "; ") + one;
    throw_error({ErrorCode::kRefused, "cannot apply " + words.file + " while it serves", escape_text(why),
                 "with --replace another process takes its place, and no request is lost; with --restart the "
                 "program answers what it has and starts again, and until then nobody answers"});
  }
  if (changes.running.empty()) {
    std::printf("job %s: nothing has changed\n", job->id.c_str());
    return 0;
  }
  change_running(*program, changes, words.timeout_s);
  ask_program(program->pid, {{"do", "applied"}, {"config", config::to_toml(file).value()}}, kAnswerWithin)
      .value();
  return 0;
}

}  // namespace troupe::cli
