/// A process's place in the cluster, put together: its link to the node, its rings, its actors, the calls it
/// waits for. One a driver or worker process. Users see it through Session and ActorHandle.
#pragma once

#include <atomic>
#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/random.hpp"
#include "runtime/host/actor_directory.hpp"
#include "runtime/host/actor_table.hpp"
#include "runtime/host/call_table.hpp"
#include "runtime/host/kept_states.hpp"
#include "runtime/host/leases.hpp"
#include "runtime/host/leaving_actors.hpp"
#include "runtime/host/node_link.hpp"
#include "runtime/host/process_floor.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/routes.hpp"
#include "runtime/link/socket/socket_link.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"

namespace troupe {

/// Thread-safe.
class Process final : public ProcessGate, public ActorHome {
 public:
  struct Handlers {
    /// What the process does when its node is gone: a worker ends, a driver fails its calls.
    std::function<void()> on_node_lost;
    /// Runs in the thread that receives, and must not wait.
    std::function<void(const wire::Output&)> on_output;
    /// The node is gone, and has not said whether the head knows that this actor is to be killed. Runs in any
    /// thread. Null: nobody can say it again.
    std::function<void(const ActorAddress&, const std::string& reason)> on_kill_lost{};
  };

  /// Says hello on `link` and starts to receive. Throws Unavailable when the link is dead.
  /// `actor_threads` as in ProcessFloor.
  Process(ProcessConfig config, SocketLink link, Handlers handlers,
          std::shared_ptr<ActorThreads> actor_threads = nullptr);
  Process(ProcessConfig config, ProcessFloor floor, Handlers handlers);
  ~Process() override;
  /// Ends every actor of the process and waits for them, then leaves. The destructor does so, too.
  void end();
  /// Its node is gone, and its driver has another Process: gives back what talked to that node, threads and
  /// descriptors. Whoever still calls this one hears that the node is gone. REQUIRES: on_node_lost ran.
  void give_back();
  /// Its node is gone, and its driver gets no other one: what is asked from now on fails with that reason.
  void no_other_node(const ErrorInfo& why);

  /// The job that this process drives, by name. Asks the head; throws what it says, or Timeout. Call once,
  /// before actors are spawned.
  void register_job(const std::string& name, Duration timeout);
  /// The same without waiting: resolved once the job is known.
  std::shared_ptr<CallState> begin_job(const std::string& name);
  /// Ends the actors that live in this process, without waiting for it.
  void stop_actors(const std::string& reason) { actors_->stop_all(reason); }
  /// Asks the node to end with all its workers, and waits until it has (a driver's goodbye).
  void end_cluster(Duration timeout);
  /// The same without waiting.
  void begin_end();
  /// A driver's: so much of the output of its workers on that node is written, and there is room for more.
  /// Does not wait.
  void output_taken(NodeId node, std::size_t bytes) {
    node_->tell(wire::OutputTaken{address(), node, bytes});
  }
  /// Blocks until the node tells this process to leave, or is gone: a worker's main loop.
  void run_until_told_to_leave();
  bool is_told_to_leave() const { return left_ != 0; }
  /// Who has a turn to take, and the actors' clock. REQUIRES: a floor without threads.
  caf::scheduler::test_coordinator& turns();

