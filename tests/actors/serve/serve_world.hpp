/// Replicas, clients and time, simulated from a seed, around a DeploymentMachine; and a referee who sees that
/// every request ends once.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/serve/deployment_machine.hpp"
#include "runtime/core/random.hpp"
#include "tests/actors/serve/due_queue.hpp"

namespace troupe::serve {

struct WorldOptions {
  std::uint64_t seed = 1;
  DeploymentConfig config{};
  Duration load{std::chrono::seconds(10)};  ///< requests arrive for so long; then the deployment drains
  double requests_a_second = 100;
  std::int64_t most_rows = 1;
  Duration timeout{std::chrono::seconds(60)};
  Duration row_time{std::chrono::microseconds(100)};
  Duration batch_time{std::chrono::milliseconds(1)};
  double leave = 0;        ///< share of the clients that leave
  double poison = 0;       ///< share of the requests that a replica dies of
  double throws = 0;       ///< share that the model throws for
  double start_fails = 0;  ///< share of the starts
  double deaths = 0;       ///< of a ready replica, a second
  double hangs = 0;        ///< the same
  double leaves = 0;       ///< the same: its node drains, and is gone later, or stays after all
  Duration grace{std::chrono::seconds(1)};  ///< of a node that drains
  int callers = 0;         ///< deployments that ask this one; they end up to a second after its drain
  double scales = 0;       ///< times a second that other numbers of replicas are asked for
  /// Weights that replicas die of under requests are among those that roll out.
  bool deadly_weights = true;
  double updates = 0;  ///< share of the moments, half a second apart, at which other weights roll out
};

class ServeWorld {
 public:
  explicit ServeWorld(const WorldOptions& options);
  /// Until the machine has stopped, or what went wrong says otherwise.
  void run();

  /// Empty: every rule held.
  std::vector<std::string> broken;
  std::map<Failure, int> failed;
  int submitted = 0, answered = 0, left = 0, deaths = 0, most_replicas = 0, batches = 0;
  int updated = 0, not_updated = 0, leaves = 0;
  std::map<VersionId, int> answers;  ///< by the weights that computed them
  std::map<VersionId, int> starts;   ///< of replicas
  std::string last_update_error;
  int fewest_ready = 1000;  ///< since it was last set
  int innocent_deaths = 0;  ///< requests that failed with kReplicaDied, and were not what it died of
  std::int64_t rows_of_batches = 0;

  // For scripted tests.
  Instant now{};
  DeploymentMachine machine;
  void at(Duration delay, std::function<void()> what);
  void submit(std::int64_t rows, bool poison, Duration timeout, bool called = false);
  void kill(ReplicaId id);
  /// Until the time is over.
  void run_for(Duration time);
  void drain();
  void caller_leaves();
  void leave(ReplicaId id);
  void node_drains(ReplicaId id);
  void scale(Replicas replicas);
  /// What becomes of replicas with these weights.
  enum class Weights : std::uint8_t { kGood, kDoNotFit, kDieInWarmUp, kDieOfRequests, kNoRoom };
  VersionId update(Weights weights);
  void hear(const Event& event);
  std::vector<ReplicaId> ready_replicas() const;

 private:
  struct Request {
    std::int64_t rows = 1;
    Instant deadline{};
    bool poison = false, throws = false, left = false, called = false;
    int ends = 0, sent = 0;
  };
  struct Batch {
    BatchId id = 0;
    std::vector<RequestId> requests;
  };
  struct Replica {
    VersionId version = 0;
    bool ready = false, dead = false, hung = false, computing = false, leaves = false;
    std::vector<Batch> queue;
  };
  void carry_out(const std::vector<Action>& actions);
  void obey(const StartReplica& action);
  void obey(const StopReplica& action);
  void obey(const SendBatch& action);
  void obey(const CheckReplica& action);
  void obey(const Deliver& action);
  void obey(const Fail& action);
  void obey(const GiveUp& action);
  void obey(const Updated& action);
  void obey(const UpdateFailed& action);
  void obey(const TellProxy&) { rule(false, "a proxy is told something, and there is none"); }
  void obey(const DropProxy&) { rule(false, "a proxy is dropped, and there is none"); }
  void obey(const Stopped& action);
  void change_weights();
  void compute(ReplicaId id);
  void done(ReplicaId id, const Batch& batch, Duration computed);
  void arrive();
  void misfortune();
  void ended(RequestId id, const char* how);
  void rule(bool holds, const std::string& what);
  bool chance(double probability) { return random_.uniform() < probability; }
  Duration some(Duration most) {
    return Duration(static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count()) + 1)));
  }
  bool step(Instant until);

  WorldOptions options_;
  SeededRandom random_;
  DueQueue due_;
  std::map<RequestId, Request> requests_;
  std::map<ReplicaId, Replica> replicas_;
  std::vector<RequestId> done_batch_;  ///< of the BatchDone that the machine hears now
  std::map<VersionId, Weights> weights_;
  VersionId routable_ = 1, rolls_out_ = 0, previous_ = 0;
  VersionId done_version_ = 0;  ///< of the replica that it comes from
  Instant load_until_{};
  int callers_ = 0;
  bool draining_ = false, stopped_ = false, gave_up_ = false;
};

}  // namespace troupe::serve
