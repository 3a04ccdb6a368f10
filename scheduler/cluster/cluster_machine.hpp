/// The head as a pure state machine: nodes, jobs, actors, names. Events in, actions out; no clock, no I/O.
/// The caller carries the actions out in order: whatever is acknowledged was persisted by an earlier action.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/random.hpp"
#include "runtime/wire/cluster.hpp"
#include "scheduler/cluster/actor_table.hpp"
#include "scheduler/cluster/group_table.hpp"
#include "scheduler/cluster/job_table.hpp"
#include "scheduler/cluster/lease_turns.hpp"
#include "scheduler/cluster/limits.hpp"
#include "scheduler/cluster/membership.hpp"
#include "scheduler/cluster/name_claims.hpp"
#include "scheduler/cluster/queue_table.hpp"
#include "scheduler/cluster/running_time.hpp"
#include "scheduler/cluster/submission_table.hpp"
#include "scheduler/cluster/time_queue.hpp"
#include "scheduler/cluster/waiting_spawns.hpp"
#include "scheduler/placement/node_index.hpp"

namespace troupe::cluster {

struct ClusterConfig {
  MembershipConfig membership;
  /// A node that was told to start an actor has this long to say how it went.
  Duration start_deadline = std::chrono::minutes(2);
  /// Who spawned it is told that it has not started after this long.
  Duration slow_start = std::chrono::seconds(10);
  /// A node that was told to end an actor, and has not said that it has, is told again after this long.
  Duration end_again = std::chrono::seconds(60);
  /// An actor whose node dies while it starts is placed again, on so many nodes in all: it may be why they
  /// die.
  int start_attempts = 3;
  /// A spawn that only a node could hold that has just died waits this long for one like it; of a node that
  /// drains, from when that is gone.
  Duration lost_node_grace = std::chrono::seconds(60);
  /// Ended actors are remembered (so that a request that is repeated hears how it ended) this long, and so
  /// many.
  Duration keep_dead_actors = std::chrono::seconds(600);
  std::size_t max_dead_actors = 10'000;
  /// As far as this reaches, a dead node's id is refused. Counted from a restart of the head on.
  Duration keep_dead_nodes = std::chrono::hours(24);
  std::size_t max_dead_nodes = 10'000;
  /// Records of ended jobs. Incarnations go on above those that were forgotten.
  Duration keep_ended_jobs = std::chrono::hours(24 * 7);
  std::size_t max_ended_jobs = 1'000;
  /// An actor that dies starts again at once; if it dies again within `settled`, after the first of these,
  /// doubled each time up to the second.
  Duration restart_after = std::chrono::milliseconds(100);
  Duration restart_after_most = std::chrono::seconds(10);
  int starts_without_executable = 10;  ///< of a further life, in a row: with these waits some 40 s
  Duration settled = std::chrono::seconds(60);
  /// Spawns that may wait, and what all that wait or start may hold for their constructors.
  std::size_t max_waiting = 1'000'000;
  std::size_t max_payload_bytes = std::size_t{512} << 20;
  std::size_t max_groups = 10'000;
  std::size_t max_bundles = 100'000;  ///< of all groups
  /// Looks at nodes for groups that wait, at an event; the groups behind have their turn at ticks.
  std::size_t group_looks = 200'000;
  /// What has waited for so long for room that workers of tasks hold gets it from some that were leased for
  /// as long: programs that never stop submitting take turns.
  Duration lease_turn = std::chrono::milliseconds(500);
  /// Others are asked for, too, when those have not gone after the first; room that only they could make is
  /// not waited for after the second: their tasks take long.
  Duration turn_soon = std::chrono::seconds(2);
  Duration turn_within = std::chrono::seconds(10);
  /// What has waited for so long has its room before what came later, be it a spawn or a group: also the room
  /// that others hold who come and go.
  Duration in_order_after = std::chrono::seconds(3);
  /// Actors that start together have this long to be asked for, all of them.
  Duration start_together_within = std::chrono::minutes(2);
  /// They, and others that wait, hear what they wait for, and of another reason after so long at the
  /// earliest.
  Duration tell_again = std::chrono::seconds(10);
  /// A group that has lost bundles, and finds no room for so long while others wait, too, gives back those in
  /// which nothing runs: two that hold a part each could wait for each other for ever.
  Duration release_after = std::chrono::seconds(60);
  /// Submissions that have not ended, and the history of those that have.
  std::size_t max_submissions = 1'000;
  Duration keep_ended_submissions = std::chrono::hours(24 * 7);
  std::size_t max_ended_submissions = 1'000;
  /// A driver that failed is started again after the first, doubled each time up to the second.
  Duration retry_after = std::chrono::seconds(1);
  Duration retry_after_most = std::chrono::seconds(60);
  /// From SIGTERM to SIGKILL.
  std::int32_t stop_grace_s = 10;
  /// The cluster ends with the program that brought it: no actor could outlive that.
  bool ends_with_program = false;
};

/// Where the store has it.
std::string key_of(const Record& record);

/// Not thread-safe.
///
/// Costs: an event of one node, actor or request takes O(log n), plus O(log n) for each node, actor and spawn
/// that changes by it. A tick looks at what is due. While submissions wait, what makes room takes O(different
/// demands that wait * log n) more, and O(n) if room is kept for the first or they are of several queues.
/// While spawns have waited for half a second, a tick takes O(log n) more for each that gets its turn, and
/// looks at some thousands of nodes, or all of them once, where that is hard. For a group it takes O(actors +
/// nodes) more, in a large cluster not with every tick, and so for a spawn that has waited for seconds where
/// workers cannot make the room.
class ClusterMachine {
 public:
  /// `ids` gives identities and must outlive the machine.
  ClusterMachine(ClusterConfig config, Random& ids);

