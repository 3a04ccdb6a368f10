#include "tests/simulation/values.hpp"

#include <numeric>

#include "runtime/objects/objects.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

/// Larger ones lie in shared memory.
constexpr std::size_t kInlineWords = objects::kInlineBytes / sizeof(std::uint64_t);
/// Nobody holds more.
constexpr std::size_t kMostHeld = 6;
constexpr int kMostGreedy = 10;

bool is_gone(const Hosted& owner) {
  return !owner.alive || !owner.node->alive || owner.has_lost_node() ||
         owner.cluster.declared_dead.contains(owner.node->info.id);
}

std::uint64_t sum_of(std::span<const std::uint64_t> words) {
  return std::accumulate(words.begin(), words.end(), std::uint64_t{0});
}

}  // namespace

// Truth.

Words Values::make(const Hosted& by) {
  SeededRandom random(mix(cluster_.scenario.seed, 1000 + ++numbers_));
  std::size_t words = kInlineWords + 1 + random.below(kInlineWords);
  if (random.below(8) == 0) words = 1 + random.below(1000);
  if (random.below(3) == 0) words = 4 * kInlineWords + random.below(4 * kInlineWords);  // in several parts
  Words made(words);
  for (auto& word : made) word = random.next();
  made[0] = numbers_;
  cluster_.world.trace(by.name, "puts value " + std::to_string(numbers_));
  return made;
}

void Values::has_put(const ObjectRef<Words>& value, const Words& words, const Hosted& by) {
  ++put;
  if (!all_.try_emplace(value.handle()->name(),
                        Value{&by, words[0], words.size(), sum_of(words), cluster_.world.now()})
           .second)
    cluster_.world.violation(by.name + " gave an object's name twice");
}

void Values::has_computed(const ObjectRef<Words>& value, const Words& words, const Hosted& by, int retries) {
  const objects::ObjectName& name = value.handle()->name();
  const Node* node = cluster_.find_any_node(name.owner.node);
  const Hosted* owner = name.is_computed() ? &by : nullptr;
  if (owner == nullptr && node != nullptr) {
    if (const auto local = node->locals.find(name.owner.process); local != node->locals.end())
      owner = local->second.process;
  }
  ++computed;
  all_.try_emplace(name,
                   Value{owner, words[0], words.size(), sum_of(words), cluster_.world.now(), retries, {}});
}

void Values::copies(const ObjectRef<Words>& value, const ObjectRef<Words>& copy, const Hosted& by,
                    int retries) {
  const auto at = all_.find(value.handle()->name());
  if (at == all_.end()) return;
  ++computed;
  Value words = at->second;
  words.owner = &by;
  words.made_at = cluster_.world.now();
  words.retries = retries;
  words.of = at->first;
  all_.try_emplace(copy.handle()->name(), words);
}

void Values::read(const ObjectRef<Words>& value, std::span<const std::uint64_t> words, const Hosted& by) {
  ++values_read;
  const auto at = all_.find(value.handle()->name());
  if (at == all_.end()) return;  // who put it died before it could say so
  const Value& of = at->second;
  if (words.size() != of.words || words[0] != of.number || sum_of(words) != of.sum)
    cluster_.world.violation(by.name + " read another value than " + std::to_string(of.number));
}

void Values::heard_sum(const ObjectRef<Words>& value, std::uint64_t sum, const Hosted& by) {
  ++values_read;
  const auto at = all_.find(value.handle()->name());
  if (at != all_.end() && sum != at->second.sum)
    cluster_.world.violation(by.name + " hears of another value than " + std::to_string(at->second.number));
}

void Values::not_put(const ErrorInfo& error, std::size_t bytes, const Hosted& by) {
  if (is_gone(by)) return;
  ++no_room;
  const std::string what = "cannot put an object of " + std::to_string(bytes) + " bytes";
  const bool is_clear = error.code == ErrorCode::kLimit && error.what == what && !error.todo.empty();
  if (cluster_.scenario.store_bytes == 0 || !is_clear)
    cluster_.world.violation("a put fails otherwise: " + error.message());
}

