/// The harness: starts processes, injects faults, looks after them, and says when a run is over.
#include "tests/simulation/cluster.hpp"

#include <algorithm>

#include "runtime/host/may_wait.hpp"

namespace troupe::sim {

namespace {

/// For what the job has in shared memory, and for a large value.
constexpr std::uint64_t kStoreOfJob = std::uint64_t{1} << 20;
constexpr std::uint64_t kStoreOfValue = std::uint64_t{512} << 10;

}  // namespace

Scenario draw_scenario(std::uint64_t seed) {
  SeededRandom random(mix(seed, 1));
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random.below(high - low + 1)); };
  Scenario s;
  s.seed = seed;
  s.nodes = pick(1, 3);
  s.driver_host = pick(0, s.nodes);
  s.faults = pick(0, 16);
  s.tight_cpus = pick(0, 3) == 0;
  s.foreign_driver = pick(0, 3) == 0;
  train::RunOptions& job = s.job;
  auto& settings = job.settings;
  settings.seed = seed;
  settings.job_text = "Stub{}";
  settings.micro_batch = pick(1, 3);
  settings.logical_ranks = pick(1, 6);
  settings.group_timeout_s = 30;
  settings.epochs = pick(1, 4);
  job.trainers = pick(1, std::min(settings.logical_ranks, 4));
  job.min_trainers = pick(0, 3) == 0 ? pick(1, job.trainers) : 1;
  job.trainer_room.cpus = 1;
  job.loaders = pick(1, 3);
  s.steps_per_epoch = pick(2, 8);
  s.test_samples = pick(0, 2) == 0 ? 0 : pick(1, 700);
  if (pick(0, 1) == 1) settings.checkpoint_folder = "/checkpoints";
  job.checkpoint_every = pick(0, 4);
  job.ahead = pick(1, 8);
  job.keep_checkpoints = pick(2, 4);
  job.restart = {
      .budget = 1000, .at_one_step = 1000, .first_pause = milliseconds(100), .longest_pause = seconds(1)};
  job.deadlines.hang = seconds(20);
  // Sometimes everything is so narrow that queues are full.
  if (pick(0, 2) == 0) {
    s.limits = {pick(0, 1) == 0 ? 2048U : 16384U, 2048, 512, 512, 4096, 2048};
    s.link_bytes = static_cast<std::size_t>(pick(1, 8)) * 512;
    s.ring_bytes = static_cast<std::size_t>(pick(1, 4)) * 256;
  }
  s.no_rings = pick(0, 3) == 0 ? 0.2 : 0;
  s.callers = pick(0, 2);
  s.calls_under_way = pick(1, 8);
  if (s.test_samples > 0 && pick(0, 1) == 0) job.stop_early = {"test/accuracy", pick(1, 3), 0, {}};
  if (s.test_samples > 0 && !settings.checkpoint_folder.empty() && pick(0, 1) == 0)
    job.keep_best = "test/accuracy";
  // Sometimes long enough for steps to go on while somebody takes the state beside them.
  if (pick(0, 5) == 0) s.steps_per_epoch = pick(20, 60);
  // Sometimes trainers hold GPUs, or share them.
  const int gpus = pick(0, 3);
  job.settings.trainer_gpus = gpus == 0 ? 1 : gpus == 1 ? 0.5 : 0;
  // Sometimes it is evaluated within epochs, too. (The referee knows of epochs when a job is to stop early.)
  const bool watches = !job.stop_early.metric.empty() || !job.keep_best.empty();
  if (s.test_samples > 0 && !watches && pick(0, 1) == 0) job.evaluations.every = pick(1, 5);
  s.detached = pick(0, 1) == 0;
  // Objects: mostly in stores that have room for a few, often with a disk that refuses some of them.
  s.putters = pick(0, 1) == 0 ? 0 : pick(1, 4);
  if (s.putters > 1 && pick(0, 3) > 0) s.nodes = std::max(s.nodes, 2);
  s.lingers = s.putters > 0 ? seconds(pick(0, 7)) : Duration{0};
  if (s.lingers > seconds(1)) s.fault_gap = 3000, s.faults += pick(0, 8);
  const int disk = pick(0, 3);
  if (pick(0, 4) > 0) s.store_bytes = kStoreOfJob + static_cast<std::uint64_t>(pick(3, 8)) * kStoreOfValue;
  s.tasks = pick(0, 2) > 0;
  s.links_alone = pick(0, 7) == 0;
  s.no_direct = pick(0, 3) == 0 ? 0.5 : 0;
  s.direct_breaks = pick(0, 2) == 0 ? 0 : 0.3;
  if (pick(0, 1) == 0) s.object_limits.part_bytes = std::uint64_t{64} << (10 + pick(0, 2));
  s.waiting_tasks = s.putters > 0 && s.tasks && pick(0, 1) == 0;
  s.spill_refused = disk == 0 ? 0 : disk == 1 ? 0.05 : disk == 2 ? 0.3 : 0.8;
  s.greedy_tasks = s.waiting_tasks && s.putters > 1 && pick(0, 2) == 0;
  if (s.greedy_tasks) s.lingers = seconds(60);
  return s;
}

