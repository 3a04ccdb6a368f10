#include "tests/simulation/load.hpp"

#include <algorithm>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

constexpr int kTasksInGroup = 6;

}  // namespace

// Truth.

bool Load::has_no_life(const Echo& echo) const {
  return echo.in == nullptr || echo.destroyed || !echo.in->alive || !echo.in->node->alive ||
         cluster_.declared_dead.contains(echo.in->node->info.id);
}

bool Load::is_gone(const Echo& echo) const {
  if (!has_no_life(echo)) return false;
  return !echo.restarts || !echo.id || !*cluster_.disk.storage.get("actor/" + to_string(echo.id));
}

void Load::constructed(std::uint64_t echo, Hosted& in) {
  Echo& of = all_[echo];
  // Its node was stopped meanwhile, and does not know yet that it is dead to all others: no life, as above.
  if (cluster_.declared_dead.contains(in.node->info.id)) return;
  if (!has_no_life(of)) cluster_.world.violation("an actor lives twice");
  if (of.restarts && of.lives++ > 0) {
    ++restarted;
    // One that moves from a node that drains uses up none.
    const auto most = static_cast<std::uint64_t>(std::max(0, of.max_restarts)) + moves_[of.id].size();
    if (of.id && of.max_restarts >= 0 && of.lives - of.lives_at_up > most)
      cluster_.world.violation("an actor lives more often than its max_restarts lets it");
    of.in = &in;
    of.destroyed = false;
    return;
  }
  of.in = &in;
  of.destroyed = false;
  of.gone_at = {};
}

void Load::up(std::uint64_t echo, ActorId id) {
  all_[echo].id = id;
  all_[echo].lives_at_up = all_[echo].lives;
}

bool Load::holds_detached(const Hosted& who) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& echo) { return echo.second.detached && echo.second.in == &who; });
}

void Load::found_detached(ActorId id, const Hosted& by) {
  const Hosted*& last = found_[id];
  taken_over += last != nullptr && last != &by ? 1 : 0;
  last = &by;
}

void Load::destroyed(std::uint64_t echo, const Hosted& in) {
  if (Echo& of = all_.at(echo); of.in == &in) of.destroyed = true;
}

Instant Load::cluster_now() const {
  return cluster_.world.now();
}

void Load::watched(std::uint64_t echo, const Hosted& by) {
  ++all_.at(echo).watchers[&by];
}

void Load::told(std::uint64_t echo, const Hosted& by) {
  Echo& of = all_.at(echo);
  ++deaths_told;
  if (!is_gone(of) && !by.has_lost_node())
    cluster_.world.violation(by.name + " is told of the death of an actor that lives");
  if (--of.watchers[&by] < 0) cluster_.world.violation(by.name + " is told of a death twice");
}

void Load::failed(const ErrorInfo& error, const std::vector<std::uint64_t>& about) {
  ++errors;
  bool gone = false;
  for (const auto echo : about) gone |= all_.contains(echo) && is_gone(all_.at(echo));
  switch (error.code) {
    case ErrorCode::kUnavailable:
      return;
    case ErrorCode::kActorDied:
      if (!gone) cluster_.world.violation("an actor that lives is called dead: " + error.message());
      return;
    case ErrorCode::kTaskFailed:  // its promise was dropped
      if (!gone) cluster_.world.violation("an actor that lives gives no answer: " + error.message());
      return;
    case ErrorCode::kRefused:
      if (!cluster_.job_done) cluster_.world.violation("a call is refused: " + error.message());
      return;
    default:
      cluster_.world.violation("a call ends otherwise: " + error.message());
  }
}