/// A link that broke is waited for, until it is made again or its node is declared dead.
void Values::not_read(const ErrorInfo& error, const ObjectRef<Words>& value, const Hosted& by) {
  const bool is_task = !error.origin.empty();  // its task has no answer
  if (value.handle()->name().is_computed() && error.code == ErrorCode::kUnavailable && !is_task &&
      !is_gone(by))
    cluster_.world.violation("a computed value is not asked for again: " + error.message());
  failed(error, value, by);
}

void Values::failed(const ErrorInfo& error, const ObjectRef<Words>& value, const Hosted& by) {
  if (is_gone(by)) return;
  switch (error.code) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kActorDied:
      return;
    case ErrorCode::kLimit:
      ++no_room;
      if (cluster_.scenario.store_bytes == 0)
        cluster_.world.violation("a value finds no room in a large store: " + error.message());
      return;
    case ErrorCode::kIo:  // the head's disk refuses the spawn of a worker, three times
      if (cluster_.scenario.faults == 0 ||
          error.what.find("cannot spawn worker of tasks") == std::string::npos)
        cluster_.world.violation("a task is not run: " + error.message());
      return;
    case ErrorCode::kObjectLost: {
      ++lost;
      const std::string no = value ? why_not_lost(error.why, value.handle()->name(), by) : "";
      if (!no.empty()) cluster_.world.violation("a value is lost, though " + no + ": " + error.message());
      return;
    }
    default:
      cluster_.world.violation("a value is not read: " + error.message());
  }
}

/// Empty: what docs/tasks-and-objects.md promises allows it, for that reason, which `by` is told.
std::string Values::why_not_lost(std::string_view why, const objects::ObjectName& name,
                                 const Hosted& by) const {
  const auto at = all_.find(name);
  if (at == all_.end() || at->second.owner == nullptr || is_gone(*at->second.owner)) return "";
  const Value& value = at->second;
  if (!cluster_.troubled_since(value.made_at)) return "nothing has died since it was made";
  // Who passed it on may have died longer ago than its reference counts, or the link broke for as long.
  if (why.ends_with("nobody held a reference to it any more") && value.owner != &by) return "";
  if (!name.is_computed()) return "who put it lives";
  const std::string again = "its task ran again " + std::to_string(value.retries) + " times";
  if (value.retries == 0 ? why.ends_with("; it is not computed again: its task has max_retries = 0")
                         : why.ends_with("; it is not computed again: " + again + ", as max_retries allows"))
    return "";
  // Its owner holds what its task reads, and tells of that in the same words.
  return value.of ? why_not_lost(why, value.of, *value.owner) : "its task may run again";
}

void Values::end() {
  if (!is_over()) over_at_ = cluster_.world.now();
}

std::string Values::left() const {
  for (const auto& process : cluster_.processes) {
    const auto* hosted = dynamic_cast<const Hosted*>(process.get());
    if (hosted == nullptr || !hosted->alive || hosted->runtime == nullptr) continue;
    if (hosted->name.starts_with("task ")) return hosted->name + " has no tasks any more, and lives";
    const auto counts = hosted->runtime->objects()->counts();
    const auto tasks = hosted->runtime->tasks()->counts();
    const auto some = [&](std::size_t count, const char* what) {
      return count == 0 ? "" : " " + std::to_string(count) + what;
    };
    const std::string all = some(counts.owned, " objects") + some(counts.borrowed, " references") +
                            some(counts.here, " others' objects") + some(counts.offered, " offers") +
                            some(counts.asked, " questions") + some(tasks.tasks, " tasks") +
                            some(tasks.entries, " entries of lineage") + some(tasks.leases, " leases") +
                            some(counts.spilled, " objects on disk") +
                            some(hosted->spill_disk->files(), " files");
    if (!all.empty()) return hosted->name + " has" + all;
  }
  for (const auto* nodes : {&cluster_.nodes, &cluster_.gateways}) {
    for (const Node* node : *nodes) {
      if (const auto regions = node->object_regions(); !regions.empty())
        return node->name + " has memory of " + std::to_string(regions.size()) + " objects: " + regions[0];
    }
  }
  return "";
}

