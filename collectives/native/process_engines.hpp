/// The groups of one process: a thread that waits in one of them moves the operations of the others, so that
/// groups may be waited for in any order.
///
/// Ranks of one group in one process (threads) are left to themselves. In a forked child the groups of its
/// parent do not move.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "runtime/core/fork_guard.hpp"

namespace troupe::collectives {

class Engine;

/// An engine's place among those of its process, for as long as it lives. Thread-safe but for remove(), after
/// which nothing else is called.
class EngineEntry {
 public:
  /// `group`: the same for the ranks of one group alone.
  EngineEntry(Engine& engine, std::uint64_t group);
  ~EngineEntry() { remove(); }
  EngineEntry(const EngineEntry&) = delete;
  EngineEntry& operator=(const EngineEntry&) = delete;
  /// Waits for those that move the engine at the moment; nobody does any more. Does nothing in a forked
  /// child.
  void remove();

  /// The engine may have operations in flight. Cheap where it is called again.
  void open() {
    if (!open_.load(std::memory_order_relaxed)) set_open(true);
  }
  /// It has none, or they will not move any more.
  void close() {
    if (open_.load(std::memory_order_relaxed)) set_open(false);
  }

  /// Whether engines other than this one may have operations in flight. REQUIRES: this one has.
  static bool others_are_open() { return open_engines_.load(std::memory_order_relaxed) > 1; }
  /// Moves other groups, those that are open or all; whether anything moved.
  bool move_others(bool all) { return move(group_, all); }
  /// The same for a thread that waits in no group.
  static bool any_is_open() { return open_engines_.load(std::memory_order_relaxed) != 0; }
  static bool move_all() { return move(0, true); }

 private:
  struct Node;
  void set_open(bool open);
  static bool move(std::uint64_t except, bool all);
  static Node* claim(Engine& engine, std::uint64_t group);

  static std::atomic<std::uint32_t> open_engines_;
  static std::atomic<Node*> nodes_;  ///< a list that only grows; free ones are used again
  const ForkGuard fork_guard_;
  const std::uint64_t group_;
  Node* node_;
  std::atomic<bool>& open_;  ///< of the node
};

/// Moves the groups of this process while its thread waits for something else than a Work: for as long as it
/// lives, a thread looks a thousand times a second; there is none where nothing is in
/// flight when it is made.
class MoveMeanwhile {
 public:
  MoveMeanwhile();
  ~MoveMeanwhile();
  MoveMeanwhile(const MoveMeanwhile&) = delete;
  MoveMeanwhile& operator=(const MoveMeanwhile&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace troupe::collectives
