/// An abort board between machines: a key of the job's store.
#pragma once

#include <memory>
#include <mutex>

#include "collectives/nccl/abort_board.hpp"
#include "collectives/rendezvous/store.hpp"

namespace troupe::collectives {

/// A rank asks the store every 10 ms at most, while an operation is in flight. Once the store is gone nothing
/// is heard any more: whoever watches its server aborts the group, if that died.
class StoreBoard final : public AbortBoard {
 public:
  /// `keys`: of one group and generation.
  explicit StoreBoard(std::shared_ptr<Store> keys) : keys_(std::move(keys)) {}
  void post(AbortKind kind, const std::string& reason) override;
  std::optional<AbortReason> read() override;

 private:
  const std::shared_ptr<Store> keys_;
  const MonotonicClock clock_;
  std::mutex mutex_;
  std::optional<AbortReason> first_;
  Instant asked_{};
};

}  // namespace troupe::collectives