void Values::look(Duration bound) {
  if (!is_over() || cluster_.job_done) return;
  if (cluster_.world.now() - std::max(over_at_, cluster_.faults_over_at) <= bound) return;
  if (const std::string some = left(); !some.empty())
    cluster_.world.violation("objects are left that nobody refers to: " + some);
}

// Who puts and reads.

PutterActor::PutterActor() : me_(this_actor()), process_(Hosted::current()), cluster_(process_.cluster) {
  me_.run_after(milliseconds(1), [this] { step(); });
}

void PutterActor::meet(const std::vector<ActorHandle<PutterActor>>& all) {
  others_ = all;
}

void PutterActor::keep(const ObjectRef<Words>& value) {
  hold(value);
}

std::uint64_t PutterActor::sum(const View<std::uint64_t>& words) {
  if (cluster_.world.chance(0.3)) view_ = words;
  return sum_of(words);
}

ObjectRef<Words> PutterActor::give() {
  return held_.empty() ? ObjectRef<Words>() : any();
}

const ObjectRef<Words>& PutterActor::any() const {
  return held_[cluster_.world.random.below(held_.size())];
}

void PutterActor::hold(const ObjectRef<Words>& value) {
  if (cluster_.values.is_over()) return;
  while (held_.size() >= kMostHeld) let_go();
  held_.push_back(value);
}

void PutterActor::let_go() {
  std::swap(held_[cluster_.world.random.below(held_.size())], held_.back());
  held_.pop_back();
}

/// One thing after another, until the end.
void PutterActor::step() {
  if (!process_.alive) return;
  if (cluster_.values.is_over()) {
    held_.clear();
    view_ = {};
    if (under_way_ == 0 && greedy_ == 0) return;
  } else if (cluster_.scenario.greedy_tasks && cluster_.world.chance(0.8)) {
    submit_more();
  } else {
    switch (cluster_.world.random.below(cluster_.scenario.tasks ? 12 : 9)) {
      case 0:
      case 1:
        put();
        break;
      case 2:
      case 3:
      case 4:
        read();
        break;
      case 5:
      case 6:
        call_another();
        break;
      case 7:
        show_all();
        break;
      case 9:
      case 10:
      case 11:
        submit();
        break;
      default:
        view_ = {};
        if (!held_.empty()) let_go();
    }
  }
  me_.run_after(cluster_.world.between(milliseconds(1), milliseconds(300)), [this] { step(); });
}

void PutterActor::put() {
  const Words words = cluster_.values.make(process_);
  const auto putting = process_.expect("a put", seconds(80));
  try {
    const auto value = me_.session().put(words);
    cluster_.values.has_put(value, words, process_);
    if (!me_.may_block()) cluster_.values.read(value, value.get(), process_);
    hold(value);
  } catch (const Error& error) {
    cluster_.values.not_put(error.info(), words.size() * sizeof words[0], process_);
  }
  process_.met(putting);
}

void PutterActor::read() {
  if (held_.empty() || !me_.may_block()) return;
  const ObjectRef<Words> value = any();  // it may be let go meanwhile
  const auto reading = process_.expect("a value", seconds(80));
  try {
    if (cluster_.world.chance(0.5)) {
      cluster_.values.read(value, value.get(), process_);
    } else {
      view_ = value.view();
      cluster_.values.read(value, view_, process_);
    }
  } catch (const Error& error) {
    cluster_.values.not_read(error.info(), value, process_);
  }
  process_.met(reading);
}

template <class T, class Then>
void PutterActor::await(const Future<T>& answer, const ObjectRef<Words>& of, Then then) {
  ++under_way_;
  const auto calling = process_.expect("a call about a value", seconds(80));
  answer.then([this, calling, of, then](const Result<T>& got) {
    --under_way_;
    process_.met(calling);
    got ? then(got) : cluster_.values.failed(got.error(), of, process_);
  });
}

void PutterActor::call_another() {
  if (others_.empty() || under_way_ >= 3) return;
  const auto& other = others_[cluster_.world.random.below(others_.size())];
  const auto what = cluster_.world.random.below(3);
  if (what == 0 || held_.empty()) {
    return await(other.call<&PutterActor::give>(), {}, [this](const Result<ObjectRef<Words>>& given) {
      if (*given) hold(*given);
    });
  }
  const ObjectRef<Words> value = any();
  if (what == 1) {
    show(other, value);
  } else {
    await(other.call<&PutterActor::keep>(value), value, [](const Result<void>&) {});
  }
}

