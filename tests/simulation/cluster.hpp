/// The simulated cluster: shells that carry the machines' events and actions, users' processes, and the
/// invariants.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/driver/train_driver.hpp"
#include "actors/train/trainer/trainer_machine.hpp"
#include "runtime/core/thread.hpp"
#include "runtime/link/ring/ring.hpp"
#include "runtime/node/node_machine.hpp"
#include "runtime/node/region_memory.hpp"
#include "scheduler/head/head_machine.hpp"
#include "tests/simulation/copies.hpp"
#include "tests/simulation/floor.hpp"
#include "tests/simulation/hosted.hpp"
#include "tests/simulation/line.hpp"
#include "tests/simulation/load.hpp"
#include "tests/simulation/model.hpp"
#include "tests/simulation/rings.hpp"
#include "tests/simulation/submissions.hpp"
#include "tests/simulation/sweep.hpp"
#include "tests/simulation/threads.hpp"
#include "tests/simulation/values.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Driver;
struct Group;
struct Node;
struct Trainer;

/// Rules of the floor, broken on purpose.
struct FloorMutations {
  bool forget_requests = false;     ///< a node does not repeat what has no answer when it joins again
  bool say_before_durable = false;  ///< the head's store says that it has written what it has not
  bool forget_peers = false;        ///< a line between nodes breaks, and its ends are not told
  bool forget_lost_nodes = false;   ///< a process does not fail its calls when the link to their node broke
  bool keep_credit = false;         ///< a process never gives back what it has taken up
  bool drop_unsent = false;         ///< what a process tells its node while the link is full is dropped
  bool forget_room = false;         ///< what waits for the link to a node stays when there is room again
  bool monitor_once = false;        ///< a monitor is not asked for again after the link broke
  bool ignore_leaving = false;      ///< the head does not hear that a node leaves
  bool forget_saves = false;        ///< what a process saves is said to be kept, and goes nowhere
  bool lose_spilled_byte = false;   ///< what is spilled has another byte in its file
  bool keep_spill_files = false;    ///< a file in which no object is any more stays on the disk
  bool forget_dead_borrowers = false;  ///< after a link broke an owner does not ask who lives there
  bool take_broken_parts = false;      ///< what came before a direct connection broke is taken for the object
  bool take_lost_parts = false;        ///< a part of a copy that was lost with its link counts as there
  bool widen_window = false;           ///< more parts of a copy are asked for at a time than may be
  bool ask_once = false;               ///< who could not be reached is not asked for a computed object again
  bool keep_leases = false;            ///< a worker that runs no tasks any more is not ended
  bool retry_once = false;             ///< a task that may run once is tried again when its worker is lost
  bool take_back_all = false;          ///< a task that a worker has begun counts as taken back from it
  bool forget_reports = false;         ///< a sweep does not write down what it decided on a report
  bool forget_waits = false;           ///< a worker does not say that its task waits
  bool ignore_turns = false;           ///< a process does not hear that others wait for its workers
  bool wait_for_good = false;          ///< a worker does not say that its task, which had waited, goes on
  bool start_too_often = false;        ///< the head starts an actor once more than its max_restarts lets it
};

