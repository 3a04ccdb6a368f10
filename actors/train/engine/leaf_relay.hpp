/// Runs the leaves of a trainer side by side, where a layer asks all leaves of the step for something in the
/// middle of a forward or backward (in_step.hpp): a thread a leaf, of which one runs at a time, in leaf
/// order. A single leaf runs in the thread that calls.
///
/// A thread runs until its leaf gathers, hands over to the next leaf's, and goes on when all have gathered
/// and its turn has come again. So whatever is the process's (random generators, buffers of the model) is one
/// leaf's at a time: `enter` and `leave` bring and take it.
///
/// A thread that waits for its turn has no deadline: the one that runs has those of the group.
#pragma once

#include <torch/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/core/condition.hpp"

namespace troupe::train {

class LeafRelay {
 public:
  /// Called by the thread of the leaf, with its place among the trainer's leaves.
  struct Calls {
    std::function<void(std::size_t)> enter;  ///< before it runs, and again after each gather
    std::function<void(std::size_t)> leave;  ///< before each gather
    /// Given what the trainer's leaves say, in their order, returns what all of the step say.
    std::function<torch::Tensor(const std::vector<torch::Tensor>&)> exchange;
  };

  LeafRelay(std::size_t leaves, Calls calls);

  /// Returns when `body` has returned for every leaf. Throws what the first one threw that failed: the others
  /// end at their next gather.
  void run(const std::function<void(std::size_t leaf)>& body);
  /// In the thread of the leaf, while run() runs. Throws BadConfig where the leaves of a trainer do not
  /// gather equally often.
  torch::Tensor gather(std::size_t leaf, const torch::Tensor& mine);

 private:
  void run_leaf(std::size_t leaf, const std::function<void(std::size_t)>& body);
  void fail(std::exception_ptr why);
  void hand_over(std::size_t from);
  void await_turn(std::unique_lock<std::mutex>& lock, std::size_t leaf);

  const Calls calls_;
  std::mutex mutex_;
  std::size_t turn_ = 0;
  std::unique_ptr<Condition[]> turned_;  ///< of each leaf
  std::vector<bool> ended_;
  std::size_t ends_ = 0;             ///< how many of them
  std::vector<torch::Tensor> rows_;  ///< of the gather under way
  torch::Tensor all_;                ///< what the last one came to
  std::exception_ptr failure_;
};

}  // namespace troupe::train