void Load::look(Duration bound) {
  const Instant now = cluster_.world.now();
  for (auto& [number, echo] : all_) {
    if (is_gone(echo)) {
      if (echo.gone_at == Instant{}) echo.gone_at = now;
    } else {
      for (const auto& [by, since] : unwanted_[number]) {
        if (by->alive && now - std::max(since, cluster_.faults_over_at) > bound)
          return cluster_.world.violation("an actor that " + by->name + " has killed lives on in " +
                                          echo.in->name);
      }
      continue;
    }
    for (const auto& [by, owed] : echo.watchers) {
      if (owed > 0 && by->alive && now - std::max(echo.gone_at, cluster_.faults_over_at) > bound)
        return cluster_.world.violation(by->name + " is not told of a death");
    }
  }
}

// Who is called.

EchoActor::EchoActor(std::uint64_t number) : number_(number) {
  Hosted& process = Hosted::current();
  Load& load = process.cluster.load;
  load.constructed(number_, process);
  life_ = load.life(number_);
  // No life to all others, as in constructed(): what it begins with is nobody's.
  has_begun_ = process.cluster.declared_dead.contains(process.node->info.id);
}

EchoActor::~EchoActor() {
  Hosted::current().cluster.load.destroyed(number_, Hosted::current());
}

void EchoActor::in_order(std::uint64_t caller, std::uint64_t sequence) {
  Hosted& process = Hosted::current();
  if (!std::exchange(has_begun_, true)) process.cluster.load.saved.begins(number_, life_, count_, process);
  ++count_;
  auto& last = last_[caller];
  if (sequence <= last && !Hosted::current().cluster.load.retries(number_))
    Hosted::current().cluster.world.violation("calls of one caller are out of order");
  last = sequence;
}

Future<EchoAnswer> EchoActor::echo(std::uint64_t caller, std::uint64_t sequence, std::string /*padding*/) {
  in_order(caller, sequence);
  Promise<EchoAnswer> answer;
  Hosted& process = Hosted::current();
  World& world = process.cluster.world;
  if (process.cluster.load.has_other_lives(number_) && world.chance(0.1)) {
    world.after(process, world.between(Duration{0}, milliseconds(300)), "crash", [&process] {
      if (!process.cluster.faults_over) process.cluster.world.kill(process, "it crashed");
    });
  }
  const Duration takes = world.chance(0.5) ? Duration{0} : world.between(milliseconds(1), milliseconds(400));
  this_actor().run_after(takes, [this, &saved = process.cluster.load.saved, answer, sequence]() mutable {
    answer.set(EchoAnswer{sequence, {number_, life_, count_, saved.heads_lost()}});
  });
  return answer.future();
}

Future<EchoAnswer> EchoActor::relay(std::uint64_t caller, std::uint64_t sequence,
                                    ActorHandle<EchoActor> next) {
  in_order(caller, sequence);
  return next.call<&EchoActor::echo>(mix(number_, 1 + life_), ++sequences_[next.address().actor], "");
}

void EchoActor::note(std::uint64_t caller, std::uint64_t sequence, std::string /*padding*/) {
  in_order(caller, sequence);
}

// Who calls.

CallerActor::CallerActor()
    : me_(this_actor()),
      process_(Hosted::current()),
      cluster_(process_.cluster),
      number_(cluster_.load.new_echo()),
      callees_(3) {
  for (std::size_t at = 0; at < callees_.size(); ++at) fill(at);
  // Not in a worker: the groups of one that died would hold, to the end of the job, room that it needs to
  // end.
  if (dynamic_cast<Driver*>(&process_) != nullptr) make_group_later();
}

// Placement groups: a few at a time, for a few seconds each.

Future<wire::GroupAnswer> CallerActor::ask(cluster::GroupVerb verb, GroupId group, cluster::GroupSpec spec) {
  const auto asking = process_.expect("an answer about a placement group", seconds(80));
  const Future<wire::GroupAnswer> answer(me_.process().group(verb, group, std::move(spec)));
  answer.then([this, asking](const Result<wire::GroupAnswer>&) { process_.met(asking); });
  return answer;
}