/// What a run is made of; drawn from its seed.
struct Scenario {
  std::uint64_t seed = 1;
  int nodes = 2;
  int driver_host = 0;  ///< host 0 is the head's; nodes are on 1, 2, ...
  int faults = 0;
  std::uint64_t fault_gap = 600;  ///< events from one to the next, at most
  bool tight_cpus = false;        ///< just enough CPUs: spawns wait for each other
  train::RunOptions job;
  std::int64_t steps_per_epoch = 2;
  std::int64_t test_samples = 0;
  bool foreign_driver = false;  ///< nodes have another executable, and get the driver's over their links
  std::size_t link_bytes = kLinkQueueBytes;  ///< that wait on one hop until it is full
  std::size_t ring_bytes = kRingCapacity;
  double no_rings = 0;            ///< the chance that one cannot be made
  RouteLimits limits;             ///< of every process
  ObjectLimits object_limits;     ///< and these: sometimes parts so small that a copy has many
  int callers = 0;                ///< processes that make plain calls beside the job
  int calls_under_way = 1;        ///< of each of them, at every moment
  int putters = 0;                ///< actors that put and read objects
  Duration lingers{};             ///< so long do they go on when the job is done
  bool tasks = false;             ///< they submit some
  bool waiting_tasks = false;     ///< also such that hold CPUs while they wait for others
  bool greedy_tasks = false;      ///< or so many that they want all CPUs, always
  std::uint64_t store_bytes = 0;  ///< for all regions of a node; 0: as many as there are
  double spill_refused = 0;       ///< the chance that a disk refuses what is spilled, until the last fault
  bool links_alone = false;       ///< no process has direct connections
  double no_direct = 0;           ///< the chance that a process gives nothing over them
  double direct_breaks = 0;  ///< the chance of each piece that its connection breaks, until the last fault
  bool detached = false;     ///< an actor outlives the program, and the next one has it
  train::Mutations mutations;
  FloorMutations floor;
  std::optional<SweepScenario> sweep{};  ///< the program runs it, instead of the job
};
Scenario draw_scenario(std::uint64_t seed);
/// Of a program that sweeps.
Scenario draw_sweep_scenario(std::uint64_t seed);

/// A process that a node starts: for one actor, or for the light actors of a job.
struct Worker : Hosted {
  Worker(Cluster& in, Node& on, ProcessId as, std::int64_t cpus, const std::string& kind);

  const bool is_loader;
  const bool has_objects;
  std::int64_t cpu_e4;
  std::vector<std::string> gpus{};  ///< that it sees
  bool hangs = false;               ///< what it computes next never ends, though it beats
  bool hung = false;                ///< it is at that

 protected:
  void up() override;
};

struct Trainer : Worker {
  using Worker::Worker;
  ActorId actor{};  ///< once it was constructed; and then
  const train::TrainerMachine* machine = nullptr;
  const TrainState* state = nullptr;  ///< while its engine lives
};

/// The shell of a node: carries the production NodeMachine's actions, and decides nothing.
using FramePtr = std::shared_ptr<const Message>;
struct Node : Process, Server {
  Node(Cluster& in, int on_host, std::int64_t cpus, bool gateway);
  void start();
  void tell(node::NodeEvent event);
  /// From a local process.
  void on_local_frame(ProcessId from, Message message);
  /// The socket to that process has room again.
  void room_for(ProcessId process);
  /// The memory of the ring between two of its processes.
  std::shared_ptr<RingMemory> ring(ProcessId one, ProcessId other) const;
  /// A local process has died: its lock is seen first, then it is reaped.
  void local_died(ProcessId process);
  /// The names of those that lie in its memory.
  std::vector<std::string> object_regions() const;
  /// As SIGTERM has it.
  void leave() { tell(node::LeaveAsked{"it was told to end"}); }
  bool accept(const LinePtr& line) override;
  void line_lost(const LinePtr& line, const std::string& why) override;

  Cluster& cluster;
  cluster::NodeInfo info;
  std::unique_ptr<node::NodeMachine> machine;
  struct Local {
    Hosted* process = nullptr;
    bool dropped = false;      ///< its link
    std::deque<Message> kept;  ///< found no room in it
    std::size_t kept_bytes = 0;
    bool stuck = false;
  };
  std::map<ProcessId, Local> locals;
  Driver* driver = nullptr;  ///< of a gateway
  bool is_member = false;    ///< the head says so

