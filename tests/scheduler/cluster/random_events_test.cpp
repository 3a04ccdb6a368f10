/// Events in any order, true and false ones, with restarts of the head: the machine's indices always agree,
/// and what was asked for has an end.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::cluster;
using troupe::test::Script;

namespace {

struct Chaos {
  explicit Chaos(std::uint64_t seed) : random(seed), s(small()) {}

  static ClusterConfig small() {
    ClusterConfig config;
    config.max_dead_actors = 5;
    config.max_dead_nodes = 4;
    config.max_ended_jobs = 3;
    config.max_waiting = 12;
    config.max_payload_bytes = 400;
    config.max_submissions = 8;
    config.max_ended_submissions = 4;
    return config;
  }
  std::uint64_t below(std::uint64_t bound) { return random.below(bound); }
  NodeId node() { return {1 + below(9)}; }
  ProcessAddress process() { return {node(), ProcessId{1 + below(3)}}; }
  Requester requester() { return {process(), 1 + below(6)}; }
  /// A job and its driver; sometimes a process that has nothing to do with it.
  JobAnswered pick() {
    JobAnswered picked{process(), 0, JobId{below(3)}, 0, {}, {}};
    if (!jobs.empty()) picked = jobs[below(jobs.size())];
    if (below(8) == 0) picked.to = process();
    return picked;
  }
  JobId job() { return pick().job; }
  ActorId actor() { return actors.empty() ? ActorId{below(3)} : actors[below(actors.size())]; }
  /// Of last_actor; sometimes another one.
  std::uint32_t life() {
    const auto at = s.head->actors().find(last_actor);
    const bool known = at != s.head->actors().end() && below(8) != 0;
    return known ? at->second.record.incarnation : static_cast<std::uint32_t>(1 + below(3));
  }
  ActorArguments arguments() {
    ActorId of = actor();
    for (const auto& [id, known] : s.head->actors())
      if (known.record.state == ActorState::kRestarting && !known.has_payload && below(4) != 0) of = id;
    const auto at = s.head->actors().find(of);
    const Requester by = at == s.head->actors().end() ? requester() : at->second.record.requester;
    return {by, of, below(8) != 0, std::string(below(60), 'y'), node(), state()};
  }
  SavedState state() { return {below(9), wire::Bytes(below(60))}; }
  std::string name() { return below(3) == 0 ? "n" + std::to_string(below(3)) : ""; }
  NodeInfo info() {
    const NodeId id = node();
    NodeInfo made{id, "n", "", "", static_cast<std::int64_t>(below(4)) * kCpu, below(8) == 0};
    for (std::uint64_t gpu = below(4); gpu > 0; --gpu) made.gpus.push_back("gpu " + std::to_string(gpu));
    made.other = tpus(5);
    return made;
  }
  /// Half of them none.
  OtherResources tpus(std::uint64_t most) {
    return other_resources(0, {{"tpu", below(2) == 0 ? 0.0 : static_cast<double>(below(most))}}, {});
  }
  std::vector<LiveActor> listed() {
    std::vector<LiveActor> all;
    for (std::uint64_t i = below(4); i > 0; --i)
      all.push_back({actor(), ProcessId{below(3)}, life(), below(4) == 0});
    return all;
  }