  /// Call with Tick at least once a heartbeat: a caller that does not was stopped, and time stood still
  /// meanwhile (RunningTime). `now` never goes back.
  std::vector<ClusterAction> on(const ClusterEvent& event, Instant now);

  /// A node that leaves when nothing runs there, or when its time is over: it decides.
  struct Drain {
    Instant until{};
    std::string reason;
    ActorId moving{};  ///< of its actors that start again elsewhere the one that is on its way
  };
  struct Node {
    NodeInfo info;
    bool registered = false;        ///< false after a head restart until the node has shown up again
    bool leaving = false;           ///< it starts nothing more: placement does not see it
    std::optional<Drain> drain{};   ///< the same, and it leaves when nothing runs there
    std::int64_t cpu_used_e4 = 0;   ///< more than it has while tasks go on that had given theirs away
    GpuUse gpu_used_e4{};           ///< one entry a GPU, as far as any is known
    ResourceAmounts other_used{};   ///< memory and custom resources
    std::set<ActorId> actors;       ///< those that are not dead
    std::set<JobId> leases;         ///< running jobs of which it may hold light actors
    std::set<NodeId> peers;         ///< who is told of its death, and the other way round
    std::set<GroupId> groups;       ///< placement groups whose bundles hold some
    std::set<std::string> drivers;  ///< submissions whose drivers hold its CPUs and GPUs
  };
  /// Whether that request led to an actor or waits.
  bool has_request(const Requester& requester) const;
  bool is_registered(NodeId node) const;
  /// Why that submission is not taken now (kBadInput, kLimit, kRefused); nothing: it is new, or known with
  /// that spec.
  std::optional<ErrorInfo> submission_refused(const SubmissionSpec& spec) const;
  /// Why that change of a queue is not made now; nothing: it is.
  std::optional<ErrorInfo> queue_refused(const QueueChanged& e) const;
  std::vector<QueueStatus> queue_statuses() const;
  /// One sentence: what it waits for, or why it is in its state. O(nodes + submissions that wait).
  std::string why(const SubmissionRecord& submission) const;
  /// The same in full, for people and programs.
  WaitReport explain(const SubmissionRecord& submission) const;
  /// Live nodes that may have output of it: that of its latest attempt first.
  std::vector<NodeId> outputs_of(const SubmissionRecord& submission) const;
  /// What that node still waits for, if it drains; empty: nothing. O(what runs there).
  std::string why_drains(NodeId node) const;
  std::vector<JobId> parked_jobs_of(const std::string& name) const;
  /// The wall clock, in milliseconds: what records say of time. It decides nothing.
  void set_wall_clock(std::int64_t now_ms) { wall_ms_ = now_ms; }

  /// The action that asks every node to register again, after which it repeats what has no answer.
  std::vector<ClusterAction> ask_all_to_register(const std::string& reason) const;

  /// The store does not take that submission, and nobody was told of it: it never was.
  std::vector<ClusterAction> withdraw_submission(const std::string& id, Instant now);
  /// Its caller has refused that spawn: those that were to start with it do not, for the same reason.
  std::vector<ClusterAction> spawn_refused(const SpawnRequested& spawn, const ErrorInfo& why, Instant now);

