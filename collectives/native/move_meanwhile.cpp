#include "collectives/native/move_meanwhile.hpp"

#include "collectives/native/backoff.hpp"
#include "collectives/native/process_engines.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {

namespace {

constexpr int kMostMoves = 64;  ///< before it looks whether it is over

}  // namespace

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