  /// Often one that was asked for, where it is thought to be.
  DriverEnded driver() {
    DriverEnded ended{node(), "s" + std::to_string(below(20)), static_cast<std::int32_t>(1 + below(3)), {}};
    const SubmissionRecord* known = s.head->submissions().find(ended.id);
    if (known != nullptr && below(6) != 0) ended.node = known->node, ended.attempt = known->attempt;
    ended.end = {below(4) != 0, below(6) == 0, static_cast<std::int32_t>(below(3)) - 1, 0, "over"};
    return ended;
  }
  /// A group, and mostly the job that has it.
  std::pair<GroupId, JobAnswered> group() {
    if (groups.empty()) return {GroupId{below(3)}, pick()};
    const GroupId id = groups[below(groups.size())];
    const auto* known = s.head->groups().find(id);
    for (const JobAnswered& one : jobs) {
      if (known != nullptr && one.job == known->record.spec.job && below(8) != 0) return {id, one};
    }
    return {id, pick()};
  }
  GroupRequested about_group() {
    const auto [id, of] = group();
    GroupVerb verb = static_cast<GroupVerb>(below(4));
    if (verb == GroupVerb::kRemove && below(3) != 0) verb = GroupVerb::kMake;
    const JobAnswered by = verb == GroupVerb::kMake ? pick() : of;
    GroupRequested asked{{by.to, 41 + below(200)}, by.job, verb, id, {}};
    if (asked.verb != GroupVerb::kMake) {
      if (below(4) == 0) asked.group = {}, asked.spec.name = name();
      return asked;
    }
    asked.spec = {{}, name(), static_cast<PlacementStrategy>(below(4)), {}};
    for (std::uint64_t i = below(4); i > 0; --i) {
      BundleDemand bundle{static_cast<std::int64_t>(below(3)) * kCpu, 0};
      if (below(3) == 0)
        bundle.gpu_e4 = below(2) == 0 ? kGpu / 2 : static_cast<std::int64_t>(below(3)) * kGpu;
      bundle.other = tpus(3);
      asked.spec.bundles.push_back(bundle);
    }
    asked.spec.start_only = below(3) == 0;
    return asked;
  }
  std::vector<HeldDriver> held() {
    std::vector<HeldDriver> all;
    for (std::uint64_t i = below(4); i > 0; --i) {
      const DriverEnded known = driver();
      all.push_back({known.id, known.attempt, static_cast<HeldDriver::State>(below(4)), known.end});
    }
    return all;
  }
  SubmissionRequested submission() {
    SubmissionSpec spec{.id = "s" + std::to_string(below(20)), .name = name(), .program = {"x"}};
    spec.cpu_e4 = static_cast<std::int64_t>(below(4)) * kCpu;
    if (below(4) == 0) spec.gpu_e4 = below(2) == 0 ? kGpu / 4 : static_cast<std::int64_t>(below(3)) * kGpu;
    spec.other = tpus(3);
    spec.priority = static_cast<std::int32_t>(below(3)) - 1;
    spec.retries = static_cast<std::int32_t>(below(3));
    if (below(2) == 0) spec.queue = "q" + std::to_string(below(3));
    return {spec};
  }
  QueueChanged queue() {
    const auto quota = [&] { return below(3) == 0 ? -1 : static_cast<std::int64_t>(below(7)) * kCpu; };
    const std::string name = below(6) == 0 ? kDefaultQueue : "q" + std::to_string(below(3));
    QueueRecord record{name, quota(), quota(), static_cast<std::int64_t>(1 + below(3)) * 10'000};
    if (below(2) == 0) record.other = {{"tpu", static_cast<std::int64_t>(below(4)) * 10'000}};
    return {record, below(8) == 0};
  }
  /// An actor that is to start with others: mostly what its bundle has.
  SpawnRequested spawn_together() {
    const auto [id, by] = group();
    const auto* known = s.head->groups().find(id);
    const auto bundle = static_cast<std::int32_t>(below(3));
    ActorDemand demand{kCpu, true, {}, 0, id, bundle};
    if (known != nullptr && static_cast<std::size_t>(bundle) < known->record.spec.bundles.size()) {
      demand.cpu_e4 = known->record.spec.bundles[static_cast<std::size_t>(bundle)].cpu_e4;
      demand.gpu_e4 = known->record.spec.bundles[static_cast<std::size_t>(bundle)].gpu_e4;
      demand.other = known->record.spec.bundles[static_cast<std::size_t>(bundle)].other;
    }
    return {{by.to, 700 + below(300)}, {by.job, "T", name(), "x", demand}};
  }

  ClusterEvent event() {
    ActorDemand demand{static_cast<std::int64_t>(below(4)) * kCpu, below(2) == 0,
                       below(4) == 0 ? node() : NodeId{}};
    if (demand.isolated && below(2) == 0)
      demand.gpu_e4 = below(2) == 0 ? kGpu / 4 : static_cast<std::int64_t>(below(3)) * kGpu;
    if (below(3) == 0) demand.other = tpus(3);
    JobAnswered by = pick();
    std::uint64_t request = 1 + below(40);
    if (below(3) == 0) {
      std::tie(demand.group, by) = group();
      request += 300 + below(300);
      demand.cpu_e4 /= 2;
      demand.bundle = below(2) == 0 ? -1 : static_cast<std::int32_t>(below(4)) - 1;
      if (below(8) != 0) demand.affinity = {};
    }
    switch (below(42)) {
      case 0:
      case 1:
        return NodeJoined{info(), listed(), {job()}, {node(), node()}, below(60) == 0, held()};
      case 2:
        if (below(6) == 0) return NodeLeft{node(), "bye"};
        if (below(12) == 0)
          return DrainRequested{node(), static_cast<std::int64_t>(below(60'000)), "why", below(2) == 0};
        if (below(12) == 0) return NodeDrains{node(), static_cast<std::int64_t>(below(9000)) - 3000, "why"};
        return below(40) == 0 ? ClusterEvent(NodeLeaving{node(), "bye"}) : ClusterEvent(Heartbeat{node()});
      case 3:
        return JobRegistered{"j" + std::to_string(below(3)), process(), below(3),
                             below(3) == 0 ? "" : "s" + std::to_string(below(20))};
      case 4:
        return JobEnded{by.to.node, below(3) == 0 ? by.job : JobId{}, "done",
                        below(2) == 0 ? by.to.process : ProcessId{}};
      case 5:
      case 6:
      case 7:
      case 8: {
        ActorSpec spec{by.job,
                       "T",
                       name(),
                       std::string(below(60), 'x'),
                       demand,
                       demand.isolated ? static_cast<std::int32_t>(below(5)) - 1 : 0,
                       static_cast<std::int32_t>(below(2))};
        spec.detached = demand.isolated && !demand.group && below(2) == 0;
        if (spec.detached) spec.name = "d" + std::to_string(below(4));
        if (demand.isolated && !spec.detached && below(2) == 0) spec.type = kWorkerOfTasks;
        if (spec.is_worker_of_tasks()) spec.max_restarts = 0;
        return SpawnRequested{{by.to, request}, std::move(spec)};
      }
      case 9:
        return SpawnCancelled{{by.to, request}};
      case 10:
      case 11:
        return started();
      case 12:
        return failed();
      case 13:
        return down();
      case 14:
        return LeaseRequested{node(), job()};
      case 15:
        return PeerWanted{node(), node()};
      case 16:
        return KillRequested{by.to.node, by.job, actor(), "kill"};
      case 17:
        return ActorLives{where(), last_actor, below(100)};
      case 18:
      case 19:
        return submission();
      case 20:
        return SubmissionStopRequested{driver().id};
      case 21: {
        const DriverEnded at = driver();
        return DriverStarted{at.node, at.id, at.attempt};
      }
      case 22:
        return driver();
      case 23:
        return ResolveActor{node(), job(), actor()};
      case 24:
      case 25:
        return arguments();
      case 26:
        return down();
      case 27:
      case 28:
      case 29:
      case 30:
        return about_group();
      case 31:
      case 32:
      case 33:
        return started();
      case 34:
        return queue();
      case 35:
      case 36:
      case 37:
      case 38:
        return spawn_together();
      case 39: {
        const NodeId at = where();
        if (below(2) == 0) return StateKept{node(), last_actor, below(9)};
        return StateSaved{{{at, ProcessId{1}}, below(9)}, last_actor, life(), state()};
      }
      case 40: {
        const NodeId at = where();
        return ActorWaits{at, last_actor, life(), below(3) != 0};
      }
      default:
        return LookupActor{requester(), job(), name()};
    }
  }
  ActorStarted started() {
    const NodeId at = where();
    return {at, last_actor, ProcessId{1 + below(3)}, life()};
  }
  ActorFailed failed() {
    const ErrorCode code = below(2) == 0 ? ErrorCode::kTaskFailed : ErrorCode::kActorDied;
    const NodeId at = below(2) == 0 ? where() : node();
    return {at, actor(), {code, "no", "", ""}, life()};
  }
  ActorDown down() {
    const NodeId at = where();
    return {at, last_actor, "down", life(), below(6) == 0};
  }
  /// The node of an actor that the machine started, which is remembered.
  NodeId where() {
    last_actor = actor();
    const auto at = s.head->actors().find(last_actor);
    return at == s.head->actors().end() ? node() : at->second.record.node;
  }

  /// No queue comes to hold more than its quota, but by a smaller quota, by tasks that go on which had
  /// waited, or by the detached actors of a job that a program of it takes over. (A head that restarts takes
  /// a job for its submission's, which these events may have made after the job.)
  void check_quotas(bool restarted, bool may_go_on) {
    const auto* job = s.get<JobAnswered>();
    const bool taken_over =
        job != nullptr && job->reason.ends_with("with the detached actors of an earlier one");
    std::map<std::string, scheduler::Room> now;
    for (const QueueStatus& status : s.head->queue_statuses()) {
      const scheduler::Room was = used[status.queue.name];
      now[status.queue.name] = {status.cpu_used_e4, status.gpu_used_e4, status.other_used};
      if (restarted || taken_over) continue;
      REQUIRE((status.queue.cpu_e4 < 0 || may_go_on ||
               status.cpu_used_e4 <= std::max(status.queue.cpu_e4, was.cpu_e4)));
      REQUIRE((status.queue.gpu_e4 < 0 || status.gpu_used_e4 <= std::max(status.queue.gpu_e4, was.gpu_e4)));
      for (const auto& [of, limit] : status.queue.other)
        REQUIRE(amount_of(status.other_used, of) <= std::max(limit, amount_of(was.other, of)));
    }
    used = std::move(now);
  }

  void step() {
    s.now += std::chrono::milliseconds(below(400));
    bool restarted = false, may_go_on = false;
    if (below(200) == 0) {
      restarted = true;
      s.restart();
    } else if (below(4) == 0) {
      for (std::uint64_t id = 1; id <= 9; ++id)
        if (below(8) != 0) s.on(Heartbeat{NodeId{id}});
      s.on(Tick{});
    } else if (!given_back.empty() && below(2) == 0) {
      const auto at = s.head->actors().find(given_back.back());
      given_back.pop_back();
      s.last.clear();
      if (at != s.head->actors().end())
        s.on(ActorDown{at->second.record.node, at->first, "it was given back"});
    } else {
      const ClusterEvent next = event();
      may_go_on = std::holds_alternative<ActorWaits>(next) || std::holds_alternative<NodeJoined>(next);
      s.on(next);
      for (const auto& [id, actor] : s.head->actors()) waited += actor.waits ? 1 : 0;
    }
    check_quotas(restarted, may_go_on);
    for (const auto& action : s.last) {
      if (const auto* start = std::get_if<StartActor>(&action)) actors.push_back(start->actor);
      if (const auto* answered = std::get_if<JobAnswered>(&action); answered != nullptr && answered->job)
        jobs.push_back(*answered);
      if (const auto* made = std::get_if<GroupAnswered>(&action);
          made != nullptr && made->status.record.group)
        groups.push_back(made->status.record.group);
      const auto* leaves = std::get_if<ActorLeaves>(&action);
      if (leaves != nullptr && leaves->for_others) given_back.push_back(leaves->actor);
    }
    if (jobs.size() > 6) jobs.erase(jobs.begin());
    if (actors.size() > 12) actors.erase(actors.begin());
    if (groups.size() > 6) groups.erase(groups.begin());
  }

  SeededRandom random;
  Script s;
  std::vector<JobAnswered> jobs;
  std::vector<ActorId> actors;
  std::vector<GroupId> groups;
  ActorId last_actor{};
  std::vector<ActorId> given_back;              ///< workers of tasks that are to be
  long waited = 0;                              ///< actors, after how many events
  std::map<std::string, scheduler::Room> used;  ///< by queue
};

}  // namespace

TEST_CASE("whatever comes, the machine's indices agree and its records are bounded") {
  long waited = 0;
  int started = 0, drivers = 0, lives = 0, in_groups = 0, removed = 0, together = 0, parked = 0,
      jobs_parked = 0, taken_over = 0;
  for (int run = 0; run < 60; ++run) {
    const std::uint64_t seed = SystemRandom().next();
    CAPTURE(seed);
    Chaos chaos(seed);
    for (int i = 0; i < 2500; ++i) {
      chaos.step();
      started += static_cast<int>(chaos.s.all<StartActor>().size());
      for (const auto& start : chaos.s.all<StartActor>()) {
        lives += start.incarnation > 1 ? 1 : 0;
        in_groups += start.spec.demand.group ? 1 : 0;
        together += start.reason.starts_with("placement group") && !start.spec.demand.group ? 1 : 0;
      }
      for (const auto& persist : chaos.s.all<Persist>()) {
        const auto* group = std::get_if<GroupRecord>(&persist.record);
        removed += group != nullptr && group->state == GroupState::kEnding ? 1 : 0;
        const auto* job = std::get_if<JobRecord>(&persist.record);
        jobs_parked += job != nullptr && job->parked ? 1 : 0;
      }
      for (const auto& answered : chaos.s.all<JobAnswered>()) {
        taken_over += answered.reason.ends_with("detached actors of an earlier one") ? 1 : 0;
      }
      drivers += static_cast<int>(chaos.s.all<StartDriver>().size());
      for (const auto& [number, spawn] : chaos.s.head->waiting().all())
        parked += spawn.stopped_by != 0 ? 1 : 0;
    }
    waited += chaos.waited;
    // The store holds what the machine holds, and no more.
    for (const auto& [key, record] : chaos.s.store) {
      const auto* actor = std::get_if<ActorRecord>(&record);
      if (actor != nullptr) REQUIRE(chaos.s.head->actors().contains(actor->actor));
      const auto* node = std::get_if<NodeRecord>(&record);
      const auto* submission = std::get_if<SubmissionRecord>(&record);
      const auto* group = std::get_if<GroupRecord>(&record);
      if (group != nullptr) REQUIRE(chaos.s.head->groups().find(group->group)->record == *group);
      if (submission != nullptr)
        REQUIRE(*chaos.s.head->submissions().find(submission->spec.id) == *submission);
      if (const auto* queue = std::get_if<QueueRecord>(&record)) {
        const auto all = chaos.s.head->queue_statuses();
        REQUIRE(std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.queue == *queue; }));
      }
      const auto* job = std::get_if<JobRecord>(&record);
      if (job != nullptr && !job->name.empty())
        REQUIRE(chaos.s.head->jobs().named(job->name)->record == *job);
      if (node != nullptr) REQUIRE(node->dead != chaos.s.head->nodes().contains(node->node.id));
    }
  }
  CHECK(started > 200);  // some eight hundred
  CHECK(lives > 0);      // some fifty
  CHECK(drivers > 200);
  CHECK(in_groups > 5);  // some hundred
  CHECK(removed > 10);
  CHECK(together > 0);
  CHECK(parked > 0);
  CHECK(jobs_parked > 0);  // some forty
  CHECK(taken_over > 0);
  CHECK(waited > 50);  // some three thousand
}