  const ProcessConfig& config() const override { return config_; }
  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, CallBody args,
                                  bool one_way) override;
  void reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, wire::Kept refers_to) override;
  void resolve(const std::shared_ptr<CallState>& call, Outcome outcome, wire::Kept refers_to) override;
  void reply_parts(ProcessAddress to, std::uint64_t call, wire::ByteView head, wire::ByteView rest) override;
  std::shared_ptr<CallState> spawn(ActorSpawn spawn) override;
  void kill(const ActorAddress& actor, std::string reason) override;
  void monitor(const ActorAddress& actor, OnDeath callback) override;
  void watch_leaving(const ActorAddress& actor, OnLeaving callback) override {
    leaving_->watch(actor, std::move(callback));
  }
  std::shared_ptr<CallState> find(std::string name) override;
  std::shared_ptr<CallState> nodes() override;
  std::shared_ptr<CallState> group(cluster::GroupVerb verb, GroupId group, cluster::GroupSpec spec) override;
  Result<SharedMemory> open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                   bool abortable) override;
  void drop_region(const std::string& key) override;
  /// What open_region asks of the node; the answer's descriptor is the memory.
  NodeLink::Request ask_for_region(const std::string& key, std::size_t bytes, const std::string& label,
                                   bool abortable);
  void later(Duration delay, std::function<void()> work) override;
  ObjectsPtr objects() override { return objects_; }
  TasksPtr tasks() override { return tasks_; }
  void task_waits(bool waits) override { node_->tell(wire::TaskWaits{waits}); }

  /// Calls and spawns that have no answer yet.
  std::size_t calls_under_way() const { return calls_.size(); }

 private:
  // ActorHome
  ProcessGate& gate() override { return *this; }
  bool is_congested(ProcessAddress caller, std::size_t held) override {
    return routes_->is_congested(caller, held);
  }
  void when_drained(ProcessAddress caller, std::function<void()> resume) override {
    routes_->when_drained(caller, std::move(resume));
  }
  void carried_out(ProcessAddress caller, std::size_t bytes) override { routes_->carried_out(caller, bytes); }

  // What comes in. `unit`: the actors it is for may take their turn in this thread.
  void on_message(Message message, caf::execution_unit* unit);
  void on_call(Message message, caf::execution_unit* unit, std::size_t bytes);
  void on_reply(Message message);
  void give_answer(ProcessAddress to, std::uint64_t call, const Outcome& outcome,
                   const wire::Kept& refers_to);
  void answer_in_object(PendingCall call, const Message& message, wire::Kept refers_to);
  void resolve_in_store(std::shared_ptr<CallState> state, wire::Bytes answer, wire::Kept refers_to);
  void decline_answer(const Message& message);
  /// Of a question to this process itself.
  Responder answer_as_it_is(const wire::FrameHeader& header);
  void send_reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, std::uint8_t flags = 0);
  void on_spawn(Message message, caf::execution_unit* unit);
  void on_control(Message message);
  void handle(wire::StartActorHere&& start);
  void on_node_gone(const std::string& why);
  void told_to_leave(const std::string& why);

  // Calls.
  std::shared_ptr<CallState> send_call(wire::FrameKind kind, const ActorAddress& to, std::uint64_t method,
                                       wire::ByteView body, std::uint8_t flags = 0);
  /// A monitor, a kill or a call of a restartable actor whose link broke is sent again after this long.
  static constexpr Duration kAgain = std::chrono::milliseconds(200);
  std::unique_ptr<ActorDirectory> make_directory();  // this and the next four: process_restarts.cpp
  class Keeper;
  std::shared_ptr<StateKeeper> keeper_of(wire::StartActorHere& start);
  void ask_owner(ProcessAddress owner, std::uint64_t operation, wire::Bytes body,
                 std::shared_ptr<CallState> answer);
  void kill_for_good(const ActorAddress& actor, std::string reason);
  Result<void> send_moving(const std::shared_ptr<MovingCall>& call, ProcessAddress to);
  void fail_calls(const std::function<bool(ProcessAddress)>& gone, const ErrorInfo& why);
  /// In a thread of the runtime; where those have ended, at once.
  void fail_later(std::vector<std::shared_ptr<CallState>> calls, const ErrorInfo& why);
  /// And every later one.
  void fail_all_calls(ErrorInfo not_sent, const ErrorInfo& no_answer);
  void ask_for_ring(ProcessId peer);
  /// Shared memory of this node, or that it is full.
  void lend_region(const std::string& key, std::uint64_t bytes, const std::string& label, bool abortable,
                   objects::Objects::OnRegion then);
  std::shared_ptr<CallState> spawn_here(ActorSpawn spawn);
  std::shared_ptr<CallState> spawn_through_head(ActorSpawn spawn);
  std::shared_ptr<CallState> spawn_light(ActorSpawn spawn);
  ProcessAddress driver() const { return config_.driver == ProcessAddress{} ? address() : config_.driver; }
  void construct_in(ProcessAddress process, ActorSpawn spawn, std::shared_ptr<CallState> state);

  /// Without threads: all turns that are due now.
  void run_turns();
  ActorId next_light_id() { return light_actor_id(mix(light_ids_, light_count_.fetch_add(1))); }

  ProcessConfig config_;
  const Handlers handlers_;
  const bool threads_;
  const std::uint64_t light_ids_;
  std::atomic<std::uint64_t> light_count_{0};
  const bool has_own_actor_threads_;
  const std::shared_ptr<ActorThreads> actor_threads_;
  std::unique_ptr<InlineUnit> inline_unit_;  ///< of the thread that leads the rings
  caf::strong_actor_ptr callback_runner_;    ///< runs what `later` is given, in order
  CallTable calls_;
  std::unique_ptr<ActorDirectory> directory_;  ///< where actors are that are started again
  KeptStates states_;
  std::unique_ptr<LeavingActors> leaving_;
  std::unique_ptr<ActorTable> actors_;
  std::unique_ptr<NodeLink> node_;
  std::unique_ptr<Rings> rings_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<Leases> leases_;
  ObjectsPtr objects_;
  TasksPtr tasks_;
  std::atomic<std::uint32_t> left_{0};  ///< told to leave, or the node is gone
  std::string why_left_;                ///< written before left_ is
  bool is_over_ = false;                ///< end() was called
  bool node_gone_ = false;              ///< the handler was told; of the thread that receives
  std::atomic<bool> ending_{false};  ///< this process says goodbye: ends that it brings about are no deaths
};

}  // namespace troupe