Scenario draw_sweep_scenario(std::uint64_t seed) {
  Scenario s = draw_scenario(seed);
  s.putters = 0;
  s.lingers = Duration{0};
  s.fault_gap = 600;
  s.job.settings.checkpoint_folder.clear();
  s.job.settings.trainer_gpus = 0;
  s.sweep = draw_sweep(seed, s.job.trainers);
  return s;
}

namespace {

data::SamplerOptions sampler_of(const Scenario& scenario) {
  train::DataInfo info;
  const auto& job = scenario.job.settings;
  info.train_size = scenario.steps_per_epoch * job.logical_ranks * job.micro_batch;
  return train::sampler_options(job, info);
}

}  // namespace

Cluster::Cluster(Scenario with, bool verbose)
    : scenario(std::move(with)),
      world(mix(scenario.seed, 2), verbose),
      ids(mix(scenario.seed, 3)),
      threads(world),
      floor(*this),
      sampler(sampler_of(scenario)),
      network(world),
      load(*this),
      values(*this),
      submissions(*this),
      copies(*this) {
  const auto& job = scenario.job.settings;
  for (std::int64_t step = 0; step < job.epochs * scenario.steps_per_epoch; ++step) {
    auto& leaves = indices.emplace_back();
    const auto epoch = static_cast<std::uint64_t>(step / scenario.steps_per_epoch);
    for (int leaf = 0; leaf < job.logical_ranks; ++leaf)
      leaves.push_back(data::index_hash(sampler.indices(epoch, step % scenario.steps_per_epoch, leaf)));
  }
  reference = reference_run(scenario.seed, indices);
  if (scenario.sweep) sweep.emplace(world, *scenario.sweep);
  world.on_kill = [this](Process& process) { killed(process); };
  faults_left_ = scenario.faults;
}

/// What it has mapped goes with it: nobody reads that memory any more.
void Cluster::killed(Process& process) {
  network.process_died(process);
  auto* worker = dynamic_cast<Worker*>(&process);
  if (worker != nullptr && worker->has_objects)
    world.outside(Duration{0}, "~its memory goes", [worker] { worker->tear_down(); });
}

/// Processes refer to each other and to the world: their memory goes first.
Cluster::~Cluster() {
  const NoWaitScope one_thread;
  world.end();
  for (const auto& process : processes) {
    if (auto* hosted = dynamic_cast<Hosted*>(process.get())) hosted->tear_down();
  }
}

Instant Cluster::now_at(const Process& process) const {
  const auto host = clocks_ahead.find(process.host);
  return world.now() + process.ahead + (host == clocks_ahead.end() ? Duration{0} : host->second);
}

bool Cluster::troubled_since(Instant then) const {
  if (last_fault_at && *last_fault_at + kFaultLasts >= then) return true;
  if (submissions.crashed_at && *submissions.crashed_at >= then) return true;
  return std::any_of(driver_died_at_.begin(), driver_died_at_.end(),
                     [then](const auto& one) { return one.second >= then; });
}

// Processes.

void Cluster::start_head() {
  ++head_starts;
  head = &own(std::make_unique<Head>(*this));
  head->on_death = [this] {
    head = nullptr;
    // What it had given to the disk may get there all the same.
    if (const auto batch = std::exchange(disk.under_way, nullptr); batch && !disk.fails && world.chance(0.5))
      disk.apply(*batch);
    world.outside(world.between(milliseconds(100), seconds(5)), "head again", [this] { start_head(); });
  };
  head->start();
}

