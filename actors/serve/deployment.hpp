/// A deployment's shell: carries out what its machine says with spawn, call, monitor and kill, and keeps the
/// tensors of its requests meanwhile. It decides nothing.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/serve/batch_sender.hpp"
#include "actors/serve/deployment_machine.hpp"
#include "actors/serve/front.hpp"
#include "actors/serve/handle.hpp"
#include "actors/serve/proxy.hpp"
#include "actors/serve/replica.hpp"
#include "actors/serve/request_book.hpp"
#include "actors/serve/serial.hpp"
#include "runtime/client/session.hpp"
#include "runtime/core/condition.hpp"
#include "runtime/http/metrics.hpp"

namespace troupe::serve {

class Calls;

/// Weights as a deployment keeps them.
struct KeptWeights {
  std::shared_ptr<const wire::Bytes> file;
  std::string from;  ///< for people: "step 120 of Digits{...}"
};

/// Thread-safe. Held by shared_ptr: calls under way hold it, too.
class Deployment final : public Front, public std::enable_shared_from_this<Deployment> {
 public:
  using Started = std::function<void(Result<ActorHandle<Replica>>)>;
  struct Parts {
    Session session;
    std::string name;
    DeploymentConfig config;
    ReplicaSetup setup;
    /// Starts a replica, without weights, and hands it over. Returns what withdraws that.
    std::function<std::shared_ptr<CallState>(const ReplicaCalls&, Started)> start_replica;
    KeptWeights weights;             ///< of version 1
    std::set<std::string> asks{};    ///< names of other deployments
    std::shared_ptr<Calls> calls{};  ///< null: it neither asks nor is asked
    std::size_t max_request_rows = 1024;
  };
  /// The version that answers, or why it is not the one that was asked for.
  using UpdateDone = std::function<void(Result<VersionId>)>;

  Deployment(Parts parts, http::Registry& metrics);
  ~Deployment() override;

  /// Throws BadConfig where what it asks makes no sense.
  void start();
  /// Waits until the least number of replicas is ready. False after `timeout`. Throws why none comes up.
  bool wait_up(Duration timeout);
  void submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) override;
  RequestId next_request() override { return last_request_.fetch_add(1) + 1; }
  void leave(RequestId id) override;
  /// As submit(), from another deployment: answered also while this one drains, until those that ask it have
  /// ended.
  void submit_call(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply);
  void caller_joined();
  void caller_left();
  Duration drain_timeout() const { return parts_.config.drain_timeout; }
  /// Other weights take the place of those that answer. `done` is called once, in any thread: when no replica
  /// of the old ones is left, or when the roll-out has failed and they go on.
  void update(KeptWeights weights, UpdateDone done);
  /// Back to the weights from before the last update; one that is under way ends, and its `done` is told so.
  void roll_back(UpdateDone done);
  void cancel_update();
  /// From here on; `taken` is called once that holds, in any thread. REQUIRES: 1 <= min <= max.
  void scale(Replicas replicas, std::function<void()> taken);
  /// Takes no more requests, answers those it has, ends the replicas.
  void drain();
  bool wait_stopped(Duration timeout);
  /// Ends at once: what has no answer fails.
  void end();

  /// A proxy on another node sends requests to its replicas from here on.
  void add_proxy(ProxyId id, const ActorHandle<Proxy>& proxy);
  /// It is gone.
  void remove_proxy(ProxyId id);

  const std::string& name() const override { return parts_.name; }
  const ReplicaSetup& setup() const override { return parts_.setup; }
  std::size_t max_request_rows() const override { return parts_.max_request_rows; }
  bool is_ready() const override;
  std::vector<int> pids() const;
  /// What the last replica that died or did not come up died of; empty: none did.
  std::string last_failure() const;
  DeploymentMachine::View view() const;
  /// Where the weights that answer are from, and those that roll out; empty: none do.
  std::pair<std::string, std::string> weights_from() const;
  VersionId version() const override;
  std::optional<ReplicaInfo> output() const override;
  void measure() override;

 private:
  /// A replica that was ordered.
  struct Start {
    VersionId version = 0;
    std::shared_ptr<const wire::Bytes> weights;  ///< until they are loaded
    std::shared_ptr<CallState> spawn{};          ///< until it is there
    int pid = 0;
    Instant since{};
  };
  struct Metrics;

  BatchSender::Owner sender_of();
  void accept(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply, bool called);

  void step(const Event& event);
  void carry_out(const std::vector<Action>& actions);
  void post(std::function<void()> work);
  void arm_timer();
  void obey(const StartReplica& action);
  void obey(const StopReplica& action);
  void obey(const SendBatch& action);
  void obey(const CheckReplica& action);
  void obey(const Deliver& action);
  void obey(const Fail& action);
  void obey(const GiveUp& action);
  void obey(const Updated& action);
  void obey(const UpdateFailed& action);
  void obey(const TellProxy& action);
  void obey(const DropProxy& action);
  void obey(const Stopped& action);
  void publish_view();
  std::string named(VersionId version) const;
  void begin_update(VersionId version, UpdateDone done);
  void end_update(VersionId version, Result<VersionId> result);
  void spawn(ReplicaId id, const ReplicaCalls& calls);
  void started(ReplicaId id, Result<ActorHandle<Replica>> replica);
  void load(ReplicaId id, std::uint64_t offset);
  void send_pieces();
  bool send_piece(ReplicaId id, std::uint64_t offset);
  void warm_up(ReplicaId id, const ActorHandle<Replica>& replica);
  void ready(ReplicaId id, int pid);
  void failed(ReplicaId id, const ErrorInfo& why);
  void died(ReplicaId id, const std::string& why);
  void note_failure(ReplicaId id, const std::string& why);

  const Parts parts_;
  std::uint64_t call_id_ = 0;  ///< in parts_.calls; 0: none
  std::unique_ptr<Metrics> metrics_;
  const MonotonicClock clock_;
  std::atomic<RequestId> last_request_{0};
  Serial serial_;

  // In serial_ alone.
  DeploymentMachine machine_;
  std::unordered_map<ReplicaId, Start> starts_;
  RequestBook book_;
  BatchSender sender_;  ///< to replicas that have started
  /// Replicas, and how much each has of its weights, whose next piece waits for room.
  std::deque<std::pair<ReplicaId, std::uint64_t>> loads_;
  int pieces_ = 0;               ///< of weights, on their way
  bool is_full_ = false;         ///< the last one found no room: other objects of this process have it
  bool waits_for_room_ = false;  ///< it is sent again a little later
  std::map<ProxyId, ActorHandle<Proxy>> proxies_;
  std::map<VersionId, KeptWeights> weights_;
  VersionId last_version_ = 1;
  VersionId current_ = 1;
  VersionId previous_ = 0;  ///< from before the last update; 0: there was none
  std::map<VersionId, UpdateDone> updates_;
  Instant armed_ = Instant::max();

  mutable std::mutex mutex_;  ///< guards what follows
  Condition changed_;         ///< up_, stopped_ or given_up_: whoever waits is not woken by each request
  DeploymentMachine::View view_;
  std::vector<int> pids_;
  std::string last_failure_;
  std::pair<std::string, std::string> weights_from_;
  std::optional<ReplicaInfo> output_;
  bool up_ = false;
  bool stopped_ = false;
  std::optional<ErrorInfo> given_up_;
};

}  // namespace troupe::serve
