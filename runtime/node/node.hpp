/// The node process: a NodeMachine in a loop. Carries out what the machine decides: starts and watches
/// workers, hands out shared memory and rings, moves frames between processes, other nodes and the head.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/random.hpp"
#include "runtime/link/transport.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/job_programs.hpp"
#include "runtime/node/local_links.hpp"
#include "runtime/node/look_thread.hpp"
#include "runtime/node/node_machine.hpp"
#include "runtime/node/oom_deaths.hpp"
#include "runtime/node/package_store.hpp"
#include "runtime/node/peer_links.hpp"
#include "runtime/node/process_list.hpp"
#include "runtime/node/region_memory.hpp"
#include "runtime/node/worker_outputs.hpp"
#include "runtime/security/authorizer.hpp"

namespace troupe {

/// Everything runs in the loop's thread.
class Node {
 public:
  struct Options {
    wire::NodeConfig config;
    CurveKeyPair keys;
    PublicKey head_key;
    SocketLink parent;                ///< to whoever started this node; may carry a driver
    std::vector<std::string> gpus{};  ///< that it offers, as CUDA_VISIBLE_DEVICES names them
    cluster::OtherResources other{};  ///< memory, custom resources and labels that it offers
    /// For a new link to the head when the one there is goes dead; none: over the transport that it has.
    std::function<std::unique_ptr<Transport>()> make_transport{};
    std::optional<ForkServer> copies{};  ///< workers of our own executable come from here
  };
  /// Told once: nothing when the head counts this node as a member, else why it will not.
  using OnMember = std::function<void(Result<void>)>;