void Cluster::start_node(int host) {
  const auto& job = scenario.job;
  int cpus = scenario.tight_cpus ? (job.trainers + scenario.nodes - 1) / scenario.nodes : job.trainers;
  if (scenario.waiting_tasks) ++cpus;  // for some task, whatever the job holds
  Node* node = &own(std::make_unique<Node>(*this, host, cpus * cluster::kCpu, false));
  nodes.push_back(node);
  node->on_death = [this, node, host] {
    std::erase(nodes, node);
    for (const auto& [id, local] : node->locals) {
      local.process->on_death = nullptr;
      world.kill(*local.process, "its node died");
    }
    world.outside(world.between(milliseconds(100), seconds(3)), "node again",
                  [this, host] { start_node(host); });
  };
  node->start();
}

/// The program's process and its gateway's; neither outlives the other for long.
void Cluster::start_driver() {
  const int number = ++driver_starts;
  Node* gateway = &own(std::make_unique<Node>(*this, scenario.driver_host, 0, true));
  gateways.push_back(gateway);
  Driver* program = &own(std::make_unique<Driver>(*this, *gateway, driver_starts));
  gateway->driver = driver = program;
  gateway->on_death = [this, gateway, program] {
    std::erase(gateways, gateway);
    world.after(*program, world.between(Duration{0}, milliseconds(10)), "its gateway is gone",
                [this, program] {
                  if (program->runtime == nullptr) return world.kill(*program, "its gateway is gone");
                  program->node_closed();
                });
  };
  program->on_death = [this, gateway, program, number] {
    driver = nullptr;
    driver_died_at_[program] = world.now();
    if (program->process) {
      if (gateway->alive) gateway->local_died(program->process);
    } else if (gateway->alive) {
      world.kill(*gateway, "its driver is gone");
    }
    if (!job_done && driver_starts == number)
      world.outside(world.between(milliseconds(100), seconds(2)), "driver again", [this] { start_driver(); });
  };
  gateway->start();
}

Node* Cluster::find_node(NodeId id) const {
  for (Node* node : nodes) {
    if (node->info.id == id) return node;
  }
  return nullptr;
}

Node* Cluster::find_any_node(NodeId id) const {
  for (Node* node : gateways) {
    if (node->info.id == id) return node;
  }
  return find_node(id);
}

std::vector<Worker*> Cluster::living_workers() const {
  std::vector<Worker*> all;
  for (const Node* node : nodes) {
    for (const auto& [id, local] : node->locals) {
      auto* worker = static_cast<Worker*>(local.process);
      if (worker->alive) all.push_back(worker);
    }
  }
  return all;
}

// Faults.

Process* Cluster::some_worker(bool trainer) {
  std::vector<Process*> all;
  for (Worker* worker : living_workers()) {
    if ((dynamic_cast<Trainer*>(worker) != nullptr) == trainer && worker->runtime != nullptr)
      all.push_back(worker);
  }
  return all.empty() ? nullptr : all[world.random.below(all.size())];
}

/// Whatever runs in it: the light actors' processes, too.
Process* Cluster::some_process() {
  const auto all = living_workers();
  return all.empty() ? nullptr : all[world.random.below(all.size())];
}

void Cluster::next_fault() {
  // Often close together, so that faults hit the recovery of the one before; sometimes far apart.
  const std::uint64_t gap =
      world.chance(0.5) ? 1 + world.random.below(60) : 1 + world.random.below(scenario.fault_gap);
  next_fault_at_ = world.events() + gap;
}

void Cluster::stop_somebody() {
  Process* who = nullptr;
  const auto what = world.random.below(6);
  if (what <= 1) who = some_worker(true);
  if (what == 2) who = some_worker(false);
  if (what == 3) who = some_process();
  if (what == 4 && !nodes.empty()) who = nodes[world.random.below(nodes.size())];
  if (what == 5) {
    const auto which = world.random.below(3);
    who = which == 0 ? static_cast<Process*>(head) : driver;
    if (which == 2 && !gateways.empty()) who = gateways.back();
  }
  if (who == nullptr) return;
  world.stop(*who);
  const Duration how_long = world.chance(0.5) ? world.between(milliseconds(1), milliseconds(200))
                                              : world.between(milliseconds(200), seconds(15));
  world.outside(how_long, "continue", [this, who] { world.resume(*who); });
}