  /// What the last event did to detached actors and parked jobs, one line each: of their ends nobody else may
  /// hear.
  const std::vector<std::string>& log() const { return log_; }
  /// How the last detached actor of that name ended in jobs of that name; empty: none is known to have.
  std::string how_ended(const std::string& job, const std::string& actor) const;
  /// The same of all of a job: "NAME: why", the last first, 16 at most.
  std::vector<std::string> detached_ends(const std::string& job) const;

  // For status and tests.
  const std::map<NodeId, Node>& nodes() const { return nodes_; }
  const std::map<ActorId, Actor>& actors() const { return actors_.all(); }
  const std::map<std::string, std::set<ActorId>>& detached() const { return actors_.detached(); }
  const JobTable& jobs() const { return jobs_; }
  const WaitingSpawns& waiting() const { return waiting_; }
  const SubmissionTable& submissions() const { return submissions_; }
  const GroupTable& groups() const { return groups_; }
  /// Why that spawn waits, in words. O(nodes).
  std::string why_waits(const PendingSpawn& spawn) const;
  /// Why an actor is where it is, or what it waits for. O(log n).
  std::string why(const Actor& actor) const;
  Liveness liveness(NodeId node) const { return membership_.liveness(node); }
  std::size_t dead_nodes() const { return dead_nodes_.size(); }
  /// Empty: it left by itself, or this head does not know.
  std::string how_died(NodeId node) const;
  /// Aborts if an invariant does not hold. O(everything).
  void check_invariants() const;

 private:
  void handle(const NodeJoined& e);
  void handle(const Heartbeat& e);
  void handle(const NodeLeaving& e);
  void handle(const NodeLeft& e);
  void handle(const JobRegistered& e);
  void handle(const JobEnded& e);
  void handle(const LeaseRequested& e);
  void handle(const PeerWanted& e);
  void handle(const NodesWanted& e);
  void handle(const SpawnRequested& e);
  void handle(const SpawnCancelled& e);
  void handle(const ActorStarted& e);
  void handle(const ActorFailed& e);
  void handle(const ActorDown& e);
  void handle(const ActorLives& e);
  void handle(const LookupActor& e);
  void handle(const KillRequested& e);
  void handle(const Tick& e);
  void handle(const Restored& e);
  void handle(const SubmissionRequested& e);
  void handle(const SubmissionStopRequested& e);
  void handle(const DriverStarted& e);
  void handle(const DriverEnded& e);
  void handle(const ResolveActor& e);
  void handle(const ActorArguments& e);
  void handle(const StateSaved& e);
  void handle(const StateKept& e);
  void handle(const ActorWaits& e);
  void handle(const NodeDrains& e);
  void handle(const DrainRequested& e);
  void handle(const GroupRequested& e);
  void handle(const QueueChanged& e);

  // cluster_groups.cpp
  std::string over_quota(const Group& group) const;
  void answer_group(const Requester& to, const Group& group);
  std::optional<ErrorInfo> group_refused(const GroupRequested& e);
  void make_group(const GroupRequested& e);
  bool place_group(Group& group);
  void hold_bundle(Group& group, std::size_t bundle);
  void place_groups();
  std::optional<std::uint64_t> place_groups_from(std::uint64_t number);
  void search_again();
  /// `code`: what the spawns that wait for it fail with.
  void remove_group(Group& group, const std::string& reason, ErrorCode code = ErrorCode::kRefused);
  void forget_if_empty(Group& group);
  void show(Group& group, std::size_t bundle);
  void show_bundles(NodeId node);
  void lose_bundles(NodeId node, const std::string& why);
  void release_idle_bundles();
  void fill_bundles(NodeId node);
  Placement place(const ActorDemand& demand) const;
  std::string why_waits(const ActorDemand& demand) const;
  std::string held_by_groups(const ActorDemand& demand, const Group* but) const;
  std::optional<ErrorInfo> group_of_wrong(const ActorSpec& spec) const;
  void restore_group(GroupRecord record);
  bool is_where_its_bundle_is(const ActorRecord& actor) const;
  std::size_t check_groups() const;

