#include "scheduler/jobs/job_client.hpp"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "runtime/core/count.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/progress.hpp"
#include "runtime/node/package.hpp"
#include "scheduler/cluster/queue_table.hpp"
#include "scheduler/cluster/submission_table.hpp"
#include "scheduler/jobs/head_session.hpp"
#include "scheduler/jobs/job_output.hpp"
#include "scheduler/jobs/local_checks.hpp"

namespace troupe {
namespace {

constexpr Duration kHeadAnswers = std::chrono::seconds(10);
/// Of those who wait for a job's end.
constexpr Duration kHeadAway = std::chrono::seconds(60);
/// Of who reads output: a node that is not there may be about to say hello to a head that came back.
constexpr Duration kNodeAway = std::chrono::seconds(10);
/// Of a piece of a package: the last one waits for a disk.
constexpr Duration kPieceTaken = std::chrono::seconds(60);
/// How often a package is brought, or goes back, before it is given up.
constexpr int kMostSendings = 8;
/// While others take the name, each of which may need 10 s and more to end.
constexpr Duration kReplaces = std::chrono::minutes(5);
constexpr Duration kLook = std::chrono::milliseconds(100);

std::map<std::string, double> custom_of(const cluster::ResourceAmounts& amounts) {
  std::map<std::string, double> custom;
  for (const auto& [name, amount] : amounts) {
    if (name != cluster::kMemory) custom[name] = static_cast<double>(amount) / cluster::kCpu;
  }
  return custom;
}

JobInfo info_of(const cluster::SubmissionRecord& record, std::string why) {
  JobInfo info;
  info.id = record.spec.id;
  info.name = record.spec.name;
  info.program = record.spec.program;
  info.status = static_cast<JobStatus>(record.state);
  info.message = record.message;
  info.why = std::move(why);
  info.attempt = record.attempt;
  info.retries = record.spec.retries;
  info.priority = record.spec.priority;
  info.queue = cluster::queue_of(record.spec);
  info.num_cpus = static_cast<double>(record.spec.cpu_e4) / cluster::kCpu;
  info.num_gpus = static_cast<double>(record.spec.gpu_e4) / cluster::kGpu;
  info.memory = memory_of(record.spec.other);
  info.resources = custom_of(record.spec.other.amounts);
  for (const auto& label : record.spec.other.labels) info.labels[label.key] = label.value;
  info.node = record.node_name;
  if (record.node) info.node_id = to_string(record.node);
  info.submitted_ms = record.submitted_ms;
  info.started_ms = record.started_ms;
  info.ended_ms = record.ended_ms;
  if (record.exit_code >= 0) info.driver_exit_code = record.exit_code;
  constexpr int kStoppedByRequest = 143;  // 128 + SIGTERM
  if (info.status == JobStatus::kFailed) info.exit_code = record.exit_code > 0 ? record.exit_code : 1;
  if (info.status == JobStatus::kStopped)
    info.exit_code = record.exit_code > 0 ? record.exit_code : kStoppedByRequest;
  return info;
}

JobQueue queue_info(const cluster::QueueStatus& status) {
  const auto count = [](std::int64_t e4) { return static_cast<double>(e4) / cluster::kCpu; };
  const auto quota = [&](std::int64_t e4) { return e4 < 0 ? std::nullopt : std::optional(count(e4)); };
  const cluster::QueueRecord& queue = status.queue;
  JobQueue info{queue.name, quota(queue.cpu_e4), quota(queue.gpu_e4)};
  for (const auto& [name, limit] : queue.other) {
    if (name == cluster::kMemory) info.memory = limit;
  }
  info.resources = custom_of(queue.other);
  info.weight = count(queue.weight_e4);
  info.cpus_used = count(status.cpu_used_e4);
  info.gpus_used = count(status.gpu_used_e4);
  info.memory_used = cluster::amount_of(status.other_used, cluster::kMemory);
  info.resources_used = custom_of(status.other_used);
  info.share = count(status.share_e4);
  info.waits = static_cast<int>(status.waits);
  info.runs = static_cast<int>(status.runs);
  return info;
}

/// In parts; below 0: no limit.
std::int64_t limit_of(const std::optional<double>& quota, const std::string& what, double most = 1e5) {
  if (!quota) return -1;
  if (!(*quota >= 0 && *quota <= most))  // a NaN is refused, too
    throw_error({ErrorCode::kBadInput, "cannot set the queue",
                 std::to_string(*quota) + " is no number of " + what,
                 "give 0 to " + std::to_string(static_cast<std::int64_t>(most)) + ", or leave it out"});
  return std::llround(*quota * cluster::kCpu);
}

cluster::ResourceAmounts limits_of(const JobQueue& queue) {
  cluster::ResourceAmounts limits;
  if (queue.memory) limits.push_back({std::string(cluster::kMemory), *queue.memory});
  for (const auto& [name, quota] : queue.resources)
    limits.push_back({name, limit_of(quota, name, cluster::kMaxResource)});
  std::sort(limits.begin(), limits.end());
  return limits;
}

}  // namespace

const char* to_string(JobStatus status) {
  return cluster::state_name(static_cast<cluster::SubmissionState>(status));
}

class JobClient::Impl {
 public:
  explicit Impl(const JobClientOptions& options)
      : session_(ClusterFolder::find(options.folder).value(),
                 options.address.empty() ? std::nullopt
                                         : std::optional(parse_endpoint(options.address).value())) {}