void Cluster::cut_somewhere() {
  const int hosts = scenario.nodes + 1;
  const int from = static_cast<int>(world.random.below(hosts));
  const int to = static_cast<int>(world.random.below(hosts));
  if (from == to) return;
  const bool lose = world.chance(0.5);
  const bool both = world.chance(0.5);
  world.trace("network", "cut " + std::to_string(from) + (both ? " <-> " : " -> ") + std::to_string(to));
  world.cut(from, to, lose);
  if (both) world.cut(to, from, lose);
  if (lose) {
    network.hosts_cut(from, to, world.now());
  } else {
    // Heartbeats stay out: the lines break, with all that is held.
    world.outside(world.between(seconds(2), seconds(8)), "heartbeats stay out",
                  [this, from, to, since = world.now()] {
                    if (!world.reachable(from, to)) network.hosts_cut(from, to, since);
                  });
  }
  const Duration how_long = world.chance(0.5) ? world.between(milliseconds(1), milliseconds(500))
                                              : world.between(milliseconds(500), seconds(20));
  world.outside(how_long, "heal", [this, from, to] {
    world.heal(from, to);
    world.heal(to, from);
  });
}

void Cluster::inject() {
  last_fault_at = world.now();
  const auto kill = [&](Process* process) {
    if (process != nullptr) world.kill(*process, "fault");
  };
  if (scenario.putters > 0 && world.chance(0.5)) return world.chance(0.6) ? kill_unheard() : copies.hit_one();
  switch (world.random.below(28)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
      return kill(scenario.sweep ? some_process() : some_worker(true));
    case 6:
    case 7:
      return kill(some_worker(false));
    case 8:
      return nodes.empty() ? void() : kill(nodes[world.random.below(nodes.size())]);
    case 9:
      return kill(head);
    case 10:
      return kill(driver);
    case 11:
      if (head != nullptr) head->die_after_actions = static_cast<int>(world.random.below(6));
      return;
    case 12:
      if (driver != nullptr) driver->die_after_frames = static_cast<int>(world.random.below(12));
      return;
    case 13:
      return stop_somebody();
    case 14:
      return cut_somewhere();
    case 15:
    case 16:
    case 17:
      return network.break_some();
    case 18:
      return kill(gateways.empty() ? nullptr : gateways.back());
    case 19:
      return trouble_disk(disk.slow, "the head's disk is slow");
    case 20:
      return trouble_disk(disk.fails, "the head's disk refuses writes");
    case 21:
    case 22:
      return kill(some_process());
    case 23:
      return jump_clock();
    case 24:
      return hang(some_worker(world.chance(0.7)));
    case 25:
      return end_some_node();
    default:
      if (world.chance(0.5)) {
        files.full = !files.full;
      } else {
        spoil_checkpoint();
      }
  }
}

/// One that borrows objects dies while the links of its node are broken: others do not hear of it.
void Cluster::kill_unheard() {
  std::vector<Worker*> borrowers;
  for (Worker* worker : living_workers()) {
    if (worker->runtime != nullptr && worker->runtime->objects()->counts().borrowed > 0)
      borrowers.push_back(worker);
  }
  if (borrowers.empty()) return;
  Worker* who = borrowers[world.random.below(borrowers.size())];
  for (int host = 0; host <= scenario.nodes; ++host) {
    if (host == who->host) continue;
    world.cut(who->host, host, true);
    world.cut(host, who->host, true);
    network.hosts_cut(who->host, host, world.now());
  }
  world.outside(world.between(Duration{0}, milliseconds(20)), "killed unheard",
                [this, who] { world.kill(*who, "fault"); });
  world.outside(world.between(milliseconds(20), milliseconds(400)), "heal", [this, at = who->host] {
    for (int host = 0; host <= scenario.nodes; ++host) {
      world.heal(at, host);
      world.heal(host, at);
    }
  });
}

/// Politely, and now and then the head hears nothing of it.
void Cluster::end_some_node() {
  const auto& some = world.chance(0.8) ? nodes : gateways;
  if (some.empty()) return;
  Node* node = some[world.random.below(some.size())];
  if (&some == &nodes && world.chance(0.5)) return drain(*node);
  world.after(*node, Duration{0}, "SIGTERM", [node] { node->leave(); });
  if (head != nullptr && world.chance(0.2)) world.kill(*head, "fault");
}