 private:
  struct Peer {
    std::shared_ptr<Dialer> dialer;
    std::deque<FramePtr> held;
    std::size_t held_bytes = 0;
    bool released = false;
    bool stuck = false;
  };
  void carry_out(node::Actions actions);
  void dispatch(node::Source source, const FramePtr& frame);
  void take(node::Source source, const Message& frame);
  void refuse(const wire::FrameHeader& header, const ErrorInfo& error);
  void send_local(ProcessId process, const Message& message, std::vector<UniqueFd> fds = {});
  std::size_t stuck_bytes() const;
  void hold(Peer& peer, const FramePtr& frame);
  void release(NodeId to);
  void send_peer(NodeId to, const FramePtr& frame);
  Sent post(NodeId to, const FramePtr& frame);
  void tell_incoming(NodeId node, const std::string& reason);
  void check_cpus();
  void check_gpus();
  FramePtr control_frame(ProcessAddress to, const wire::Control& message, ProcessId from = {},
                         JobId job = {}) const;
  void act(node::SendLocal& a);
  void act(node::SendPeer& a);
  void act(node::TellHead& a);
  void act(node::StartWorker& a);
  void act(node::AdoptDriver& a);
  void act(node::Welcome&) {}
  void act(node::ActorBegins& a);
  void act(node::KillProcess& a);
  void act(node::DrainOutput& a);
  void act(node::ForgetProcess& a) { locals.erase(a.process); }
  void act(node::HoldOutput&) {}
  void act(node::RetryOutput&) {}
  void act(node::MakeRing& a);
  void act(node::MakeRegion& a);
  void act(node::DropRegion& a) {
    memory_.drop(a.region);
    regions_.erase(a.region);
  }
  void act(node::AbortRegions& a);
  void act(node::AllowPeer& a) { allowed_.insert(a.node); }
  void act(node::RevokePeer& a) { allowed_.erase(a.node); }
  void act(node::ConnectPeer& a);
  void act(node::DisconnectPeer& a);
  void act(node::TellIncoming& a) { tell_incoming(a.node, a.reason); }
  void act(node::ReleaseHeld& a);
  void act(node::RefuseHeld& a);
  void act(node::GivePart& a);
  void act(node::TakePart& a);
  void act(node::ForgetPackage&) {}
  void act(node::KeepExecutable&) {}
  void act(node::ConnectHeadAnew&) { head_->redial(); }
  void act(node::TellMember& a);
  void act(node::EndLoop& a);
  void act(node::Log& a);
  template <class Other>
  void act(Other& /*no job is submitted here*/) {}

  std::shared_ptr<Dialer> head_;
  std::map<NodeId, Peer> peers_;
  std::map<NodeId, LinePtr> incoming_;
  std::set<NodeId> allowed_;
  node::RegionMemory memory_;
  std::map<node::RegionId, std::string> regions_;  ///< their names
  std::map<std::pair<ProcessId, ProcessId>, std::shared_ptr<RingMemory>> rings_;
  std::deque<node::NodeEvent> events_;
  bool busy_ = false;
  bool forgets_ = false;                        ///< broken on purpose: what it repeats now is not sent
  std::map<ActorId, std::int64_t> cpus_asked_;  ///< by actors that it was told to start
};

/// The shell of the head: the production HeadMachine, a disk that takes its time, and lines.
struct Head : Process, Server {
  explicit Head(Cluster& in);
  void start();
  void on(const cluster::ClusterEvent& event);
  bool accept(const LinePtr& line) override;
  void line_lost(const LinePtr& line, const std::string& why) override;
  /// Dies after this many more messages: also in the middle of a list of them.
  int die_after_actions = -1;

  Cluster& cluster;
  HeadMachine machine;

 private:
  void carry_out(HeadMachine::Output output);
  void send(const cluster::ClusterAction& action);
  void check(const cluster::ClusterAction& action);
  void check_leaving();
  void check_moves();
  std::set<ActorId> starting_on(NodeId node) const;
  std::map<NodeId, LinePtr> lines_;
  std::map<NodeId, std::set<ActorId>> leaving_;  ///< what they were starting when they said so
};

/// The head's disk: it outlives the head.
struct Disk {
  MemoryStorage storage;
  bool fails = false;
  bool slow = false;
  std::set<std::string> written;  ///< every key that ever was put or erased there
  /// False: it fails.
  bool apply(const StoreBatch& batch);
  std::shared_ptr<const StoreBatch> under_way;  ///< given to the disk, and not known to be on it
};

/// The driver program, in a process of its own, tied to the cluster by its gateway node.
struct Driver : Hosted {
  Driver(Cluster& in, Node& gateway, int number);
  ~Driver() override;

 protected:
  void up() override;
  void told_to_leave() override;
  void ended() override;

