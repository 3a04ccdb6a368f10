#include "tests/simulation/submissions.hpp"

#include <numeric>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

std::uint64_t sum(const View<std::uint64_t>& words) {
  return std::accumulate(words.begin(), words.end(), std::uint64_t{0});
}

/// Mostly nothing, sometimes longer than what goes behind it may wait; now and then its process crashes.
void work(std::uint64_t task) {
  Hosted& process = Hosted::current();
  Cluster& cluster = process.cluster;
  World& world = cluster.world;
  cluster.submissions.begins(task, process);
  const bool crashes = !cluster.faults_over && cluster.scenario.faults > 0 &&
                       dynamic_cast<Worker*>(&process) != nullptr && world.chance(0.02);
  if (crashes) {
    ++cluster.submissions.crashes;
    world.after(process, world.between(Duration{0}, milliseconds(30)), "crash", [&process] {
      process.cluster.submissions.crashed_at = process.cluster.world.now();
      process.cluster.world.kill(process, "a task crashed");
    });
  }
  if (world.chance(0.6)) return;
  sleep_for(world.chance(0.93) ? world.between(microseconds(10), milliseconds(4))
                               : world.between(milliseconds(4), milliseconds(150)));
}

}  // namespace

std::uint64_t Submissions::add(const Hosted& by, int retries, bool is_plain) {
  all_[++numbers_] = {&by, retries, is_plain, false, nullptr};
  return numbers_;
}

void Submissions::begins(std::uint64_t number, const Hosted& in) {
  World& world = cluster_.world;
  Task& task = all_.at(number);
  waits_no_longer(number);
  world.trace(in.name, "begins task " + std::to_string(number));
  if (&in != task.by) workers_.try_emplace(&in, Served{task.by, {}});
  if (task.last_in != nullptr) {
    ++begun_again;
    const bool was_troubled = cluster_.last_fault_at && world.now() - *cluster_.last_fault_at < kFaultLasts;
    if (task.retries == 0)
      world.violation(in.name + " begins task " + std::to_string(number) + ", which may run once, again");
    // Where queues are full, or rings cannot be made, a push is refused, and its worker given up.
    const bool gives_up = cluster_.scenario.no_rings > 0 || cluster_.scenario.link_bytes < kLinkQueueBytes;
    const bool all_are_near =
        task.is_plain && task.last_in->node == task.by->node && in.node == task.by->node;
    if (task.last_in->alive && !gives_up && (all_are_near || !was_troubled))
      world.violation(in.name + " begins task " + std::to_string(number) + " again, and nothing was lost");
  }
  task.last_in = &in;
}

void Submissions::failed(const ErrorInfo& error, std::uint64_t number, const ObjectRef<Words>& value,
                         const Hosted& by) {
  if (error.code == ErrorCode::kCancelled && all_.at(number).is_cancelled) return;
  cluster_.values.failed(error, value, by);
}

void Submissions::look(Duration bound) {
  const Instant now = cluster_.world.now();
  for (auto& [worker, served] : workers_) {
    const bool is_gone = !served.owner->alive || cluster_.declared_dead.contains(served.owner->node->info.id);
    if (!worker->alive || !is_gone) continue;
    if (served.gone_at == Instant{}) served.gone_at = now;
    if (now - std::max(served.gone_at, cluster_.faults_over_at) > bound)
      cluster_.world.violation(worker->name + " runs tasks of " + served.owner->name + ", which is gone");
  }
}

void Submissions::wants(std::uint64_t task) {
  Greedy& greedy = greedy_[all_.at(task).by];
  if (greedy.wait.empty()) greedy.since = cluster_.world.now();
  greedy.wait.insert(task);
}

void Submissions::waits_no_longer(std::uint64_t task) {
  const auto greedy = greedy_.find(all_.at(task).by);
  if (greedy == greedy_.end() || greedy->second.wait.erase(task) == 0) return;
  greedy->second.since = cluster_.world.now();
}

void Submissions::look_for_starved(Duration bound) const {
  const Instant now = cluster_.world.now();
  for (const auto& [process, greedy] : greedy_) {
    const bool is_there = process->alive && process->node->alive && !process->has_lost_node() &&
                          !cluster_.declared_dead.contains(process->node->info.id);
    if (!is_there || greedy.wait.empty()) continue;
    const Instant at_ease =
        cluster_.last_fault_at ? std::max(greedy.since, *cluster_.last_fault_at + seconds(25)) : greedy.since;
    if (now - at_ease > bound)
      cluster_.world.violation("none of the " + std::to_string(greedy.wait.size()) + " tasks of " +
                               process->name + " begins, and others' do");
  }
}

Words Submissions::words_of(std::uint64_t number, std::size_t words) const {
  SeededRandom random(mix(cluster_.scenario.seed, 5'000'000 + number));
  Words made(words);
  for (auto& word : made) word = random.next();
  made[0] = number;
  return made;
}

std::uint64_t sum_task(std::uint64_t task, const View<std::uint64_t>& words) {
  work(task);
  return sum(words);
}

Words make_task(std::uint64_t task, std::uint64_t number, std::uint64_t words) {
  work(task);
  return Hosted::current().cluster.submissions.words_of(number, words);
}

Words copy_task(std::uint64_t task, const View<std::uint64_t>& words) {
  work(task);
  return {words.begin(), words.end()};
}

std::uint64_t tree_task(std::uint64_t task, const ObjectRef<Words>& words) {
  work(task);
  Hosted& process = Hosted::current();
  const auto session = process.session().with({.num_cpus = 0});
  const auto one = session.submit<&sum_task>(process.cluster.submissions.add(process, 3, true), words);
  const auto other = session.submit<&sum_task>(process.cluster.submissions.add(process, 3, true), words);
  const auto sum = one.get();
  if (sum != other.get()) process.cluster.world.violation(process.name + " hears of two values in one");
  return sum;
}

std::uint64_t read_task(std::uint64_t task, const ObjectRef<Words>& value) {
  work(task);
  const Words words = value.get();
  // Sometimes it goes on for so long that the head's books have to be right again.
  World& world = Hosted::current().cluster.world;
  if (world.chance(0.4)) sleep_for(world.between(seconds(1), seconds(6)));
  return std::accumulate(words.begin(), words.end(), std::uint64_t{0});
}

std::uint64_t busy_task(std::uint64_t task) {
  work(task);
  sleep_for(Hosted::current().cluster.world.between(milliseconds(200), milliseconds(1200)));
  return task;
}

ObjectRef<Words> put_task(std::uint64_t task, std::uint64_t number, std::uint64_t words) {
  work(task);
  Hosted& process = Hosted::current();
  return process.session().put(process.cluster.submissions.words_of(number, words));
}

}  // namespace troupe::sim
