/// ProcessGroup over NCCL: the operations. How a group comes about is in membership.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/check_buffers.hpp"
#include "collectives/nccl/call_check.hpp"
#include "collectives/nccl/exact.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "collectives/nccl/work.hpp"

namespace troupe::collectives::nccl {

class NcclGroup final : public ProcessGroup {
 public:
  /// One communicator a lane, which have joined; the first alone without messages. Options are checked.
  NcclGroup(NcclGroupOptions options, std::shared_ptr<Core> core,
            std::vector<std::shared_ptr<Communicator>> lanes);
  /// Waits for what is in flight, which has a deadline, and frees everything.
  ~NcclGroup() override;

  std::string_view backend() const override { return "nccl"; }
  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Generation generation() const override { return options_.generation; }
  LeafInterval leaves() const override { return options_.leaves[static_cast<std::size_t>(options_.rank)]; }

  TreeBuffer allocate_tree(std::size_t count, DType dtype) override;
  Buffer allocate(std::size_t count, DType dtype) override;

  std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how) override;
  std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how) override;
  std::shared_ptr<Work> reduce(const Buffer& buffer, Reduction how, int root) override;
  std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) override;
  std::shared_ptr<Work> gather(const Buffer& input, const Buffer& output, int root) override;
  std::shared_ptr<Work> scatter(const Buffer& input, const Buffer& output, int root) override;
  std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output) override;
  std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) override;
  std::shared_ptr<Work> all_to_all(const Buffer& input, const Buffer& output) override;
  std::shared_ptr<Work> barrier() override;
  std::shared_ptr<Work> send(const Buffer& buffer, int to, std::uint32_t tag) override;
  std::shared_ptr<Work> recv(const Buffer& buffer, int from, std::uint32_t tag) override;

  void abort(const std::string& reason) override { core_->fail(AbortKind::kRequested, reason); }
  std::string abort_reason() const override { return core_->abort_reason(); }

  // For the next generation (membership.cpp).
  Core& core() { return *core_; }
  const NcclGroupOptions& options() const { return options_; }
  /// Null for a lane that it lacks.
  Communicator* lane(std::size_t lane) { return lane < lanes_.size() ? lanes_[lane].get() : nullptr; }
  /// Issues what is noted and waits until nothing is in flight.
  void drain();

 private:
  struct Allocation {
    void* data = nullptr;
    void* handle = nullptr;  ///< of ncclCommRegister, if the library has it
  };

  collectives::Call called(const char* operation) const {
    return {operation, rank(), size(), DeviceKind::kCuda};
  }
  // check_buffers.hpp, and that a buffer is on this rank's device.
  void check_buffer(const char* operation, std::string_view which, const Buffer& buffer) const;
  std::size_t check_parts(const char* operation, Parts parts, const Buffer& input,
                          const Buffer& output) const;
  void check_device(const char* operation, const Buffer& buffer) const;
  std::byte* allocate_bytes(std::size_t bytes);
  void free_allocations();
  void end();
  void make_exact_path();

  template <class Enqueue>
  std::shared_ptr<Work> operate(Call call, std::vector<Stream> joined, Enqueue enqueue, bool on_host = false);
  std::shared_ptr<Work> message(const char* operation, const Buffer& buffer, int peer, std::uint32_t tag,
                                bool sends);
  void between_root(int root, void* parts, void* own, std::size_t bytes, bool to_root);
  /// On the collectives' stream: a rank's message to itself.
  void copy(void* to, const void* from, std::size_t bytes);
  /// NCCL's own reduction: with its operator for `how`, calls(op).
  template <class Calls>
  void reduce_fast(DType dtype, const Reduction& how, Calls calls);

  NcclGroupOptions options_;
  std::shared_ptr<Core> core_;
  std::vector<std::shared_ptr<Communicator>> lanes_;
  std::shared_ptr<Communicator> collectives_;  ///< the first of them
  std::shared_ptr<Messages> messages_;
  std::unique_ptr<ExactPath> exact_;
  std::unique_ptr<CallCheck> call_check_;
  std::unique_ptr<Scratch> barrier_byte_;
  std::vector<Allocation> allocations_;
  std::vector<TreeBuffer> trees_;
  std::uint64_t sequence_ = 0;
};

/// Throws BadInput: the group cannot do `operation`.
[[noreturn]] void refuse(const char* operation, std::string why, std::string todo);

/// Whether NCCL itself reduces `dtype` like this, given that the order does not matter.
bool nccl_reduces(DType dtype, ReduceOp op);

}  // namespace troupe::collectives::nccl
