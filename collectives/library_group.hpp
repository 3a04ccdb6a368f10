/// What the backends on other people's libraries share: checks, memory, and one struct for all operations.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/check_buffers.hpp"
#include "collectives/exact_path.hpp"
#include "collectives/op_kind.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {

/// An operation that was checked: what a backend is asked to do.
struct LibraryCall {
  OpKind kind = OpKind::kBarrier;
  std::byte* input = nullptr;   ///< of operations in place, the buffer; of a receive, null
  std::byte* output = nullptr;  ///< of operations in place, the buffer; null where this rank gets nothing
  std::size_t count = 0;        ///< elements of a rank's part: the smaller of input and output
  DType dtype = DType::kFloat32;
  Reduction how;
  int peer = 0;  ///< the root, or the other rank of a message
  std::uint32_t tag = 0;
  std::vector<std::byte*> partials;  ///< of kAllReduceTree
  std::uint64_t sequence = 0;        ///< counts the calls of this rank, from 1

  std::size_t bytes() const { return count * element_size(dtype); }
  /// Whether the smaller buffer is `rank`'s part of the larger one.
  bool in_place(int rank) const;
};

/// "all_reduce(sum, 8 x f32) number 7".
std::string to_string(const LibraryCall& call);

/// Why a group is no good any more: the first reason stays. Thread-safe.
class AbortFlag {
 public:
  /// Whether this was the first.
  bool set(const std::string& reason);
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  std::string reason() const;
  /// The CollectiveAborted that operations of an aborted group throw.
  CollectiveAborted error() const;
  /// Throws it, if the group was aborted.
  void check() const {
    if (is_set()) throw error();
  }

 private:
  std::atomic<bool> set_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

/// Sets `flag` and gives the Timeout that `call` throws on `rank`.
Timeout time_out(AbortFlag& flag, int rank, const LibraryCall& call, Duration timeout,
                 const std::string& detail);

/// A process group whose operations are a library's. Operations on nothing (count 0) complete at once.
///
/// Buffers lie in the CPU's memory. That ranks call the same is not compared, as the libraries have no room
/// for it: ranks that do not end in a timeout, or in the library's error.
class LibraryGroup : public ProcessGroup {
 public:
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Generation generation() const override { return generation_; }
  LeafInterval leaves() const override { return leaves_[static_cast<std::size_t>(rank_)]; }

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

  std::string abort_reason() const override { return flag_->reason(); }

 protected:
  /// `leaves`: every rank's, as checked_leaves gives them.
  LibraryGroup(int rank, int size, Generation generation, std::vector<LeafInterval> leaves);

  /// Starts `call`, which moves at least one byte or is a barrier; the group is not aborted.
  virtual std::shared_ptr<Work> launch(LibraryCall call) = 0;

  AbortFlag& flag() const { return *flag_; }
  std::shared_ptr<AbortFlag> shared_flag() const { return flag_; }
  /// `call` on the path that gives the native backend's bits. REQUIRES: it is a reduction.
  std::shared_ptr<ExactReduction> exact(const LibraryCall& call) const;

 private:
  struct Release {
    void operator()(std::byte* at) const;
  };

  std::shared_ptr<Work> start(LibraryCall call);
  Call call(std::string_view name) const { return {name, rank_, size_, DeviceKind::kCpu}; }
  void check_message(const char* name, std::string_view role, int other, const Buffer& buffer) const;

  int rank_;
  int size_;
  Generation generation_;
  std::vector<LeafInterval> leaves_;
  std::shared_ptr<AbortFlag> flag_ = std::make_shared<AbortFlag>();
  std::vector<std::unique_ptr<std::byte, Release>> memory_;
  std::uint64_t sequence_ = 0;
  int trees_ = 0;
};

/// Every rank's leaves: `leaves`, or one a rank where that is empty. Throws BadConfig, naming `backend`, for
/// a rank that does not exist and for leaves that are not a deal for `size` ranks.
std::vector<LeafInterval> checked_leaves(std::string_view backend, int rank, int size,
                                         std::vector<LeafInterval> leaves);

/// Work that was done when it was launched.
std::shared_ptr<Work> completed_work();

}  // namespace troupe::collectives