/// By its own machine, or by the head, which may change its mind.
void Cluster::drain(Node& node) {
  drained.insert(node.info.id);
  const Duration grace =
      world.chance(0.5) ? world.between(milliseconds(1), seconds(2)) : world.between(seconds(2), seconds(20));
  if (head == nullptr || world.chance(0.3)) {
    world.after(node, Duration{0}, "drain", [&node, grace] { node.tell(node::DrainAsked{grace, "fault"}); });
    return;
  }
  const auto request = [this, id = node.info.id](Duration left, bool cancel) {
    if (head == nullptr) return;
    world.after(*head, Duration{0}, cancel ? "cancel the drain" : "drain", [this, id, left, cancel] {
      if (head != nullptr) head->on(cluster::DrainRequested{id, left / milliseconds(1), "fault", cancel});
    });
  };
  request(grace, false);
  if (world.chance(0.3))
    world.outside(world.between(milliseconds(1), seconds(5)), "the drain is cancelled",
                  [request] { request(Duration{0}, true); });
  // Else nothing would ever have room: the only node is wanted back, whatever the head is doing then.
  if (nodes.size() == 1) {
    for (int i = 1; i <= 6; ++i)
      world.outside(seconds(5 * i), "the drain is cancelled", [request] { request(Duration{0}, true); });
  }
}

void Cluster::hang(Process* worker) {
  if (worker == nullptr) return;
  world.trace(worker->name, "hangs in what it computes next");
  dynamic_cast<Worker&>(*worker).hangs = true;
}

/// A clock goes forward, of one process or of all on a host: a machine that slept, or was moved.
void Cluster::jump_clock() {
  const Duration by = world.chance(0.5) ? world.between(milliseconds(100), seconds(10))
                                        : world.between(seconds(10), seconds(300));
  if (world.chance(0.5)) {
    const int host = static_cast<int>(world.random.below(scenario.nodes + 1));
    clocks_ahead[host] += by;
    world.trace("host " + std::to_string(host),
                "its clock jumps by " + std::to_string(to_seconds(by)) + " s");
  } else if (Process* who = world.chance(0.3) ? static_cast<Process*>(driver) : some_process();
             who != nullptr) {
    who->ahead += by;
    world.trace(who->name, "its clock jumps by " + std::to_string(to_seconds(by)) + " s");
  }
}

/// One of those that a job keeps, while another one of them stays good: a job whose every checkpoint is gone
/// fails, and must.
void Cluster::spoil_checkpoint() {
  const auto keep = static_cast<std::size_t>(scenario.job.keep_checkpoints);
  std::vector<std::string> good;  // the files of tensors
  for (std::size_t i = accepted.size() - std::min(accepted.size(), keep); i < accepted.size(); ++i) {
    const std::string& manifest = accepted[i].path;
    const std::string tensors = manifest.substr(0, manifest.rfind('.')) + ".safetensors";
    if (files.all.contains(tensors) && !spoiled_.contains(tensors)) good.push_back(tensors);
  }
  if (good.size() < 2) return;
  const std::string& path = good[world.random.below(good.size())];
  spoiled_.insert(path);
  if (world.chance(0.5)) {
    files.all.at(path).bytes.back() ^= std::byte{1};
  } else {
    files.all.at(path).missing_on =
        1 + static_cast<int>(world.random.below(static_cast<std::uint64_t>(scenario.nodes)));
  }
}

void Cluster::trouble_disk(bool& flag, const char* what) {
  world.trace("disk", what);
  flag = true;
  world.outside(world.between(milliseconds(50), seconds(8)), "the head's disk is well again",
                [&flag] { flag = false; });
}

void Cluster::end_faults() {
  faults_over = true;
  faults_over_at = world.now();
  files.full = false;
  disk.slow = disk.fails = false;
  copies.hit_none();
  if (head != nullptr) head->die_after_actions = -1;
  if (driver != nullptr) driver->die_after_frames = -1;
  world.trace("harness", "no more faults");
}

// A run.

void Cluster::run() {
  // Stops and cuts end by themselves within 20 s; then every wait has to end within its deadlines.
  constexpr Duration kBound = seconds(400);
  // A head that was restarted gives a start that nobody repeats 60 s.
  constexpr Duration kSettles = seconds(90);
  constexpr std::uint64_t kMostEvents = 3'000'000;
  start_head();
  for (int host = 1; host <= scenario.nodes; ++host) start_node(host);
  start_driver();
  next_fault();
  look();
  Instant done_at{};
  while (world.violated().empty() && world.step()) {
    if (!faults_over && world.events() >= next_fault_at_) {
      if (faults_left_-- > 0 && !job_done) {
        inject();
        next_fault();
      } else {
        end_faults();
      }
    }
    if (!faults_over && job_done) end_faults();
    if (job_done && done_at == Instant{}) done_at = world.now();
    if (job_done && world.now() - std::max(done_at, faults_over_at) > kSettles) return check_settled();
    if (faults_over && !job_done && world.now() - faults_over_at > kBound)
      world.violation("the job does not end");
    if (world.events() > kMostEvents) world.violation("too many events without an end");
  }
}

