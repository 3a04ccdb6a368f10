/// ProcessGroup over NCCL: the operations. How a group comes about is in membership.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/call_check.hpp"
#include "collectives/nccl/exact.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "collectives/nccl/work.hpp"

namespace troupe::collectives::nccl {

class NcclGroup final : public ProcessGroup {
 public:
  /// One communicator an order, which have joined; the first alone without messages. Options are checked.
  NcclGroup(NcclGroupOptions options, std::shared_ptr<Core> core, Communicators communicators);
  /// Waits for what is in flight, which has a deadline, and frees everything.
  ~NcclGroup() override;

  ProcessGroup& host_group() override { return *options_.host; }
  std::string abort_reason() const override { return core_->abort_reason(); }
  void await_quiet() override;

  // For the next generation (membership.cpp).
  Core& core() { return *core_; }
  const Communicators& communicators() const { return communicators_; }

 private:
  struct Allocation {
    void* data = nullptr;
    void* handle = nullptr;  ///< of ncclCommRegister, if the library has it
    bool is_tree = false;
  };

  void check_has(const Op& op) const override;
  std::shared_ptr<Work> launch(std::span<const Op> operations) override;
  void stop(const std::string& reason) override { core_->fail(AbortKind::kRequested, reason); }
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree) override;
  Released release(std::byte* at) override;

  void free_allocation(const Allocation& allocation);
  /// Issues what is noted and waits until nothing is in flight.
  void drain();
  void synchronize();
  void end();

  std::shared_ptr<Work> message(const Op& op);
  std::shared_ptr<Work> collective(std::span<const Op> ops);
  void reduce_exactly(const Op& op);
  void enqueue(std::span<const Op> ops);
  /// NCCL's calls of one operation, `by` being its operator for a reduction.
  void call_nccl(const Op& op, NcclOp by, Comm comm);
  /// On the collectives' stream: what a rank gives itself.
  void copy_own_part(const Op& op);

  NcclGroupOptions options_;
  std::shared_ptr<Core> core_;
  Communicators communicators_;
  std::shared_ptr<Communicator> collectives_;  ///< the first of them
  std::shared_ptr<Messages> messages_;
  std::unique_ptr<ExactPath> exact_;
  std::unique_ptr<CallCheck> call_check_;
  std::unique_ptr<Scratch> barrier_memory_;
  std::byte* barrier_byte_ = nullptr;
  std::vector<Allocation> allocations_;
};

}  // namespace troupe::collectives::nccl
