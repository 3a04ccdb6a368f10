#include "actors/train/engine/leaf_relay.hpp"

#include <ATen/Parallel.h>

#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/thread.hpp"

namespace troupe::train {
namespace {

/// Ends a leaf whose neighbour has failed.
struct NeighbourFailed : std::exception {
  const char* what() const noexcept override { return "another leaf of this trainer has failed"; }
};

[[noreturn]] void gather_unlike() {
  throw BadConfig("the leaves of a step do not go through the same SyncBatchNorm layers",
                  "one has gathered more often than another",
                  "let every batch go through the same converted layers, or leave the conversion out");
}

}  // namespace

LeafRelay::LeafRelay(std::size_t leaves, Calls calls)
    : calls_(std::move(calls)), turned_(std::make_unique<Condition[]>(leaves)), ended_(leaves) {}

void LeafRelay::run(const std::function<void(std::size_t leaf)>& body) {
  std::vector<Thread> threads;
  if (ended_.size() == 1) run_leaf(0, body);
  for (std::size_t leaf = 0; ended_.size() > 1 && leaf < ended_.size(); ++leaf)
    threads.push_back(Thread::quiet([this, leaf, &body] { run_leaf(leaf, body); }));
  for (Thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

void LeafRelay::run_leaf(std::size_t leaf, const std::function<void(std::size_t)>& body) {
  at::init_num_threads();  // it, too, computes as set_up_numerics chose
  try {
    {
      std::unique_lock lock(mutex_);
      await_turn(lock, leaf);
    }
    calls_.enter(leaf);
    body(leaf);
    const std::unique_lock lock(mutex_);
    if (!rows_.empty()) gather_unlike();
  } catch (...) {
    fail(std::current_exception());
  }
  const std::unique_lock lock(mutex_);
  ended_[leaf] = true;
  ++ends_;
  hand_over(leaf);
}

/// The first failure is told.
void LeafRelay::fail(std::exception_ptr why) {
  const std::unique_lock lock(mutex_);
  if (!failure_) failure_ = std::move(why);
}

torch::Tensor LeafRelay::gather(std::size_t leaf, const torch::Tensor& mine) {
  std::unique_lock lock(mutex_);
  if (failure_) throw NeighbourFailed();
  if (ends_ > 0) gather_unlike();
  calls_.leave(leaf);
  rows_.push_back(mine);
  if (rows_.size() == ended_.size()) {
    try {
      all_ = calls_.exchange(std::exchange(rows_, {}));
    } catch (...) {  // as it is: autograd may wrap it on its way
      failure_ = std::current_exception();
      throw;
    }
  }
  hand_over(leaf);
  await_turn(lock, leaf);
  calls_.enter(leaf);
  return all_;
}

/// REQUIRES: the mutex.
void LeafRelay::hand_over(std::size_t from) {
  for (std::size_t next = 1; next <= ended_.size(); ++next) {
    turn_ = (from + next) % ended_.size();
    if (!ended_[turn_]) break;
  }
  turned_[turn_].notify_all();
}

void LeafRelay::await_turn(std::unique_lock<std::mutex>& lock, std::size_t leaf) {
  while (turn_ != leaf) turned_[leaf].wait(lock);
  if (failure_) throw NeighbourFailed();
}

}  // namespace troupe::train