  // cluster_turns.cpp
  /// Room that is kept, as it comes free, for what has waited long.
  struct Turn {
    Requester spawn;  ///< whose, or
    GroupId group{};  ///< of a group all that it lacks
    std::vector<std::pair<SpawnPlace, BundleDemand>> rooms;
  };
  NodeView view_of(NodeId id) const;
  NodeView view_of(const SpawnPlace& place) const;
  NodeView without_kept(NodeView view, const SpawnPlace& place) const;
  NodeView shown(NodeId id) const;
  NodeId seen_on(const SpawnPlace& place) const;
  void show_rooms(const Turn& turn);
  void free_rooms(const Turn& turn);
  bool lacks_room(const Group& group) const;
  bool still_waits(const Turn& turn) const;
  void take_turns();
  void end_turn(std::size_t at);
  bool get_its_room(const Turn& turn);
  void give_turns();
  std::size_t turn_of(const Requester& spawn, GroupId group) const;
  LeaseTurns::Kept kept_for_others(std::size_t but) const;
  void set_turn(std::size_t at, Turn turn);
  void note_lease(const Actor& actor);
  bool is_leased(const Actor& actor) const;
  bool may_be_told(const Actor& worker) const;
  void give_back(ActorId id, const std::string& why);
  using Hopeless = std::vector<const PendingSpawn*>;
  void give_spawn_turns();
  void give_turn(const PendingSpawn& spawn, Hopeless& hopeless);
  void give_group_turn();
  bool make_room_for(const Group& group, std::size_t turn, bool recent);
  /// Spawns that go before groups that came later, in a pass over those that wait.
  struct InOrder {
    std::uint64_t next = 0;  ///< by number
    std::size_t looks = 0;
    std::vector<ActorDemand> fits_nowhere{};
  };
  bool goes_in_order(const PendingSpawn& spawn) const;
  void place_older(Instant than, InOrder& pass);
  bool is_for_older(Instant than, NodeId node, const ActorDemand& room) const;
  NodeView without_recent(NodeView node, const Group* but) const;
  std::optional<LeaseTurns::Room> find_recent(const Starved& waits, const SpawnPlace& first,
                                              const LeaseTurns::Kept& kept);

  // cluster_start_groups.cpp
  std::optional<ErrorInfo> start_group_wrong(const Group& group, const ActorSpec& spec) const;
  bool are_all_there(const Group& group) const;
  std::string why_never(const Group& group) const;
  void end_late_starts();
  void end_hopeless_starts();
  void wait_together(PendingSpawn spawn, Group& group);
  void tell_members(Group& group);
  void tell_members_again();
  void end_start(const ActorSpec& spec, const std::string& why, ErrorCode code = ErrorCode::kRefused);
  void start_together(Group& group, const std::vector<PlacedBundle>& placed, const std::string& reason);

  // cluster_drains.cpp
  void drain(NodeId node, Duration left, const std::string& reason);
  void end_drain(NodeId node);
  void tell_leaves(const Actor& actor, const std::string& reason, bool stays);
  void move_next(NodeId node);

  // cluster_restarts.cpp
  bool has_another_life(const Actor& actor) const;
  void begin_restart(Actor& actor, const std::string& why, bool moves = false);
  bool starts_later(Actor& actor, const ErrorInfo& why);
  void want_arguments(const Actor& actor);
  void restart_when_due(Actor& actor);
  void start_again(PendingSpawn spawn, const Placement& placement);
  void end_restart(Actor& actor, const ErrorInfo& why);
  void restarts_lost(NodeId owner, const std::string& why);
  void restore_restart(ActorRecord record);
  void forget_restored(const ActorRecord& actor);
  ActorPlace place_of(const Actor& actor) const;
  void tell_watchers(Actor& actor);

  // cluster_detached.cpp
  std::vector<ActorId> staying(const Job& job) const;
  void name_program(ActorRecord& detached) const;
  void log_detached(const ActorRecord& actor, const std::string& what);
  void detached_ended(const ActorRecord& actor, const std::string& why);
  void take_over(Job& job, const JobRegistered& e);
  bool is_needed(const std::string& submission) const;
  void tell_drivers_of_detached(NodeId node);
  void end_if_deserted(JobId id);
  std::optional<ErrorInfo> no_driver(const Job& job, const std::string& what) const;
  bool has_its_arguments(const ActorRecord& record) const;
  bool has_keeper(const Actor& actor) const;
  void keep_on_two_nodes();
  NodeId package_from(const Actor& actor, const Job& job) const;
  void ask_for_arguments(const Actor& actor, NodeId node);
  void take_place_of_dead(NodeId node);
  void take_kept_arguments(Actor& actor, const ActorArguments& e);
  std::optional<ErrorInfo> state_refused(const Actor* actor, const StateSaved& e) const;
  /// A save that the actor's keeper has not got yet: its answer waits for that, but not for long.
  struct HeldSave {
    Requester requester;
    std::uint64_t version = 0;
    Instant until{};
  };
  using HeldSaves = std::map<ActorId, HeldSave>;
  HeldSaves::iterator release(HeldSaves::iterator held);