  template <class Answer, class Ask>
  Result<Answer> ask(Ask question, Duration timeout = kHeadAnswers) {
    auto bytes = session_.ask(std::move(question), timeout);
    if (!bytes) return bytes.error();
    return wire::decode<Answer>(*bytes);
  }
  /// Who waits for longer than a head needs is told so, once.
  JobInfo about(const std::string& id, Duration timeout = kHeadAnswers) {
    const Duration first = std::min(timeout, kHeadAnswers);
    auto answer = ask<wire::SubmissionAnswer>(wire::SubmissionAsk{0, id}, first);
    const bool is_away = !answer && (answer.error().code == ErrorCode::kUnavailable ||
                                     answer.error().code == ErrorCode::kTimeout);
    if (is_away && timeout > first) {
      const auto seconds = [](Duration time) {
        return std::to_string(time / std::chrono::seconds(1)) + " s";
      };
      log(LogLevel::kWarning, "the head has not answered for " + seconds(first) + "; it is waited for, for " +
                                  seconds(timeout - first) + " more at most: " + answer.error().why);
      answer = ask<wire::SubmissionAnswer>(wire::SubmissionAsk{0, id}, timeout - first);
    }
    return info_of(answer.value().record, answer.value().why);
  }

  /// Until the head has all of it. What it has already is not sent.
  void send_package(PackageSource& package, const PackageSource::Progress& progress) {
    wire::PackagePart part{package.id(), 0, package.bytes(), {}};
    for (int setbacks = 0;;) {
      const Duration timeout = part.bytes.empty() ? kHeadAnswers : kPieceTaken;  // at first it is asked alone
      const auto held = ask<wire::PackageHeld>(wire::PackagePut{0, part}, timeout).value();
      if (held.whole) return;
      if (held.next < part.offset && ++setbacks > kMostSendings)
        throw_error({ErrorCode::kUnavailable, "cannot submit the job",
                     "the head lost its package again and again", "look at the head's log"});
      progress(held.next, package.bytes());
      part.offset = held.next;
      part.bytes = package.read(held.next, kPackagePieceBytes).value();
    }
  }

