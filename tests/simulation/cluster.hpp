/// The simulated cluster: shells that carry the machines' events and actions, as CAF actors do in production,
/// and the invariants.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/driver_machine.hpp"
#include "actors/train/prefetcher.hpp"
#include "actors/train/trainer_machine.hpp"
#include "scheduler/cluster/cluster_machine.hpp"
#include "tests/simulation/model.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Driver;
struct Node;

/// What a run is made of; drawn from its seed.
struct Scenario {
  std::uint64_t seed = 1;
  int nodes = 2;
  int driver_host = 0;  ///< host 0 is the head's; nodes are on 1, 2, ...
  int faults = 0;
  bool tight_cpus = false;  ///< just enough CPUs: spawns wait for each other
  train::DriverConfig job;
  train::Mutations mutations;
};
Scenario draw_scenario(std::uint64_t seed);

/// One group of one generation. Each rank leaves a collective by itself: one may have the result while
/// another was aborted.
struct Trainer;
struct Group {
  explicit Group(Cluster& in, train::GenerationPlan with);
  void join(int rank, Trainer& trainer);
  void contribute(int rank, std::int64_t step, std::vector<std::uint64_t> partials);
  void transfer(int rank);
  /// From `host`: ranks there see it at once, others when word reaches them, if it does.
  void abort(int host, const std::string& reason);
  std::vector<ActorId> missing(int rank, std::int64_t step) const;

  Cluster& cluster;
  train::GenerationPlan plan;
  struct Rank {
    Trainer* trainer = nullptr;
    bool aborted = false;
    bool wants_transfer = false;
    bool transferred = false;
  };
  std::vector<Rank> ranks;
  struct Round {
    std::map<int, std::vector<std::uint64_t>> partials;  ///< by rank
    std::uint64_t sum = 0;
  };
  std::map<std::int64_t, Round> rounds;
  std::map<std::int64_t, std::vector<train::SlotReport>> slots;

 private:
  bool reaches(int from, int to) const;
  void complete_forming(int rank);
  void complete_round(int rank, std::int64_t step, std::uint64_t task);
  void receive_word(int rank, int word, std::uint64_t task);
};

struct Worker : Process {
  Worker(Cluster& in, Node& on, ActorId self, Driver* by, std::uint64_t spawn_token, std::int64_t cpus,
         const std::string& kind);
  Cluster& cluster;
  Node* node;
  ActorId actor;
  Driver* driver;
  std::uint64_t token;
  std::int64_t cpu_e4;
  JobId job{};
  virtual void start() = 0;
};

struct Trainer : Worker {
  Trainer(Cluster& in, Node& on, ActorId self, Driver* by, std::uint64_t spawn_token, std::int64_t cpus);
  void start() override;
  void on_order(const train::TrainerOrder& order);
  void on_batch(std::int64_t step, int leaf, std::uint64_t indices_hash);
  void abort_local();
  void finish(std::uint64_t task, const train::TrainerResult& result);
  void finish_receive(std::uint64_t task);

  train::TrainerMachine machine;
  std::shared_ptr<Group> group;
  TrainState state;
  TrainState spare;  ///< where a state arrives
  bool busy = false;
  std::uint64_t task_number = 0;
  train::TrainerTask task;
  std::uint64_t sum = 0;  ///< reduced, not yet applied

 private:
  void carry(const train::TrainerOutput& out);
  void pump();
  void pump_batches();
  void compute_when_fed();
  void perform(const train::Wait&) {}
  void perform(const train::FormGroup& t);
  void perform(const train::TransferState& t);
  void perform(const train::MakeInitialState& t);
  void perform(const train::LoadCheckpoint& t);
  void perform(const train::ComputeStep& t);
  void perform(const train::ApplyStep& t);
  void perform(const train::HashState& t);
  void perform(const train::RunEvaluation& t);
  void perform(const train::RunCheckpoint& t);
  /// Ends the current task after `delay` with what `result` says then.
  void end_after(Duration delay, const char* label, std::function<train::TrainerResult()> result);
  void time_out_after(Duration delay);

  train::Prefetcher prefetcher_;
  std::map<std::pair<std::int64_t, int>, std::uint64_t> batches_;
  bool computing_ = false;
  Generation planned_;
};

struct Loader : Worker {
  using Worker::Worker;
  void start() override;
  void on_request(Trainer& from, std::int64_t step, int leaf);
};

