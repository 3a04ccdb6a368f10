/// Horovod's elastic training: a loop that goes on from its last commit when ranks die, with those that are
/// left or, where a launcher starts all of them again, from a file.
///
///   troupe::train::ElasticState state(*net, sgd, {.file = "state.pt"});
///   state.add("step", step);
///   troupe::train::run_elastic(group, state, [&](const auto& group) {
///     troupe::train::DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
///     for (; step < 1000; ++step) {
///       if (step % 10 == 0) state.commit();
///       ...
///     }
///   });
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "actors/ddp/named_tensor.hpp"
#include "actors/ddp/optimizer_snapshot.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

struct ElasticOptions {
  /// Rank 0 writes each commit there, whole or not at all, and begins with what is there. On a disk that
  /// every node sees. Empty: a commit is in memory alone, and lost when all ranks end.
  std::string file{};
};

/// What a loop goes on with: parameters, buffers, the optimizer (SGD, Adam, AdamW, RMSprop, Adagrad) and
/// values of the loop's own. Not thread-safe.
class ElasticState {
 public:
  /// `module` and `optimizer` live longer.
  ElasticState(torch::nn::Module& module, torch::optim::Optimizer& optimizer, ElasticOptions options = {});
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  /// A number, or a struct without pointers, that lives longer: in the same order on every rank, before the
  /// first sync(). Throws BadConfig for a name that is there already, and later.
  template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>) void add(std::string name, T& value) {
    add_bytes(std::move(name), reinterpret_cast<std::uint8_t*>(&value), sizeof value);
  }

  /// Keeps a copy of all of it, on every rank. The file is written meanwhile, and the next commit waits for
  /// it; throws IoError where that one could not be written.
  void commit();
  /// Waits for the file. Throws IoError where it could not be written. run_elastic calls it at the end.
  void flush();
  /// Back to the last commit. Gradients are dropped.
  void restore();
  /// Collective: all ranks go on with the last commit of the one that has the most; the first time of rank
  /// 0's, or its file's. Throws BadConfig where the ranks' models or values differ, BadInput for a file of
  /// other ones, or a damaged one.
  void sync(collectives::ProcessGroup& group);

  /// Whether there is something to restore: behind the first sync() or commit().
  bool has_commit() const { return !last_.tensors.empty(); }
  /// How many commits led here, over all restarts.
  std::uint64_t commits() const { return commits_; }

 private:
  struct Value {
    std::string name;
    std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
  };
  /// Copies of all of it.
  struct Commit {
    std::vector<torch::Tensor> tensors;
    OptimizerSnapshot optimizer;
    std::vector<std::uint8_t> values;
  };
  void add_bytes(std::string name, std::uint8_t* bytes, std::size_t size);
  std::vector<Fact> facts() const;
  Commit taken() const;
  void write();
  void read();
  void take_newest(collectives::ProcessGroup& group);

  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  ElasticOptions options_;
  std::vector<NamedTensor> tensors_;  ///< parameters and buffers
  std::vector<Value> values_;
  Commit last_;
  std::uint64_t commits_ = 0;
  bool synced_ = false;
  std::thread writer_;  ///< of the last commit's file
  std::future<void> written_;
  bool writes_ = false;    ///< it is rank 0
  Generation generation_;  ///< of the group that it was synced in
};

/// Runs `body` with the group, until it has returned on every rank: within the group's timeout of each other,
/// so what one rank does alone at the end comes after run_elastic. When a rank dies, or another collective of
/// the group fails, the others restore the last commit, form a group of those that are left
/// (ProcessGroup::rebuild), sync and run `body` again, so make there what belongs to a group:
/// DistributedOptimizer, samplers. Collective. Throws what else `body` throws, on that rank: the others go on
/// as after its death. Throws CollectiveAborted or Timeout when it has begun anew `reset_limit` times: give 0
/// under a launcher that starts all ranks again when one dies, as `troupe run --max-restarts` does.
void run_elastic(std::shared_ptr<collectives::ProcessGroup> group, ElasticState& state,
                 const std::function<void(const std::shared_ptr<collectives::ProcessGroup>&)>& body,
                 int reset_limit = 100);

}  // namespace troupe::train