 private:
  HeadSession session_;
};

JobClient::JobClient(const JobClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
JobClient::JobClient(JobClient&&) noexcept = default;
JobClient& JobClient::operator=(JobClient&&) noexcept = default;
JobClient::~JobClient() = default;

std::string JobClient::submit(const JobSpec& wanted, const std::function<void(const std::string&)>& say,
                              const std::function<void()>& before_record) {
  const MonotonicClock clock;
  const auto saying = [&](const char* what) -> PackageSource::Progress {
    return [&clock, &say, what, times = ProgressTimes(clock.now())](std::uint64_t done,
                                                                    std::uint64_t total) mutable {
      if (say && times.is_due(clock.now())) say(what + part_of_bytes(done, total));
    };
  };
  PreparedJob job = prepared(wanted, saying("packs what travels: "));
  for (const std::string& note : job.notes) log(LogLevel::kWarning, note);
  if (wanted.replace) stop_named(wanted.name, job.spec.id);
  const Instant replaces_until = clock.now() + kReplaces;
  for (int left = kMostSendings;;) {
    if (job.package) impl_->send_package(*job.package, saying("brings the package to the head: "));
    if (before_record) before_record();
    const auto answer = impl_->ask<wire::SubmissionAnswer>(wire::SubmitAsk{0, job.spec});
    if (answer) return answer->record.spec.id;
    // Another that replaces it was faster: its job has the name now.
    const bool is_taken = answer.error().code == ErrorCode::kRefused &&
                          answer.error().why.find(cluster::kHasTheName) != std::string::npos;
    if (wanted.replace && is_taken && clock.now() < replaces_until) {
      stop_named(wanted.name, job.spec.id);
      continue;
    }
    // A head that came back has not kept what no record named.
    const bool may_be_gone = job.package && answer.error().code == ErrorCode::kUnavailable;
    if (!may_be_gone || left-- == 0) throw_error(answer.error());
  }
}

/// But for the job `id` itself, which may have been submitted before.
void JobClient::stop_named(const std::string& name, const std::string& id) {
  for (const JobInfo& job : list()) {
    if (job.name != name || job.has_ended() || job.id == id) continue;
    stop(job.id);
    wait(job.id);
  }
}

JobInfo JobClient::status(const std::string& id) {
  return impl_->about(id);
}

JobReport JobClient::why(const std::string& id) {
  const auto answer = impl_->ask<wire::WhyAnswer>(wire::WhyAsk{0, id}).value();
  const cluster::WaitReport& report = answer.report;
  constexpr const char* kVerdicts[] = {"does not wait", "later", "waits", "held", "never", "quota"};
  JobReport all{info_of(answer.record, report.sentence), kVerdicts[static_cast<std::size_t>(report.verdict)],
                report.sentence, static_cast<int>(report.position), report.ahead};
  const auto count = [](std::int64_t e4) { return static_cast<double>(e4) / cluster::kCpu; };
  for (const auto& r : report.resources) {
    const auto in_its_unit = [&](std::int64_t amount) {
      return r.name == cluster::kMemory ? static_cast<double>(amount) : count(amount);
    };
    all.resources.push_back({r.name, in_its_unit(r.need_e4), in_its_unit(r.most_free_e4),
                             in_its_unit(r.most_e4), in_its_unit(r.free_e4), in_its_unit(r.total_e4)});
  }
  for (const auto& node : report.nodes) all.nodes.push_back({node.name, node.lacks});
  all.more_nodes = static_cast<int>(report.more_nodes);
  for (const auto& h : report.holders)
    all.holders.push_back({h.id, h.node_name, count(h.cpu_e4), count(h.gpu_e4), h.what,
                           cluster::amount_of(h.other, cluster::kMemory), custom_of(h.other)});
  for (const auto& queue : report.queues) all.queues.push_back(queue_info(queue));
  return all;
}

std::vector<JobInfo> JobClient::list() {
  std::vector<JobInfo> all;
  wire::SubmissionsAnswer page;
  std::uint64_t below = 0;
  do {
    page = impl_->ask<wire::SubmissionsAnswer>(wire::SubmissionsAsk{0, below}).value();
    for (const auto& record : page.records) all.push_back(info_of(record, record.message));
    if (!page.records.empty()) below = page.records.back().number;
  } while (page.more && !page.records.empty());
  return all;
}

std::vector<JobQueue> JobClient::queues() {
  std::vector<JobQueue> all;
  for (const auto& queue : impl_->ask<wire::QueuesAnswer>(wire::QueuesAsk{}).value().queues)
    all.push_back(queue_info(queue));
  return all;
}

void JobClient::set_queue(const JobQueue& queue) {
  const double most = static_cast<double>(cluster::kMostWeight_e4) / cluster::kCpu;
  const std::int64_t weight_e4 =
      queue.weight > 0 && queue.weight <= most ? std::llround(queue.weight * cluster::kCpu) : 0;
  const cluster::QueueRecord record{queue.name, limit_of(queue.cpus, "CPUs"), limit_of(queue.gpus, "GPUs"),
                                    weight_e4, limits_of(queue)};
  if (const auto wrong = cluster::check_queue(record)) throw_error(*wrong);
  impl_->ask<wire::QueuesAnswer>(wire::QueuesAsk{0, true, false, record}).value();
}

void JobClient::remove_queue(const std::string& name) {
  impl_->ask<wire::QueuesAnswer>(wire::QueuesAsk{0, false, true, {name}}).value();
}

JobInfo JobClient::stop(const std::string& id) {
  const auto answer = impl_->ask<wire::SubmissionAnswer>(wire::StopSubmissionAsk{0, id}).value();
  return info_of(answer.record, answer.why);
}

JobInfo JobClient::wait(const std::string& id) {
  for (;;) {
    JobInfo info = impl_->about(id, kHeadAway);
    if (info.has_ended()) return info;
    std::this_thread::sleep_for(kLook);
  }
}

JobInfo JobClient::read_output(const std::string& id, const OutputOptions& options,
                               const std::function<void(const JobOutput&)>& take) {
  const Duration timeout = options.follow ? kHeadAway : kHeadAnswers;
  OutputReader reader(
      id, [&](wire::LogAsk ask) { return impl_->ask<wire::LogPart>(std::move(ask), timeout); }, take,
      options.follow, options.since_ms);
  const MonotonicClock clock;
  bool is_away = false;  // what has the output, since then
  Instant away_since{};
  bool tail = options.tail >= 0;
  JobInfo info = impl_->about(id, timeout);
  if (options.attempt < 0 || options.attempt > info.attempt)
    throw_error(
        {ErrorCode::kRefused, "cannot read attempt " + std::to_string(options.attempt) + " of job " + id,
         "it has had " + count_of(info.attempt, "attempt"), "they count from 1; leave it out for all"});
  if (options.attempt > 0) {
    reader.go_to_attempt(options.attempt);
  } else if (!tail && info.attempt > 0) {
    reader.go_to_attempt(1);
  }
  for (;;) {
    if (options.is_enough && options.is_enough()) return info;
    Result<OutputReader::Got> got = OutputReader::Got::kSome;
    if (tail) {
      if (auto begun = reader.begin_at_tail(options.tail); !begun) got = begun.error();
      tail = !got;
    } else {
      got = reader.read();
    }
    if (got) {
      is_away = false;
      if (*got == OutputReader::Got::kSome) continue;
    } else if (got.error().code != ErrorCode::kUnavailable) {
      throw_error(got.error());
    } else if (!std::exchange(is_away, true)) {
      away_since = clock.now();
    }
    info = impl_->about(id, timeout);
    const bool is_old = reader.attempt() > 0 && info.attempt > reader.attempt();
    const bool is_lost = !got && (clock.now() - away_since >= kNodeAway || (is_old && !options.follow));
    const bool is_over = is_lost || (got && *got == OutputReader::Got::kEnd);  // this attempt's output
    if (options.attempt > 0 && is_over) {
      if (is_lost) throw_error(got.error());
      return info;
    }
    if (is_over && is_old) {
      if (is_lost) reader.note(got.error().message());
      reader.end_lines();
      reader.go_to_attempt(reader.attempt() + 1);
      reader.note("attempt " + std::to_string(reader.attempt()) + " of " + std::to_string(info.retries + 1) +
                  " begins");
      is_away = false;
    } else if (is_lost && (info.has_ended() || !options.follow)) {
      if (!options.follow) throw_error(got.error());
      reader.note(got.error().message());
      return info;
    } else if (got && (!options.follow || (is_over && info.has_ended()))) {
      return info;
    } else {
      std::this_thread::sleep_for(kLook);
    }
  }
}

}  // namespace troupe
