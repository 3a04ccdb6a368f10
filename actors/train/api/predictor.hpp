/// A trained net that answers requests: replicas with its weights, each a process, which put the requests
/// that have arrived into one forward.
///
///     troupe::train::Predictor<Digits> predictor(session, job, result.weights, {.replicas = 2});
///     troupe::Future<std::vector<float>> logits = predictor.predict(image);
///
/// A replica that dies is started again, and its requests without an answer are sent again: a forward changes
/// nothing, so each request gets its answer, and gets it once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/train/api/weights.hpp"
#include "actors/train/job/model.hpp"
#include "actors/train/job/user_code.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

struct PredictOptions {
  int replicas = 1;      ///< processes
  int batch = 64;        ///< most requests in one forward
  double cpus = 0;       ///< that a replica reserves on its node
  std::string module{};  ///< of the net's weights, where the job's setup() gave it a name
};

struct PredictStats {
  std::int64_t answered = 0;
  std::int64_t sent_again = 0;  ///< since their replica died
  int restarts = 0;             ///< of replicas
  double forwards = 0;          ///< whose answers arrived
  int largest_batch = 0;
};

/// A sample, or what came of it.
struct PredictRow {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  int batch = 0;  ///< of an answer: requests of its forward
};

/// The actor. Isolated: its requests wait in the mailbox while it computes.
class Replica {
 public:
  explicit Replica(int batch);
  virtual ~Replica() = default;

  int pid() const;
  void add_weights(const wire::Bytes& piece);
  /// Loads what was added.
  void load();
  /// Answers after the forward that the requests behind it in the mailbox are part of, too.
  Future<PredictRow> predict(const PredictRow& input);

 protected:
  virtual void load(const wire::Bytes& weights) = 0;
  virtual torch::Tensor forward(const torch::Tensor& inputs) = 0;

 private:
  void answer_all();

  const std::size_t batch_;
  wire::Bytes weights_;
  std::vector<PredictRow> inputs_;
  std::vector<Promise<PredictRow>> answers_;
};

template <class Job>
class ReplicaOf final : public Replica {
 public:
  ReplicaOf(const Job& job, int batch, const std::string& module)
      : Replica(batch), net_(job.model()), module_(module) {}

 protected:
  void load(const wire::Bytes& weights) override {
    copy_weights("the weights of the predictor", weights, module_.empty() ? "" : module_ + ".",
                 named_tensors(net_));
    net_->eval();
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    return run_user_code("the net's forward", [&] { return net_->forward(inputs); });
  }

 private:
  NetOf<Job> net_;
  const std::string module_;
};

/// Keeps replicas alive and gives them requests: the part of a Predictor that does not depend on the job's
/// type. Thread-safe.
class ReplicaSet {
 public:
  using Started = std::function<void(Result<ActorHandle<Replica>>)>;
  /// Starts a replica, without weights, and hands it over.
  using Start = std::function<void(Started)>;

  /// Waits until all replicas are ready. Throws what the first failure was.
  ReplicaSet(const Session& session, Start start, wire::Bytes weights, int replicas);
  ~ReplicaSet();
  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  Future<std::vector<float>> predict(PredictRow input);
  PredictStats stats() const;
  std::vector<int> pids() const;

 private:
  struct State;  // shared with the callbacks of calls
  std::shared_ptr<State> state_;
};

/// Thread-safe. Its end ends the replicas; what has no answer then fails.
template <class Job>
class Predictor {
 public:
  /// `weights`: RunResult::weights, a Snapshot's state, or the bytes of a safetensors file. Returns when all
  /// replicas have loaded them. Throws BadConfig where they do not fit job.model(), or for options that make
  /// no sense.
  Predictor(const Session& session, const Job& job, wire::Bytes weights, const PredictOptions& options = {})
      : replicas_(
            session,
            [session, job, options](ReplicaSet::Started started) {
              session
                  .spawn_async<ReplicaOf<Job>>(
                      {.num_cpus = options.cpus, .isolated = true, .label = "replica"}, job, options.batch,
                      options.module)
                  .then([started](Result<ActorHandle<ReplicaOf<Job>>> replica) {
                    if (!replica) return started(replica.error());
                    started(ActorHandle<Replica>(*replica));
                  });
            },
            std::move(weights), checked(options).replicas) {}

  /// The net's output for one sample, which has no dimension for the batch: row-major. Does not wait; fails
  /// with what forward() threw, and with Unavailable when replicas could not be kept alive.
  Future<std::vector<float>> predict(const torch::Tensor& input) const {
    const torch::Tensor plain = input.to(torch::kFloat).contiguous();
    const auto* values = plain.template data_ptr<float>();
    return replicas_.predict({plain.sizes().vec(), {values, values + plain.numel()}});
  }
  PredictStats stats() const { return replicas_.stats(); }
  /// Of the living replicas' processes: for tests, and for faults on purpose.
  std::vector<int> pids() const { return replicas_.pids(); }

 private:
  static const PredictOptions& checked(const PredictOptions& options) {
    if (options.replicas < 1 || options.batch < 1)
      throw BadConfig(
          "cannot predict",
          "replicas = " + std::to_string(options.replicas) + ", batch = " + std::to_string(options.batch),
          "use at least 1 of each");
    return options;
  }
  mutable ReplicaSet replicas_;
};

}  // namespace troupe::train