struct Node : Process {
  Node(Cluster& in, int on_host, std::int64_t cpus);
  void start();
  void join();
  void on_start_actor(ActorId actor, const cluster::ActorSpec& spec);
  void on_kill(ActorId actor, Driver* answer_to);
  void on_end_job(JobId job);
  void on_refused();
  void worker_died(Worker& worker);

  Cluster& cluster;
  cluster::NodeInfo info;
  std::map<ActorId, Worker*> workers;  ///< living
  std::set<ActorId> seen;              ///< ever started here
  std::int64_t cpu_used = 0;
};

struct Head : Process {
  explicit Head(Cluster& in);
  void start();
  void on(const cluster::ClusterEvent& event);
  /// Dies after this many more actions: also in the middle of a list of them.
  int die_after_actions = -1;

  Cluster& cluster;
  cluster::ClusterMachine machine;

 private:
  void carry(const cluster::ClusterAction& action);
};

/// The driver program: the driver machine, and the gateway that ties it to the cluster.
struct Driver : Process {
  Driver(Cluster& in, int number);
  void start();
  void on(const train::DriverEvent& event);
  void on_job(JobId job, std::uint32_t incarnation);
  void on_spawn_answered(const cluster::SpawnAnswered& answer);
  void on_down(ActorId actor, const std::string& reason);
  void on_node_dead(NodeId node, const std::string& reason);
  void join();
  int die_after_actions = -1;

  Cluster& cluster;
  cluster::NodeInfo info;
  JobId job{};
  std::unique_ptr<train::DriverMachine> machine;
  std::map<std::uint64_t, train::SpawnKind> unanswered;  ///< spawns, asked again until answered
  std::map<ActorId, train::SpawnKind> actors;
  std::map<ActorId, NodeId> homes;
  std::set<NodeId> peers;    ///< whose death it wants to hear of
  std::set<ActorId> killed;  ///< fenced, or reported dead

 private:
  void carry(const train::DriverAction& action);
  void check(const train::DriverAction& action);
  void ask_for(std::uint64_t token, train::SpawnKind kind);
  void check_staleness(const train::DriverEvent& event, Generation before,
                       const std::vector<train::DriverAction>& actions);
};

struct Checkpoint {
  TrainState state;
  std::int64_t step = 0;
  bool corrupt = false;
};

struct Cluster {
  Cluster(Scenario with, bool verbose);
  /// Runs until the job is done and everything is given back, or something is wrong.
  void run();

  Scenario scenario;
  World world;
  SeededRandom ids;
  std::vector<std::string> reference;  ///< the undisturbed run's states
  std::map<std::string, cluster::Record> store;

  Head* head = nullptr;
  Driver* driver = nullptr;
  std::vector<Node*> nodes;  ///< the living ones
  std::vector<std::unique_ptr<Process>> processes;
  std::map<Generation, std::shared_ptr<Group>> groups;
  std::map<std::string, Checkpoint> files;
  std::vector<train::CheckpointInfo> accepted;
  bool faults_over = false;
  Instant faults_over_at{};
  std::string job_hash;  ///< once done
  bool job_done = false;
  bool disk_full = false;
  std::uint32_t last_incarnation = 0;
  int commits = 0;
  int generations = 0;  ///< the highest counter
  int rewinds = 0;
  int transfers = 0;  ///< states received whole
  int head_starts = 0;
  int driver_starts = 0;

  template <class T>
  T& own(std::unique_ptr<T> process) {
    T& reference_to_it = *process;
    world.add(reference_to_it);
    processes.push_back(std::move(process));
    return reference_to_it;
  }
  void to_head(Process& from, cluster::ClusterEvent event);
  Node* find_node(NodeId id) const;
  Worker* find_worker(ActorId actor) const;
  std::vector<Worker*> living_workers() const;
  void start_head();
  void start_node(int host);
  void start_driver();
  void check_state(const Trainer& trainer, const std::string& where);
  void reconnect(int from, int to);

 private:
  void next_fault();
  void inject();
  void end_faults();
  void cut_somewhere();
  void stop_somebody();
  bool settled() const;
  void check_settled();
  Process* some_worker(bool trainer);
  int faults_left_ = 0;
  std::uint64_t next_fault_at_ = 0;
};

}  // namespace troupe::sim
