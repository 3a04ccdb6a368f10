/// The head process: the head's machine with a store, a server and a clock around it. It is not a node:
/// nothing that trains dies with it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "runtime/core/log_limiter.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/storage.hpp"
#include "runtime/link/transport.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/security/admission.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/head/head_machine.hpp"
#include "scheduler/head/head_packages.hpp"
#include "scheduler/head/inbox.hpp"
#include "scheduler/head/store_thread.hpp"

namespace troupe {

/// The name of the head's owner among its peers: the only one that may issue join tokens.
inline constexpr const char* kOwnerName = "owner";
/// Names of machines that joined with a token begin so.
inline constexpr std::string_view kMachinePrefix = "machine/";
/// Names of those that ask about submitted jobs, each with a key that it brought for one conversation.
inline constexpr std::string_view kClientPrefix = "client/";

/// Why what a machine brought, submitted or spawned has ended.
inline std::string key_was_removed(const PeerName& machine) {
  return "the key of its machine, " + machine + ", was removed";
}

/// Everything runs in the loop's thread, but for the writes to the store.
class Head {
 public:
  struct Options {
    Endpoint address;        ///< where to listen
    std::string advertised;  ///< host under which other machines reach it; empty: that of `address`
    CurveKeyPair keys;
    std::shared_ptr<Authorizer> authorizer;  ///< knows the nodes' keys; a peer's name is its node id
    std::unique_ptr<Storage> storage;
    cluster::ClusterConfig cluster = {};
    Inbox::Limits inbox = {};
    std::string packages{};  ///< folder of what travels with submitted jobs; empty: it takes none
  };

  Head(EventLoop& loop, Transport& transport, Options options);
  ~Head();
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  /// Restores the state from the store and listens.
  Result<void> start();
  const std::string& address() const { return address_; }
  /// An event from a source that is trusted, such as the launcher that saw a node die.
  void on(const cluster::ClusterEvent& event);
  const HeadMachine& machine() const { return machine_; }

 private:
  class AdmissionStorage;

  Result<void> restore();
  void on_message(const PeerName& from, wire::Bytes frame);
  void on_frame(const PeerName& from, wire::ByteView frame);
  void on_event(const PeerName& from, const cluster::ClusterEvent& event);
  void carry_out(HeadMachine::Output output);
  void send(const cluster::ClusterAction& action);
  void count_write(Duration took);
  void refused_frame(const PeerName& from, const std::string& why);

  // head_requests.cpp: those who are no nodes
  void on_ask(const PeerName& from, const wire::Control& message);
  Result<wire::Bytes> enroll(const PeerName& from, const wire::EnrollAsk& ask);
  Result<wire::Bytes> admit(const PeerName& from, const wire::AdmitAsk& ask);
  Result<wire::Bytes> issue_token(const PeerName& from, const wire::TokenAsk& ask);
  Result<wire::Bytes> list_keys(const PeerName& from) const;
  Result<wire::Bytes> remove_key(const PeerName& from, std::string name);
  Result<wire::Bytes> status(const PeerName& from) const;
  Result<wire::Bytes> drain(const PeerName& from, const wire::DrainAsk& ask);
  Result<wire::Bytes> kill_actor(const PeerName& from, const wire::KillAsk& ask);
  void kill(const cluster::ActorRecord& actor, const std::string& reason);
  void end_actors_of_strangers();
  void shut_out_nodes_of_strangers();
  Result<std::optional<NodeId>> node_named(const std::string& name) const;
  std::vector<std::string> waiting() const;

  /// A client's question that a node is to answer.
  struct PendingLog {
    PeerName from;
    std::uint64_t request = 0;
    NodeId node{};
    Instant until{};
    std::vector<NodeId> others{};  ///< that may have it if this one has not
    wire::LogAsk ask{};
  };

  // head_submissions.cpp: those who submit jobs. False: it is no message of theirs
  bool on_job_ask(const PeerName& from, const wire::Control& message);
  void submit_job(const PeerName& from, const wire::SubmitAsk& ask);
  void stop_job(const PeerName& from, const wire::StopSubmissionAsk& ask);
  void stop_jobs_of_strangers();
  bool runs_there(const cluster::JobRegistered& program) const;
  std::string starter_of(const cluster::JobRegistered& program) const;
  // REQUIRES: the client is in clients_.
  std::optional<ErrorInfo> not_its_job(const PeerName& client, const char* what, const std::string& id) const;
  bool is_its_program(const PeerName& machine, JobId id) const;
  bool brought(const PeerName& machine, NodeId node) const;
  void answer_about_queues(const PeerName& from, const wire::QueuesAsk& ask);
  Result<wire::Bytes> answer_about(const std::string& id) const;
  Result<wire::Bytes> show_job(const std::string& id) const;
  Result<wire::Bytes> explain_job(const std::string& id) const;
  Result<wire::Bytes> page_of_jobs(const PeerName& by, std::uint64_t below) const;
  Result<wire::Bytes> let_client_in(const PeerName& from, const wire::ClientAsk& ask);
  void client_came(const PeerName& name);
  void client_went(const PeerName& name);
  void ask_for_log(const PeerName& from, const wire::LogAsk& ask);
  void ask_node(const PeerName& from, const wire::LogAsk& ask, std::string_view prefix);
  void ask_for_log_of_actor(const PeerName& from, const wire::LogAsk& ask);
  std::optional<ErrorInfo> read_log_at(PendingLog log);
  std::string name_of_node(NodeId node) const;
  void log_was_read(const PeerName& from, const wire::LogRead& read);
  void put_package(const PeerName& from, const wire::PackagePut& put);
  bool give_package(const PeerName& from, const wire::PackageAsk& ask);
  void tick_clients();
  static std::int64_t wall_clock_ms();

  Endpoint reached_at() const;
  void expire_key(NodeId node);
  void remove_expired_keys();

  EventLoop& loop_;
  Transport& transport_;
  Options options_;
  SystemRandom random_;
  MonotonicClock clock_;
  HeadMachine machine_;
  std::unique_ptr<Storage> admission_storage_;
  std::unique_ptr<Admission> admission_;
  std::map<std::string, Instant> key_deadlines_;  ///< nodes that are not there; their keys go then
  /// Nodes whose queue was full. They hear nothing until they have been asked to register again.
  std::set<NodeId> missed_;
  struct Client {
    PublicKey key;
    PeerName brought_by;
    Instant comes_until{};
  };
  std::map<PeerName, Client> clients_;
  std::map<std::uint64_t, PendingLog> log_asks_;
  std::uint64_t last_log_ask_ = 0;
  HeadPackages packages_;
  Inbox inbox_;
  LimitedLog refusals_{LogLevel::kWarning};
  std::string address_;
  wire::HeadFigures figures_;
  std::unique_ptr<LinkServer> server_;
  std::unique_ptr<StoreThread> store_;
};

}  // namespace troupe
