/// The node process: starts and watches workers, hands out shared memory and rings, and is the gateway to
/// other machines. It holds no decision of the cluster: the head decides who runs where.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/node/death_watch.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/local_process.hpp"
#include "runtime/node/package.hpp"
#include "runtime/node/regions.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/link/transport.hpp"

namespace troupe {

/// Everything runs in the loop's thread.
class Node {
 public:
  struct Options {
    wire::NodeConfig config;
    CurveKeyPair keys;
    PublicKey head_key;
    transport::LocalLink parent;  ///< to whoever started this node; may carry a driver
  };
  /// Told once: nothing when the head counts this node as a member, else why it will not.
  using OnMember = std::function<void(Result<void>)>;

  Node(EventLoop& loop, MachineTransport& transport, Options options);
  ~Node();

  /// Listens and asks to join the cluster. Errors: what the transport says.
  Result<void> start(OnMember on_member);
  /// Takes up the driver behind the link to the parent, if there is one. Call once, as a member.
  void serve_parent();
  /// Ends the workers, forwards what they wrote last, and stops the loop.
  void leave(const std::string& reason);
  const std::string& address() const { return address_; }

 private:
  using Locals = std::map<ProcessId, std::unique_ptr<LocalProcess>>;
  struct Peer {
    cluster::NodeInfo info;
    std::unique_ptr<MachineClient> client;
    std::vector<wire::Bytes> waiting;  ///< frames for a connection that is being made
  };
  /// An executable on its way, and the actors that wait for it.
  struct Fetch {
    PackageDownload download;
    NodeId from;
    std::map<ActorId, cluster::ActorSpec> waiting;
    Instant heard{};
    Instant asked{};
  };

  // node.cpp: joining, the parent, the tick
  void adopt_driver();
  void join_head();
  void tell_member(Result<void> joined);
  void refused_by_head(const std::string& why);
  void tick();
  void to_head(cluster::ClusterEvent event);
  void parent_gone();
  void finish_leaving();

  // node_workers.cpp: processes
  void start_actor(ActorId actor, const cluster::ActorSpec& spec);
  struct NewWorker {
    std::string label;
    JobId job;
    bool isolated = false;
    ProcessAddress driver;
    std::string package;
    int program_fd = -1;
  };
  Result<LocalProcess*> start_worker(const NewWorker& worker);
  LocalProcess* shared_worker(JobId job);
  void watch(LocalProcess& process);
  void read_output(LocalProcess& process, bool errors);
  void read_outputs(LocalProcess& process);
  void forward_output(LocalProcess& process, std::string text, bool errors);
  void process_ends(ProcessId id);
  void process_ended(LocalProcess& process);
  void tell_end(LocalProcess& process, const std::string& how);
  void announce_down(const LocalProcess& process, const std::string& reason);
  void kill_process(LocalProcess& process, const std::string& reason);
  void kill_actor(ActorId actor, const std::string& reason);

  // node_packages.cpp: executables of jobs
  std::optional<int> program_for(ActorId actor, const cluster::ActorSpec& spec,
                                 const wire::ActorPayload& payload);
  void ask_for_package(Fetch& fetch);
  void give_package(NodeId to, const wire::PackageAsk& ask);
  void take_package_part(NodeId from, const wire::PackagePart& part);
  void end_fetch(const std::string& hash, const std::optional<ErrorInfo>& error);
  void watch_fetches(Instant now);
  void end_fetches_from(NodeId node, const std::string& reason);
  bool forget_waiting(ActorId actor);
  void forget_packages();

  // node_frames.cpp: what comes in and goes out
  void read_link(LocalProcess& process);
  void on_local_packet(LocalProcess& process, transport::Packet packet);
  void on_local_control(LocalProcess& process, wire::Control message);
  void on_ask(LocalProcess& process, const wire::RingAsk& ask);
  void on_ask(LocalProcess& process, const wire::RegionAsk& ask);
  void route(const wire::FrameHeader& header, wire::ByteView frame);
  void refuse_call(const wire::FrameHeader& header, const std::string& why);
  void send(LocalProcess& process, const wire::Control& message, std::vector<UniqueFd> fds = {});
  void send_packet(LocalProcess& process, wire::ByteView packet, std::vector<UniqueFd> fds = {});
  void flush(LocalProcess& process);
  void answer(LocalProcess& process, std::uint64_t request, Result<wire::Bytes> value,
              std::vector<UniqueFd> fds = {});
  void to_locals(const wire::Control& message);
  void to_process(ProcessAddress to, const wire::Control& message);
  void to_peer(NodeId node, wire::ByteView frame);
  void to_peers(const wire::Control& message);
  void on_peer_frame(const PeerName& from, wire::ByteView frame);
  void on_peer_control(NodeId from, wire::Control message);
  void on_head_frame(wire::ByteView frame);
  void on_head_action(cluster::ClusterAction action);
  void set_nodes(const std::vector<cluster::NodeInfo>& nodes);
  void node_dead(NodeId node, const std::string& reason);

  LocalProcess* find(ProcessId process);
  LocalProcess* hosting(ActorId actor);

  EventLoop& loop_;
  MachineTransport& transport_;
  Options options_;
  OnMember on_member_;  ///< empty once it was called
  const NodeId id_;
  std::string address_;
  std::string host_;
  std::shared_ptr<Authorizer> authorizer_;
  MonotonicClock clock_;
  Regions regions_;
  Locals locals_;
  LocalProcess* driver_ = nullptr;
  std::map<JobId, ProcessId> shared_workers_;
  std::map<ActorId, ProcessId> hosts_;  ///< which process has an actor
  std::map<std::pair<ProcessId, std::uint64_t>, cluster::ClusterEvent>
      unanswered_;                            ///< told the head again when it is back
  std::map<std::string, UniqueFd> packages_;  ///< whole executables, by hash
  std::map<std::string, Fetch> fetches_;
  UniqueFd own_program_;
  std::map<NodeId, Peer> peers_;
  std::vector<cluster::NodeInfo> nodes_;
  wire::Assembler local_assembler_;
  std::map<NodeId, wire::Assembler> peer_assemblers_;
  std::unique_ptr<MachineServer> server_;
  std::unique_ptr<MachineClient> head_;
  int refusals_ = 0;  ///< handshakes that the head refused, one after the other
  bool leaving_ = false;
  DeathWatch deaths_;
};

}  // namespace troupe
