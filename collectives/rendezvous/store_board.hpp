/// An abort board between machines: a key of the job's store.
#pragma once

#include <memory>

#include "collectives/nccl/abort_board.hpp"
#include "collectives/rendezvous/store/store.hpp"

namespace troupe::collectives {

/// The store tells each rank when the key is set. Once the store is gone nothing is heard any more: whoever
/// watches its server aborts the group, if that died.
class StoreBoard final : public AbortBoard {
 public:
  /// `keys`: of one group and generation. Throws Unavailable where the store is gone.
  explicit StoreBoard(std::shared_ptr<Store> keys);
  void post(AbortKind kind, const std::string& reason) override;
  std::optional<AbortReason> read() override;

 private:
  const std::shared_ptr<Store> keys_;
  const std::unique_ptr<Watch> watch_;
};

}  // namespace troupe::collectives