void CallerActor::make_group_later() {
  me_.run_after(cluster_.world.between(milliseconds(50), seconds(2)), [this] {
    if (cluster_.job_done || cluster_.faults_over) return;  // the job needs the room to end
    make_group();
    make_group_later();
  });
}

void CallerActor::make_group() {
  World& world = cluster_.world;
  cluster::GroupSpec spec;
  spec.strategy = static_cast<PlacementStrategy>(world.random.below(4));
  const std::size_t bundles = 1 + world.random.below(3);
  for (std::size_t i = 0; i < bundles; ++i)
    spec.bundles.push_back({static_cast<std::int64_t>(1 + world.random.below(10)) * cluster::kCpu / 10, 0});
  ask(cluster::GroupVerb::kMake, {}, spec).then([this](const Result<wire::GroupAnswer>& made) {
    if (!made) return cluster_.world.trace(process_.name, "no group: " + made.error().message());
    const GroupId group = made->status.record.group;
    groups_[group];
    for (int i = 0; cluster_.scenario.greedy_tasks && i < kTasksInGroup; ++i) submit_into(group);
    ask(cluster::GroupVerb::kAwait, group).then([this](const Result<wire::GroupAnswer>& ready) {
      if (ready) ++cluster_.load.groups_ready;
    });
    me_.run_after(cluster_.world.between(milliseconds(1), seconds(6)),
                  [this, group] { remove_group(group); });
  });
}

/// One after another, as long as the group is there: its bundles are full of tasks when actors come.
void CallerActor::submit_into(GroupId group) {
  if (cluster_.job_done || !groups_.contains(group)) return;
  const auto task = cluster_.submissions.add(process_, 3, true);
  const auto running = process_.expect("task " + std::to_string(task) + " in a group", seconds(120));
  me_.session()
      .with({.num_cpus = 0.1, .placement_group = group})
      .submit<&busy_task>(task)
      .then([this, group, running](const Result<std::uint64_t>&) {
        process_.met(running);
        me_.run_after(milliseconds(1), [this, group] { submit_into(group); });
      });
}

void CallerActor::remove_group(GroupId group) {
  const auto in_it = groups_.extract(group).mapped();
  ask(cluster::GroupVerb::kRemove, group)
      .then([this, group, in_it](const Result<wire::GroupAnswer>& removed) {
        if (!removed) {
          if (process_.has_lost_node()) return;  // the job ends
          groups_[group] = in_it;
          me_.run_after(milliseconds(500), [this, group] { remove_group(group); });
          return;
        }
        ++cluster_.load.groups_removed;
        for (const std::uint64_t number : in_it) cluster_.load.killed(number, process_);
      });
}

void CallerActor::fill(std::size_t at) {
  if (cluster_.job_done) return;
  World& world = cluster_.world;
  const std::uint64_t number = cluster_.load.new_echo();
  ActorOptions options;
  options.label = "echo";
  options.isolated = world.chance(0.2);
  if (world.chance(0.5) && !cluster_.nodes.empty()) {
    const Node* on = cluster_.nodes[world.random.below(cluster_.nodes.size())];
    if (on->is_member) options.node = on->info.id;
  }
  if (!groups_.empty() && world.chance(0.5)) {
    auto in = groups_.begin();
    std::advance(in, static_cast<std::ptrdiff_t>(world.random.below(groups_.size())));
    options.node = {};
    options.isolated = true;
    options.num_cpus = static_cast<double>(world.random.below(6)) / 10;
    options.placement_group = in->first;
    if (world.chance(0.3)) options.bundle = 0;
    in->second.push_back(number);
  }
  if (options.isolated && world.chance(0.6)) {
    options.max_restarts = static_cast<int>(world.random.below(4)) - 1;
    if (options.max_restarts != 0) {
      options.max_task_retries = world.chance(0.5) ? 2 : 0;
      cluster_.load.restarts(number, options.max_restarts, options.max_task_retries != 0);
    }
  }
  const auto spawning = process_.expect("a spawn", seconds(80));
  const auto spawned = me_.session().spawn_async<EchoActor>(options, number);
  spawned.then([this, at, number, spawning](Result<ActorHandle<EchoActor>> handle) {
    process_.met(spawning);
    if (handle) return up(at, number, *handle);
    cluster_.world.trace(process_.name, "no echo: " + handle.error().message());
    me_.run_after(cluster_.world.between(milliseconds(10), seconds(2)), [this, at] { fill(at); });
  });
  // The head ends what nobody waits for any more. (A light one may live on when its answer is lost.)
  if (!options.isolated || !world.chance(0.2)) return;
  me_.run_after(world.between(milliseconds(1), milliseconds(200)), [this, number, state = spawned.state()] {
    if (state->ready()) return;
    cluster_.load.killed(number, process_);
    state->cancel({ErrorCode::kTimeout, "an actor was not started", "it took too long", ""});
  });
}