  Node(EventLoop& loop, Transport& transport, Options options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Listens and asks to join the cluster. Errors: what the transport says.
  Result<void> start(OnMember on_member);
  /// Says something to whoever started this node, before serve_parent. False when it is gone.
  bool tell_parent(const wire::Control& message);
  /// A sign of life for whoever started this node. Never waits.
  void pulse();
  /// Takes up the driver behind the link to the parent, if there is one. Call once, as a member.
  void serve_parent();
  /// Ends the workers, forwards what they wrote last, and stops the loop.
  void leave(const std::string& reason);
  /// Leaves when nothing runs here, or when that time is over.
  void drain(Duration grace, const std::string& reason) { tell(node::DrainAsked{grace, reason}); }
  bool drains() const { return machine_ != nullptr && machine_->drains(); }
  const std::string& address() const { return address_; }
  /// Whether it leaves because whoever started it closed their link without a word: that one is dead, or
  /// dying.
  bool has_lost_parent() const {
    return lost_parent_ || (machine_ != nullptr && machine_->has_lost_driver());
  }
  /// Whether a link went dead without an end: what it stood on may be stuck, and never end.
  bool was_cut_off() const { return was_cut_off_; }

 private:
  /// Tells the machine, and carries out what it asks for. An event from within waits for its turn.
  void tell(node::NodeEvent event);
  /// Of a process that the shell has started.
  void tell_end(node::NodeEvent event) {
    oom_deaths_.explain(event);
    tell(std::move(event));
  }
  void carry_out(node::Actions actions);

  Result<void> listen();
  Result<void> connect_head(Transport& over);
  void parent_readable();
  void on_head_frame(const wire::Bytes& frame);
  void on_peer_frame(const PeerName& name, const wire::Bytes& frame);
  void on_local_frame(ProcessId process, Message message);
  /// Routes a frame. `fds` came with it from a local process.
  void dispatch(node::Source source, const wire::FrameHeader& header, wire::ByteView body,
                std::vector<UniqueFd> fds = {});
  void take(node::Source source, const wire::FrameHeader& header, wire::ByteView body,
            std::vector<UniqueFd> fds);
  void refuse(const wire::FrameHeader& header, const ErrorInfo& error);
  void send_control(ProcessId process, const wire::Control& message, std::vector<UniqueFd> fds);
  void send_peer(const node::SendPeer& send);
  void tell_incoming(NodeId node, const std::string& reason);
  void flush_head();
  void read_log(const wire::ReadLog& ask);
  void watch_memory();
  std::string libraries_for(const node::StartWorker& a) const;
  void answer_read(std::uint64_t number, Result<wire::LogPart> part);
  void list_processes(std::uint64_t number);
  void dump(const wire::ReadLog& ask);
  struct Dumping;
  void look_at_dump(std::shared_ptr<Dumping> dumping);

  void act(node::SendLocal& a);
  void act(node::SendPeer& a) { send_peer(a); }
  void act(node::TellHead& a);
  void act(node::StartWorker& a);
  void act(node::AdoptDriver& a);
  void act(node::Welcome& a) { locals_->welcome(a.process); }
  void act(node::KillProcess& a) {
    oom_deaths_.node_ends(a.process);
    locals_->kill(a.process, a.reason);
  }
  void act(node::DrainOutput& a) { locals_->drain(a.process); }
  void act(node::ForgetProcess& a);
  void act(node::ActorBegins& a) { outputs_.began(a); }
  void act(node::HoldOutput& a) { locals_->hold_output(a.process, a.error, a.text); }
  void act(node::RetryOutput&) { locals_->retry_output(); }
  void act(node::MakeRing& a);
  void act(node::MakeRegion& a);
  void act(node::DropRegion& a) { regions_.drop(a.region); }
  void act(node::AbortRegions& a) { regions_.abort(a); }
  void act(node::AllowPeer& a);
  void act(node::RevokePeer& a);
  void act(node::ConnectPeer& a) { peers_->connect(a.peer); }
  void act(node::DisconnectPeer& a) { peers_->disconnect(a.node); }
  void act(node::TellIncoming& a) { tell_incoming(a.node, a.reason); }
  void act(node::ReleaseHeld& a) { peers_->release(a.node); }
  void act(node::RefuseHeld& a) { peers_->refuse_held(a.node, a.error); }
  void act(node::GivePart& a);
  void act(node::TakePart& a) { tell(packages_.take(a.part)); }
  void act(node::ForgetPackage& a) { packages_.forget(a.hash); }
  void act(node::KeepExecutable& a) { packages_.store(a.hash); }
  void act(node::ConnectHeadAnew& a);
  void act(node::UnpackJob& a) { jobs_.unpack(a); }
  void act(node::AskJobPart& a);
  void act(node::TakeJobPart& a) { jobs_.take(a); }
  void act(node::DropJobPackage& a) { jobs_.drop_package(a.package); }
  void act(node::StartProgram& a) { jobs_.start(a); }
  void act(node::SignalProgram& a) { jobs_.signal(a.id, a.signal); }
  void act(node::KillProgram& a) {
    oom_deaths_.node_ends(a.id);
    jobs_.kill(a.id);
  }
  void act(node::RemoveJobFiles& a) { jobs_.remove_files(a.id); }
  void act(node::DropKnock& a);
  void act(node::TellMember& a);
  void act(node::EndLoop& a);
  void act(node::Log& a);

  EventLoop& loop_;
  Transport& transport_;
  Options options_;
  OnMember on_member_;  ///< empty once it was called
  const NodeId id_;
  std::optional<std::string> told_to_leave_;  ///< why: by its launcher, which closes its link next
  std::string address_;
  MonotonicClock clock_;
  SystemRandom random_;
  std::shared_ptr<Authorizer> authorizer_;
  node::OomDeaths oom_deaths_;
  node::RegionMemory regions_;
  node::PackageStore packages_;
  std::unique_ptr<node::NodeMachine> machine_;  ///< from start() on
  std::unique_ptr<node::LocalLinks> locals_;
  node::JobPrograms jobs_;
  node::WorkerOutputs outputs_;
  struct Libraries {
    std::string package;  ///< that they travelled in
    std::string folder;
  };
  std::map<ProcessId, Libraries> libraries_;  ///< that came with a job, by its driver
  std::deque<node::NodeEvent> events_;
  bool busy_ = false;  ///< an event is at hand
  /// Said to the head, for which its link had no room.
  std::deque<cluster::ClusterEvent> unsent_;
  std::unique_ptr<node::PeerLinks> peers_;
  std::atomic<std::size_t> inbound_bytes_{0};  ///< of other nodes' frames, not looked at yet
  bool was_cut_off_ = false;
  bool lost_parent_ = false;
  bool looks_at_memory_ = false;
  std::vector<std::unique_ptr<Transport>> fresh_;  ///< of links to the head that were made anew
  std::unique_ptr<LinkServer> server_;
  std::unique_ptr<LinkClient> head_;
  node::LookThread memory_looks_;
  node::LookThread title_looks_;
};

}  // namespace troupe
