/// A process's place in the cluster: its link to the node, its rings, its actors and the calls it waits for.
///
/// One a driver or worker process. Users see it through Session and ActorHandle.
#pragma once

#include <atomic>
#include <caf/all.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/host/hosted_actor.hpp"
#include "runtime/link/ring/ring_hub.hpp"
#include "runtime/link/socket/local_link.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Told when a monitored actor is gone.
using OnDown = std::function<void(const std::string& reason)>;

/// Thread-safe.
class Process {
 public:
  struct Config {
    NodeId node;
    ProcessId process;
    JobId job;
    std::uint32_t incarnation = 0;  ///< how many drivers this job has had; a driver's own
    std::string label;
    std::string host;
    std::string package;  ///< hash of the executable this job's workers run; empty: the node's own
  };
  /// What the process does when its node is gone: a worker ends, a driver fails its calls.
  using OnNodeLost = std::function<void()>;
  using OnOutput = std::function<void(const wire::Output&)>;

  /// Says hello on `link` and starts to receive. Throws when the link is dead.
  Process(Config config, transport::LocalLink link, OnNodeLost on_node_lost, OnOutput on_output);
  /// Ends every actor of the process and waits for them, then leaves.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const Config& config() const { return config_; }
  /// The job that this process drives: set once by init, before actors are spawned.
  void set_job(JobId job, std::uint32_t incarnation) { config_.job = job, config_.incarnation = incarnation; }
  /// Asks the node to end with all its workers, and waits until it has (a driver's goodbye).
  void end_cluster(Duration timeout);
  ProcessAddress address() const { return {config_.node, config_.process}; }

  /// Starts a call; the state is resolved with the answer or an error. `one_way` calls have no state.
  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, wire::Bytes args,
                                  bool one_way);
  /// Sends a reply frame; for Responder.
  void reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome);

  /// Asks the node; `make` builds the message around the request's number. Resolved with the encoded answer.
  std::shared_ptr<CallState> ask(const std::function<wire::Control(std::uint64_t request)>& make);
  /// `waiter`: what receives while somebody waits for the answer; null: nothing.
  std::shared_ptr<CallState> ask(const std::function<wire::Control(std::uint64_t request)>& make,
                                 Waiter* waiter);
  void tell(const wire::Control& message);
  /// The memory named `key` on this node (see RegionAsk). Waits for the node.
  Result<SharedMemory> open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                   bool abortable);

  /// Starts an actor in this very process.
  std::shared_ptr<CallState> spawn_here(std::uint64_t constructor, wire::Bytes args, bool isolated);
  void stop_here(ActorId actor, std::string reason);
  /// Calls `callback` once, when the actor is gone (at once if it is). Runs as the monitoring actor, if one
  /// called.
  void monitor(const ActorAddress& actor, OnDown callback);

  /// Blocks until the node tells this process to leave, or is gone: a worker's main loop.
  void run_until_told_to_leave();

 private:
  struct PendingCall {
    std::shared_ptr<CallState> state;
    ActorAddress to;
  };
  struct PendingAsk {
    std::shared_ptr<CallState> state;
    std::vector<UniqueFd> fds;
  };

  void receive_from_node();
  void pulse();
  void on_frame(const wire::FrameHeader& header, wire::ByteView body, caf::execution_unit* unit);
  void on_control(wire::Control message, std::vector<UniqueFd> fds);
  void handle(wire::Answer&& answer, std::vector<UniqueFd> fds);
  void handle(const wire::RingOffer& offer, std::vector<UniqueFd> fds);
  void handle(wire::StartActorHere&& start);
  void process_down(ProcessAddress process, const std::string& reason);
  void fail_where(const std::function<bool(const ActorAddress&)>& gone, const std::string& reason);
  void node_lost(const std::string& reason);

  void deliver(ActorId actor, std::uint64_t method, wire::Bytes args, Responder responder,
               caf::execution_unit* unit);
  void start_actor(HostedActor::Spec spec, HostedActor::OnReady on_ready, HostedActor::OnEnd on_end,
                   caf::execution_unit* unit);
  void actor_ended(const ActorAddress& actor, const std::string& reason);
  /// Sends over the ring to a process of this node (making one first), over the node to others.
  bool send(ProcessAddress to, const wire::FrameHeader& header, wire::ByteView body);
  bool ensure_ring(ProcessId peer);
  /// Runs callbacks that may call other processes: never in the thread that hears the node.
  void later(std::function<void()> work);
  std::string why_gone(const ActorAddress& actor) const;

  Config config_;
  const OnNodeLost on_node_lost_;
  const OnOutput on_output_;
  caf::actor_system_config caf_config_;
  std::unique_ptr<caf::actor_system> caf_;
  std::unique_ptr<InlineUnit> inline_unit_;  ///< of the thread that leads the hub

  mutable std::mutex mutex_;
  std::unordered_map<ActorId, std::shared_ptr<HostedActor>> actors_;
  std::unordered_map<std::uint64_t, PendingCall> calls_;
  std::unordered_map<std::uint64_t, PendingAsk> asks_;
  std::unordered_map<ActorId, std::vector<std::pair<ActorAddress, OnDown>>> monitors_;
  std::unordered_map<ProcessId, std::string> dead_processes_;
  std::unordered_map<NodeId, std::string> dead_nodes_;
  std::unordered_map<ActorId, std::string> dead_actors_;
  bool node_gone_ = false;

  std::atomic<std::uint64_t> next_number_{1};
  std::mutex ring_mutex_;  ///< one ring is asked for at a time
  std::mutex link_mutex_;  ///< a whole message is sent under it
  transport::LocalLink link_;
  std::unique_ptr<RingHub> hub_;
  caf::actor mailman_;  ///< runs what `later` is given
  std::atomic<std::uint32_t> left_{0};
  std::thread reader_;
  std::thread pulser_;
};

}  // namespace troupe
