/// The parameters of one unit of FullyShardedDataParallel in one flat tensor, of which every rank keeps a
/// shard. The module's parameters are views of the flat tensor's storage for good; the storage is there while
/// the unit is whole, and has 0 bytes else.
///
///   flat, [ranks x shard]:  | a.weight .... | a.bias .. | b.weight ...... | zeros |
///   shards:                 | rank 0            | rank 1            | rank 2      |
///
/// A parameter begins at a multiple of 16 elements, and a shard has a multiple of 16. Operations of the group
/// go by the device's default stream, behind what computes and before what computes next. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/named_tensor.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

class FlatUnit {
 public:
  /// Collective: takes rank 0's values. What the members lay in is free afterwards. REQUIRES: dense
  /// parameters of one dtype, where the group's buffers are.
  FlatUnit(std::string name, std::vector<NamedTensor> members,
           std::shared_ptr<collectives::ProcessGroup> group, const DeviceStreams& streams);

  const std::string& name() const { return name_; }
  const std::vector<NamedTensor>& members() const { return members_; }
  /// This rank's part: a leaf that requires a gradient, of one dimension.
  torch::Tensor& shard() { return shard_; }
  const torch::Tensor& shard() const { return shard_; }
  /// The name of the member that begins at element `offset` of the flat tensor, or before it.
  const std::string& member_at(std::int64_t offset) const;
  /// What is whole, in bytes.
  std::size_t whole_bytes() const;
  /// Some tensor of the storage.
  const torch::Tensor& flat() const { return flat_; }
  /// Names, dtype and shapes, a line a parameter.
  std::string layout() const;

  /// Every rank does the same of these in the same order.
  bool is_whole() const { return whole_ && !gathering_; }
  bool has_memory() const { return whole_; }
  void begin_gather();
  void gather();
  /// Waits for a gather that is under way. Does nothing where it is free.
  void free();

  /// `gradient` of a member: added to what is there of backwards before (no_sync).
  void take(std::size_t member, const torch::Tensor& gradient);
  /// Starts on the mean over the ranks of all that was taken; what was not counts as zeros.
  void begin_reduce();
  /// Waits, and frees the whole gradients.
  void end_reduce();
  /// Puts the mean into the shard's `.grad`, or adds it.
  void set_gradient();
  /// Of an aborted group: frees all, what was taken and not reduced, too. Unless the group `is_quiet`, what
  /// an operation under way is at stays for good.
  void abandon(bool is_quiet);

  /// Collective: all of `mine`, a shard's like, on `root`; undefined elsewhere. This and scattered() wait on
  /// the host: what throws later is of another operation.
  torch::Tensor gathered(const torch::Tensor& mine, int root) const;
  /// Collective: this rank's part of `root`'s `flat`, which is looked at there alone.
  torch::Tensor scattered(const torch::Tensor& flat, int root, torch::ScalarType dtype) const;
  /// The members' parts of a flat tensor, shaped as they are.
  torch::Tensor part(const torch::Tensor& flat, std::size_t member) const;
  /// A flat tensor of zeros.
  torch::Tensor zeros(torch::ScalarType dtype) const;

 private:
  /// Whose wait throws is still under way.
  void wait(std::shared_ptr<collectives::Work>& work) const;
  /// Runs an operation on tensors that nobody else has.
  void run(const std::vector<torch::Tensor>& on,
           const std::function<std::shared_ptr<collectives::Work>()>& launch) const;
  c10::DataPtr release_memory();
  /// And what is between them.
  void fill_what_was_not_taken();

  std::string name_;
  std::vector<NamedTensor> members_;
  std::vector<std::int64_t> offsets_;  ///< by member
  std::shared_ptr<collectives::ProcessGroup> group_;
  DeviceStreams streams_;
  std::int64_t shard_elements_ = 0;
  torch::Tensor shard_;
  torch::Tensor flat_;
  bool whole_ = false;  ///< the storage has memory
  std::shared_ptr<collectives::Work> gathering_;

  torch::Tensor gradients_;  ///< flat; undefined: none were taken
  std::vector<bool> taken_;  ///< by member: something was since the last reduction
  torch::Tensor reduced_;    ///< the shard's mean
  std::shared_ptr<collectives::Work> reducing_;
};

}  // namespace troupe::train