 private:
  void run_program();
  bool run_job();
  void get_detached();
  bool end_detached();
  bool end_values();
  void check_state(const ActorHandle<train::TrainDriver>& driver, std::int64_t steps);
  void leave_soon(int looks = 0);
  std::optional<Future<ActorHandle<EchoActor>>> detached_;
  Thread main_;
  bool leaving_ = false;
};

struct Cluster {
  Cluster(Scenario with, bool verbose);
  ~Cluster();
  /// Runs until the job is done and everything is given back, or something is wrong.
  void run();

  Scenario scenario;
  World world;
  SeededRandom ids;
  Threads threads;
  Floor floor;
  data::LeafSampler sampler;
  std::vector<std::vector<std::uint64_t>> indices;  ///< the hash of what each leaf of each step uses
  std::vector<TrainState> reference;                ///< the undisturbed run's states
  Network network;
  Disk disk;
  Load load;                          ///< what plain calls have to be true of
  Values values;                      ///< what objects have to be true of
  Submissions submissions;            ///< and tasks
  Copies copies;                      ///< and what their copies between nodes
  std::optional<SweepReferee> sweep;  ///< with such a scenario

  Head* head = nullptr;
  Driver* driver = nullptr;
  std::vector<Node*> nodes;     ///< the living ones
  std::vector<Node*> gateways;  ///< of drivers, alike
  std::vector<std::unique_ptr<Process>> processes;
  std::map<ActorId, Trainer*> trainers;  ///< that ever were
  std::map<Generation, std::shared_ptr<Group>> groups;
  Files files;
  std::vector<train::CheckpointInfo> accepted;
  std::map<int, std::map<std::string, double>> metrics;  ///< of epochs, from 1, as some driver told them
  std::map<std::int64_t, std::map<std::string, double>> within;  ///< of evaluations within them, by steps
  std::optional<Instant> last_fault_at;
  bool faults_over = false;
  std::set<NodeId> drained;  ///< nodes that were told to, ever
  Instant faults_over_at{};
  std::string job_hash;  ///< once done
  bool job_done = false;
  int states_taken = 0;  ///< by the program, of a job that is done
  std::uint32_t last_incarnation = 0;
  int commits = 0;
  int generations = 0;  ///< the highest counter
  int rewinds = 0;
  int transfers = 0;  ///< states received whole
  int followed = 0;   ///< steps that were applied by trainers which did not compute them
  int head_starts = 0;
  int driver_starts = 0;
  std::set<NodeId> declared_dead;        ///< by the head
  std::map<int, Duration> clocks_ahead;  ///< by host

  /// The time as that process has it.
  Instant now_at(const Process& process) const;
  /// Whether something may have been lost since then that lived when it was.
  bool troubled_since(Instant then) const;

  template <class T>
  T& own(std::unique_ptr<T> process) {
    T& reference_to_it = *process;
    world.add(reference_to_it);
    processes.push_back(std::move(process));
    return reference_to_it;
  }
  Node* find_node(NodeId id) const;
  std::vector<Worker*> living_workers() const;
  void start_head();
  void start_node(int host);
  void start_driver();
  /// Every node process that lives, by its id.
  Node* find_any_node(NodeId id) const;

 private:
  const ThreadFloorScope one_thread_{&threads};
  void spoil_checkpoint();
  void next_fault();
  void inject();
  void end_faults();
  void killed(Process& process);
  void cut_somewhere();
  void stop_somebody();
  void look();
  void trouble_disk(bool& flag, const char* what);
  void check_settled();
  void check_waits();
  Process* some_worker(bool trainer);
  Process* some_process();
  void jump_clock();
  void hang(Process* worker);
  void end_some_node();
  void kill_unheard();
  void drain(Node& node);
  std::map<const Driver*, Instant> driver_died_at_;
  std::set<std::string> spoiled_;
  std::map<ActorId, Instant> books_differ_since_;  ///< of workers of tasks, whether they wait
  int faults_left_ = 0;
  std::uint64_t next_fault_at_ = 0;
};

}  // namespace troupe::sim