void CallerActor::up(std::size_t at, std::uint64_t number, const ActorHandle<EchoActor>& handle) {
  callees_[at] = {number, handle, 0, 0};
  cluster_.load.up(number, handle.address().actor);
  cluster_.load.watched(number, process_);
  me_.session().monitor(handle, [this, at, number](const Death& death) {
    if (death.restarts) return;
    cluster_.load.told(number, process_);
    if (callees_[at].number != number) return cluster_.world.violation("a monitor is told too late");
    callees_[at] = {};
    me_.run_after(cluster_.world.between(Duration{0}, milliseconds(300)), [this, at] { fill(at); });
  });
  for (int i = 0; i < cluster_.scenario.calls_under_way; ++i) call(at);
}

void CallerActor::call(std::size_t at) {
  Callee& to = callees_[at];
  if (!to.handle || cluster_.job_done) return;
  World& world = cluster_.world;
  if (world.chance(0.03)) {
    cluster_.load.killed(to.number, process_);
    me_.session().kill(to.handle, "its caller does not want it any more");
  }
  const std::string padding(world.chance(0.2) ? world.random.below(2000) : 0, 'x');
  if (world.chance(0.2)) to.handle.tell<&EchoActor::note>(number_, ++to.sequence, padding);
  const auto calling = process_.expect("a call of an actor in " + to_string(to.handle.address().process) +
                                           " on " + to_string(to.handle.address().node),
                                       seconds(45));
  const auto& other = callees_[(at + 1) % callees_.size()];
  const bool relayed = other.handle && world.chance(0.2);
  const std::uint64_t sequence = ++to.sequence;
  auto answer = relayed ? to.handle.call<&EchoActor::relay>(number_, sequence, other.handle)
                        : to.handle.call<&EchoActor::echo>(number_, sequence, padding);
  answer.then([this, at, calling, relayed, sequence, number = to.number,
               other = other.number](const Result<EchoAnswer>& got) {
    ended(at, number, calling, got, relayed ? 0 : sequence, relayed ? other : number);
  });
}

void CallerActor::ended(std::size_t at, std::uint64_t number, std::uint64_t expectation,
                        const Result<EchoAnswer>& answer, std::uint64_t sequence, std::uint64_t other) {
  process_.met(expectation);
  if (answer) {
    cluster_.load.answered();
    cluster_.load.saved.delivered(answer->known);
    const std::uint64_t life = answer->known.life;
    if (sequence != 0 && answer->sequence != sequence)
      cluster_.world.violation("an answer is another call's");
    if (sequence != 0 && callees_[at].number == number) {
      if (life < callees_[at].life) cluster_.world.violation("an answer of an earlier life came late");
      callees_[at].life = life;
    }
  } else {
    cluster_.load.failed(answer.error(), {number, other});
  }
  const Duration pause = answer ? Duration{0} : cluster_.world.between(milliseconds(20), milliseconds(500));
  me_.run_after(pause, [this, at, number] {
    if (callees_[at].number == number) call(at);
  });
}

}  // namespace troupe::sim