/// Every second: nothing is asked for ever, and nothing outlives its driver.
void Cluster::look() {
  world.outside(seconds(1), "~look", [this] { look(); });
  check_waits();
  if (!values.is_over()) submissions.look_for_starved(seconds(20));
  if (!faults_over) return;
  const auto lasts = [&](Instant since, Duration bound) {
    return world.now() - std::max(since, faults_over_at) > bound;
  };
  // Stops and cuts end within 20 s of the last fault.
  const auto check = [&](const Hosted& who) {
    for (const auto& [id, open] : who.expected) {
      if (!lasts(open.since, open.bound)) continue;
      char since[32];
      std::snprintf(since, sizeof since, "%.5f s", to_seconds(open.since));
      return world.violation(who.name + " waits for ever: " + open.what + ", since " + since);
    }
  };
  for (const Worker* worker : living_workers()) {
    check(*worker);
    for (const auto& [program, died_at] : driver_died_at_) {
      if (worker->runtime != nullptr && worker->runtime->config().driver == program->address() &&
          lasts(died_at, seconds(45)) && !load.holds_detached(*worker))
        world.violation(worker->name + " outlives " + program->name);
    }
  }
  if (driver != nullptr) check(*driver);
  load.look(seconds(45));
  values.look(
      seconds(100));  // an argument waits for room for a minute; and memory is kept for the next object
  submissions.look(seconds(60));
}

/// In the head's books a worker of tasks is without CPUs while the one that it runs waits, and then alone;
/// but for a moment, and for what a fault keeps from it.
void Cluster::check_waits() {
  auto differ_since = std::exchange(books_differ_since_, {});
  if (head == nullptr) return;
  for (const auto& [id, actor] : head->machine.cluster().actors()) {
    const Node* node = find_node(actor.record.node);
    if (actor.record.state != cluster::ActorState::kAlive || node == nullptr) continue;
    const auto local = node->locals.find(actor.record.process);
    const Hosted* process = local == node->locals.end() ? nullptr : local->second.process;
    if (process == nullptr || !process->alive || process->runtime == nullptr) continue;
    if (process->runtime->tasks()->counts().waits == actor.waits) continue;
    const auto before = differ_since.find(id);
    const Instant since = before == differ_since.end() ? world.now() : before->second;
    books_differ_since_[id] = since;
    const Instant at_ease = last_fault_at ? std::max(since, *last_fault_at + seconds(25)) : since;
    if (world.now() - at_ease > seconds(2))
      world.violation("the head believes that a task in " + process->name +
                      (actor.waits ? " waits, and it runs" : " runs, and it waits"));
  }
}

/// Long after the end nothing is left, in truth and in the head's books.
void Cluster::check_settled() {
  if (!living_workers().empty()) world.violation(living_workers().front()->name + " outlived its job");
  if (head == nullptr) return world.violation("the head is not back");
  for (const auto& [id, actor] : head->machine.cluster().actors()) {
    if (actor.record.state != cluster::ActorState::kDead)
      world.violation("the head believes that actor " + to_string(id) + " lives");
  }
  if (!head->machine.cluster().groups().all().empty()) world.violation("a placement group outlived its job");
  if (!disk.storage.scan("group/")->empty()) world.violation("a placement group outlived its job on disk");
  for (const Node* node : nodes) {
    if (!head->machine.cluster().nodes().contains(node->info.id))
      world.violation(node->name + " is not back in the cluster");
    if (node->machine->actors().waiting() != 0)
      world.violation(node->name + " has tasks that wait, of nobody");
    if (node->machine->regions().bytes() != 0)
      world.violation(node->name + " lends memory to nobody: " +
                      std::to_string(node->machine->regions().bytes()) + " bytes");
  }
  for (const auto& [id, node] : head->machine.cluster().nodes()) {
    if (!node.info.gateway && find_node(id) == nullptr)
      world.violation("the head believes that node " + node.info.name + " lives");
    if (node.cpu_used_e4 != 0 || !node.actors.empty()) world.violation("CPUs are held by nobody");
    for (const std::int64_t held : node.gpu_used_e4) {
      if (held != 0) world.violation("a GPU is held by nobody");
    }
  }
}

}  // namespace troupe::sim