void PutterActor::show(const ActorHandle<PutterActor>& other, const ObjectRef<Words>& value) {
  await(other.call<&PutterActor::sum>(value), value, [this, value](const Result<std::uint64_t>& sum) {
    cluster_.values.heard_sum(value, *sum, process_);
  });
}

/// At a time: of each node one makes the copy, and the others wait for it.
void PutterActor::show_all() {
  if (held_.empty() || under_way_ != 0) return;
  const ObjectRef<Words> value = any();
  for (const auto& other : others_) show(other, value);
}

// Tasks.

template <class T, class Then>
void PutterActor::await_task(std::uint64_t task, const Future<T>& answer, const ObjectRef<Words>& of,
                             Then then) {
  ++under_way_;
  const auto running = process_.expect("task " + std::to_string(task), seconds(120));
  answer.then([this, task, running, of, then](const Result<T>& got) {
    --under_way_;
    process_.met(running);
    if (!got) return cluster_.submissions.failed(got.error(), task, of, process_);
    cluster_.submissions.answered();
    then(*got);
  });
  if (!cluster_.world.chance(0.05)) return;
  me_.run_after(cluster_.world.between(Duration{0}, milliseconds(100)), [this, task, answer] {
    if (answer.ready()) return;
    cluster_.submissions.cancelled(task);
    answer.cancel(cluster_.world.between(Duration{0}, milliseconds(200)));
  });
}

/// For no CPUs: the job wants those.
void PutterActor::submit() {
  if (under_way_ >= 3) return;
  const int retries = cluster_.world.chance(0.4) ? 0 : 3;
  if (cluster_.scenario.waiting_tasks && !cluster_.scenario.greedy_tasks && cluster_.world.chance(0.2))
    return submit_waiting(retries);
  const bool breaks_rule = cluster_.scenario.floor.retry_once && retries == 0;
  const auto session = me_.session().with({.num_cpus = 0, .max_retries = breaks_rule ? 1 : retries});
  cluster_.world.chance(0.4) ? compute(session, retries) : submit_some(session, retries);
}

void PutterActor::compute(const tasks::Submitter& to, int retries) {
  Submissions& all = cluster_.submissions;
  const auto task = all.add(process_, retries);
  if (!held_.empty() && cluster_.world.chance(0.5)) {
    const ObjectRef<Words> of = any();
    const auto copy = to.compute<&copy_task>(task, of);
    cluster_.values.copies(of, copy, process_, retries);
    return hold(copy);
  }
  const Words words = all.words_of(task, 1 + cluster_.world.random.below(2 * kInlineWords));
  const auto made = to.compute<&make_task>(task, task, words.size());
  cluster_.values.has_computed(made, words, process_, retries);
  hold(made);
}

/// Each for a CPU, and often more than there are: they wait for what one computes that goes behind them,
/// since what it reads is computed before: first of all, or of something that needs no CPU, and so behind
/// them, too.
void PutterActor::submit_waiting(int retries) {
  Submissions& all = cluster_.submissions;
  const auto to = me_.session().with({.num_cpus = 1, .max_retries = retries});
  const bool readers_first = cluster_.world.chance(0.5);
  const auto first = all.add(process_, retries);
  const Words words = all.words_of(first, 1 + cluster_.world.random.below(kInlineWords));
  auto made = me_.session()
                  .with({.num_cpus = readers_first ? 0.0 : 1.0, .max_retries = retries})
                  .compute<&make_task>(first, first, words.size());
  cluster_.values.has_computed(made, words, process_, retries);
  ObjectRef<Words> copy;
  for (int copies = readers_first ? 2 : 1; copies > 0; --copies) {
    copy = to.compute<&copy_task>(all.add(process_, retries), made);
    cluster_.values.copies(made, copy, process_, retries);
    made = copy;
  }
  hold(copy);
  const std::uint64_t most = readers_first ? 12 : 6;
  for (std::uint64_t left = 1 + cluster_.world.random.below(most); left > 0; --left) {
    const auto task = all.add(process_, retries);
    await_task(task, to.submit<&read_task>(task, copy), copy,
               [this, copy](std::uint64_t sum) { cluster_.values.heard_sum(copy, sum, process_); });
  }
}