  // cluster_queues.cpp
  using QueueSizes = std::map<std::string, std::set<SubmissionTable::Size>>;
  void eased(const std::string& queue);
  void find_queue(Job& job) const;
  void change_queue(Job& job);
  std::string queue_of(JobId id) const;
  void charge(const std::string& queue, const scheduler::Room& more, int sign);
  std::string over_quota(const std::string& queue, const scheduler::Room& more) const;
  std::uint64_t queue_that_stops(const ActorSpec& spec) const;
  void charge_program(const SubmissionSpec& spec, int sign);
  std::string why_stopped(const std::string& queue, const scheduler::Room& more) const;
  bool keeps_its_quota(const ActorSpec& spec);
  void start_parked();
  scheduler::Room all_room() const;
  SubmissionRecord* next_submission(const SubmissionRecord* first,
                                    const std::set<SubmissionTable::Size>& fits_nowhere,
                                    const QueueSizes& over, const scheduler::Room& all);
  std::vector<std::string> order_of_submissions() const;
  void check_queues() const;

  // cluster_why.cpp
  std::string why_program_waits(const SubmissionRecord& submission) const;
  std::string whose(JobId job) const;
  std::string held_by_actors(const ActorDemand& demand) const;
  std::vector<WaitReport::Holder> holders_on(NodeId node, const ActorDemand& demand) const;
  std::string turn_of(const SubmissionRecord& first, const std::string& queue) const;

  // cluster_submissions.cpp
  void start_submissions();
  Placement place_behind(const SubmissionRecord* first, const ActorDemand& demand);
  NodeId kept_for(const ActorDemand& demand) const;
  bool is_held(const SubmissionRecord& first, const SubmissionRecord& submission) const;
  const SubmissionRecord* first_that_waits() const;
  void start_driver(SubmissionRecord& submission, const Placement& placement);
  StartDriver start_of(const SubmissionRecord& submission) const;
  void stop_driver(const SubmissionRecord& submission);
  void driver_runs(SubmissionRecord& submission);
  void driver_gone(SubmissionRecord& submission, const DriverEnd& end);
  void end_submission(SubmissionRecord& submission, SubmissionState state, std::string message);
  void queue_again(SubmissionRecord& submission, std::string message, Duration after);
  void reconcile_drivers(NodeId node, const std::vector<HeldDriver>& listed);
  void drivers_lost(NodeId node, const std::string& why);
  void withdraw(const SubmissionRecord& submission);
  void restore_submission(const SubmissionRecord& record);
  void trim_submissions();
  void hold(const SubmissionRecord& submission);
  void release(const SubmissionRecord& submission);

  void node_leaves(NodeId node);
  void node_gone(NodeId node, const std::string& reason);
  std::vector<ActorId> starting_for_others(NodeId node) const;
  void remove_from_index(NodeId node);
  /// Demands that only a node of this size can hold wait that long for one to come.
  void grant_grace(const ActorDemand& size);
  void refuse_bound_to(NodeId node, const std::string& why);
  void take_leases(NodeId id, Node& node, const std::vector<JobId>& leases);
  void take_peers(NodeId id, Node& node, const std::vector<NodeId>& peers);
  void reconcile(NodeId node, const std::vector<LiveActor>& listed);
  std::string why_not_live(NodeId node) const;
  /// Its detached actors stay, unless it `ends_all`.
  void end_job(Job& job, const std::string& reason, bool ends_all = false);
  bool holds_job(NodeId node, JobId job) const;
  bool is_live(NodeId node) const;

