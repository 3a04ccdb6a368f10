#include "collectives/native/process_engines.hpp"

#include "collectives/native/backoff.hpp"
#include "collectives/native/engine.hpp"
#include "collectives/native/spin_lock.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {
namespace {

constexpr int kMostMoves = 64;  ///< of a thread that moves all, before it looks whether it is over

}  // namespace

/// Whoever moves the engine holds the lock meanwhile.
struct EngineEntry::Node {
  SpinLock lock;
  Engine* engine = nullptr;  ///< under the lock; null: the node is free
  ForkGuard fork_guard;      ///< under the lock
  std::atomic<std::uint64_t> group{0};
  std::atomic<bool> open{false};
  Node* next = nullptr;  ///< stays
};

std::atomic<std::uint32_t> EngineEntry::open_engines_{0};
std::atomic<EngineEntry::Node*> EngineEntry::nodes_{nullptr};

EngineEntry::EngineEntry(Engine& engine, std::uint64_t group)
    : group_(group), node_(claim(engine, group)), open_(node_->open) {}

/// A node that is free, or a new one.
EngineEntry::Node* EngineEntry::claim(Engine& engine, std::uint64_t group) {
  const auto take = [&](Node& node) {
    node.engine = &engine;
    node.fork_guard = ForkGuard();
    node.group.store(group, std::memory_order_relaxed);
    return &node;
  };
  Node* first = nodes_.load(std::memory_order_acquire);
  for (Node* node = first; node != nullptr; node = node->next) {
    // In a forked child, a lock that another thread of the parent held is never given back.
    const std::unique_lock lock(node->lock, std::try_to_lock);
    if (lock && node->engine == nullptr) return take(*node);
  }
  Node* made = take(*new Node);
  made->next = first;
  while (!nodes_.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

void EngineEntry::remove() {
  if (node_ == nullptr || fork_guard_.is_in_child()) return;
  {
    const std::lock_guard lock(node_->lock);
    close();
    node_->engine = nullptr;
  }
  node_ = nullptr;
}

void EngineEntry::set_open(bool open) {
  if (open_.exchange(open, std::memory_order_relaxed) == open) return;
  if (open) {
    open_engines_.fetch_add(1, std::memory_order_relaxed);
  } else {
    open_engines_.fetch_sub(1, std::memory_order_relaxed);
  }
}

bool EngineEntry::move(std::uint64_t except, bool all) {
  bool moved = false;
  for (Node* node = nodes_.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    if (node->group.load(std::memory_order_relaxed) == except) continue;
    if (!all && !node->open.load(std::memory_order_relaxed)) continue;
    const std::unique_lock lock(node->lock, std::try_to_lock);
    if (!lock || node->engine == nullptr || node->fork_guard.is_in_child()) continue;
    if (node->group.load(std::memory_order_relaxed) == except) continue;  // claimed since the look above
    moved = node->engine->move_beside(all) || moved;
  }
  return moved;
}

MoveMeanwhile::MoveMeanwhile() {
  if (!EngineEntry::any_is_open()) return;
  thread_ = start_quiet_thread([this] {
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, kSleepSlice, [this] { return over_; })) {
      lock.unlock();
      for (int moves = 0; moves < kMostMoves && EngineEntry::move_all(); ++moves) {
      }
      lock.lock();
    }
  });
}

MoveMeanwhile::~MoveMeanwhile() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ends_.notify_one();
  thread_.join();
}

}  // namespace troupe::collectives