/// As many at a time as take all CPUs that the job leaves.
void PutterActor::submit_more() {
  Submissions& all = cluster_.submissions;
  for (; greedy_ < kMostGreedy; ++greedy_) {
    const auto task = all.add(process_, 3, true);
    const auto running = process_.expect("task " + std::to_string(task), seconds(120));
    all.wants(task);
    me_.session()
        .with({.num_cpus = 1})
        .submit<&busy_task>(task)
        .then([this, task, running](const Result<std::uint64_t>& got) {
          --greedy_;
          process_.met(running);
          cluster_.submissions.waits_no_longer(task);
          if (!got) return cluster_.submissions.failed(got.error(), task, {}, process_);
          cluster_.submissions.answered();
        });
  }
}

/// One with a result that it puts; or some with an argument, which make a worker's second place worth while.
void PutterActor::submit_some(const tasks::Submitter& to, int retries) {
  Submissions& all = cluster_.submissions;
  if (held_.empty() || cluster_.world.chance(0.3)) {
    const auto task = all.add(process_, retries);
    const Words words = all.words_of(task, 1 + cluster_.world.random.below(2 * kInlineWords));
    return await_task(task, to.submit<&put_task>(task, task, words.size()), {},
                      [this, words](const ObjectRef<Words>& put) {
                        cluster_.values.has_computed(put, words, process_);
                        hold(put);
                      });
  }
  const ObjectRef<Words> of = any();
  if (cluster_.world.chance(0.2)) {
    const auto task = all.add(process_, retries);
    return await_task(task, to.submit<&tree_task>(task, of), of,
                      [this, of](std::uint64_t sum) { cluster_.values.heard_sum(of, sum, process_); });
  }
  const std::uint64_t most = cluster_.world.chance(0.3) ? 40 : 8;
  for (std::uint64_t left = 1 + cluster_.world.random.below(most); left > 0; --left) {
    const auto task = all.add(process_, retries, true);
    await_task(task, to.submit<&sum_task>(task, of), of,
               [this, of](std::uint64_t sum) { cluster_.values.heard_sum(of, sum, process_); });
  }
}

// Who has them.

PutterSpawner::PutterSpawner()
    : me_(this_actor()),
      process_(Hosted::current()),
      cluster_(process_.cluster),
      putters_(static_cast<std::size_t>(cluster_.scenario.putters)) {
  for (std::size_t at = 0; at < putters_.size(); ++at) fill(at);
  introduce();
}

void PutterSpawner::fill(std::size_t at) {
  if (cluster_.values.is_over()) return;
  ActorOptions options;
  options.label = "putter";
  options.isolated = cluster_.world.chance(0.7);
  if (cluster_.world.chance(0.7) && !cluster_.nodes.empty()) {
    const Node* on = cluster_.nodes[cluster_.world.random.below(cluster_.nodes.size())];
    if (on->is_member) options.node = on->info.id;
  }
  const auto spawning = process_.expect("a spawn", seconds(80));
  me_.session().spawn_async<PutterActor>(options).then(
      [this, at, spawning](const Result<ActorHandle<PutterActor>>& handle) {
        process_.met(spawning);
        const auto again = [this, at] {
          putters_[at] = {};
          me_.run_after(cluster_.world.between(milliseconds(10), seconds(2)), [this, at] { fill(at); });
        };
        if (!handle) return again();
        putters_[at] = *handle;
        me_.session().monitor(*handle, [again](const Death&) { again(); });
      });
}

/// Again and again: a word without an answer may be lost.
void PutterSpawner::introduce() {
  if (cluster_.values.is_over()) return;
  std::vector<ActorHandle<PutterActor>> all;
  for (const auto& putter : putters_) {
    if (putter) all.push_back(putter);
  }
  for (const auto& putter : all) putter.tell<&PutterActor::meet>(all);
  me_.run_after(cluster_.world.between(milliseconds(100), milliseconds(900)), [this] { introduce(); });
}

}  // namespace troupe::sim