  void answer_again(const Requester& requester, Actor& actor, const std::string& payload);
  void settle(PendingSpawn spawn);
  void start(PendingSpawn spawn, const Placement& placement);
  void refuse(const PendingSpawn& spawn, ErrorInfo error);
  void drop(const Requester& waiting);
  void fill(NodeId node);
  bool may_come_back(const ActorDemand& demand) const;
  void place_again(ActorId actor, int attempts);
  void end_actor(Actor& actor, const std::string& reason);
  void actor_gone(Actor& actor, const ErrorInfo& why, bool may_restart = false);
  void actor_dead(Actor& actor, const ErrorInfo& why);
  void actor_alive(Actor& actor, ProcessId process);
  StartActor start_of(const Actor& actor, std::string reason) const;
  void wait(PendingSpawn spawn);
  void start_is_due(Actor& actor);
  std::string not_started(const Actor& actor, Duration after) const;
  std::string why_waits_briefly(const PendingSpawn& spawn) const;
  void tell_spawns_again();
  void free_name(const ActorSpec& spec);
  void want_taken_name(const SpawnRequested& e, const Job& job);
  void refuse_taken_name(const SpawnRequested& e);

  // cluster_room.cpp
  void hold(const Actor& actor);
  void release(Actor& actor);
  void book(const Actor& actor, int sign);
  void set_waits(Actor& actor, bool waits);
  static void hold_room(Node& node, const BundleDemand& what, const std::vector<std::uint32_t>& gpus);
  static void free_room(Node& node, const BundleDemand& what, const std::vector<std::uint32_t>& gpus);
  void refresh(NodeId node);
  void persist(Record record);
  void answer(SpawnAnswered answered);
  std::vector<ClusterAction> follow_up();
  void kill(NodeId node, ActorId actor, std::uint32_t incarnation, const std::string& reason);
  void trim();
  void forget_losses();

  /// What a node had that is gone, and how long spawns wait for one like it.
  struct Loss {
    ActorDemand size;
    Instant until{};
  };

  const ClusterConfig config_;
  Random& ids_;
  Membership membership_;
  RunningTime time_;
  std::map<NodeId, Node> nodes_;
  scheduler::NodeIndex index_;  ///< nodes_ without gateways and those that leave or drain
  ActorTable actors_;
  JobTable jobs_;
  WaitingSpawns waiting_;
  NameClaims claims_;
  GroupTable groups_;
  std::uint64_t group_searches_ = 0;                  ///< that were cut off
  std::size_t group_looks_ = 0;                       ///< at nodes, for groups, in this event
  std::optional<std::uint64_t> next_group_to_try_{};  ///< at the next tick, with those behind it
  std::optional<std::uint64_t> try_again_from_{};     ///< the same, when that has come to the end
  LeaseTurns leases_;                                 ///< those on nodes that placement sees
  std::vector<Turn> turns_;                           ///< in the order in which they were given
  std::uint64_t next_turn_ = 0;              ///< from this spawn on turns are given with the next tick,
  std::uint64_t next_group_turn_ = 0;        ///< and from this group on
  Instant next_look_{}, next_group_look_{};  ///< not before
  std::uint64_t next_in_order_ = 0;  ///< the spawn at which the last pass over those in order broke off
  std::uint64_t next_told_ = 0;      ///< from this spawn on they hear again what they wait for
  std::set<NodeId> draining_;
  static constexpr const char* kBeforeThisHead = "before the head restarted";
  std::map<NodeId, std::string> dead_nodes_;  ///< why
  /// Of actors that lost their nodes when the head, which had restarted, had no arguments of them.
  std::set<Requester> lost_starts_;
  TimeQueue<NodeId> forget_nodes_;
  std::vector<Loss> losses_;
  SubmissionTable submissions_;
  QueueTable queues_;
  std::string turn_;   ///< the queue whose first submission waits; empty: none
  std::string first_;  ///< that submission: the first that waits for a node
  NodeId kept_{};      ///< for the first submission that waits, if another would have started there
  std::map<std::string, std::set<NodeId>> files_at_;  ///< nodes that may have output or files of a submission
  struct DetachedEnd {
    std::string job, actor, why;
  };
  HeldSaves held_saves_;
  std::deque<DetachedEnd> detached_ends_;  ///< for people: who finds none may have been told of it
  std::int64_t wall_ms_ = 0;

  // While an event is handled.
  Instant now_{};
  std::vector<ClusterAction> out_;
  std::vector<std::string> log_;
  std::vector<NodeId> freed_;           ///< nodes that have more room than before
  std::set<std::string> eased_queues_;  ///< they may hold more than before
  bool look_at_queue_ = false;          ///< a submission may start
  bool look_at_groups_ = false;         ///< a placement group may find room
  bool look_at_keepers_ = false;        ///< a kept actor may need another node that has its arguments
  std::set<ActorId> want_keepers_;      ///< these may
  std::set<ActorId> lack_keepers_;      ///< they have saved without: looked at with the next tick
};

}  // namespace troupe::cluster
