/// The parameters of a job that are gathered together, in one flat tensor that is cut into as many shards as
/// the job has leaves: a trainer keeps those of its leaves. The parameters are views of the flat tensor's
/// storage, which has memory while the unit is whole and none else.
///
///   flat, [leaves x shard]: | a.weight .... | a.bias .. | b.weight ...... | zeros |
///   shards:                 | leaf 0        | leaf 1        | leaf 2      | leaf 3 |
///
/// A parameter begins at a multiple of 16 elements, and a shard has a multiple of 16. The layout depends on
/// the job alone. A member whose elements overlap or leave gaps is stored row-major. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/ddp/named_tensor.hpp"
#include "collectives/leaf_tree.hpp"

namespace troupe::train {

class ShardedUnit {
 public:
  /// REQUIRES: parameters of one dtype, on one device.
  ShardedUnit(std::string name, std::vector<NamedTensor> members, int shards);

  const std::string& name() const { return name_; }
  const std::vector<NamedTensor>& members() const { return members_; }
  const std::vector<std::int64_t>& sizes(std::size_t member) const { return geometry_[member].sizes; }
  const std::vector<std::int64_t>& strides(std::size_t member) const { return geometry_[member].strides; }
  /// The name of the member that begins at element `offset` of the flat tensor, or before it.
  const std::string& member_at(std::int64_t offset) const;
  /// Elements that a trainer with these leaves keeps.
  std::size_t elements(collectives::LeafInterval leaves) const {
    return static_cast<std::size_t>(leaves.size() * shard_elements_);
  }
  /// Which of a member's elements those are, in the order of its memory.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t size = 0;
  };
  Piece piece(std::size_t member, collectives::LeafInterval leaves) const;

  /// Keeps the shards of `leaves` from now on: of what the members are, or zeros where they were cut before.
  void cut(collectives::LeafInterval leaves);
  bool is_cut() const { return flat_.defined(); }
  /// Members have memory of their own again, with no values.
  void mend();
  /// Members are views of the flat tensor.
  void show_whole();
  /// Members are what is kept of them, in one dimension, with the gradients of it.
  void show_pieces();

  bool is_whole() const { return whole_; }
  /// Memory for all of it.
  torch::Tensor memory() const;
  /// It is whole, in that memory, of which the caller keeps no other tensor.
  void take(const torch::Tensor& memory);
  /// Of the flat tensor: that is a value that the shards have.
  void free();

  /// Some tensor of the storage.
  const torch::Tensor& flat() const { return flat_; }
  torch::Tensor& shard() { return shard_; }
  torch::Tensor& gradient() { return gradient_; }  ///< of the shard; undefined: none
  /// What is kept of a member, by the shard or what is laid out like it.
  torch::Tensor kept(const torch::Tensor& of, std::size_t member) const;
  /// A member's part of a flat tensor, shaped as it is.
  torch::Tensor part(const torch::Tensor& flat, std::size_t member) const;
  /// A tensor of one dimension with the member's elements in their order, shaped as the member is.
  torch::Tensor shaped(const torch::Tensor& elements, std::size_t member) const;
  /// A flat tensor of zeros.
  torch::Tensor zeros() const;

 private:
  /// What a member is when it is whole.
  struct Geometry {
    std::int64_t offset = 0;
    std::int64_t elements = 0;
    std::vector<std::int64_t> sizes, strides;
  };

  std::string name_;
  std::vector<NamedTensor> members_;
  std::vector<Geometry> geometry_;  ///< by member
  int shards_ = 1;
  std::int64_t shard_elements_ = 0;
  collectives::LeafInterval leaves_;
  torch::Tensor flat_;                ///< undefined: not cut
  std::vector<torch::Tensor> views_;  ///< members of it, made while it had memory: torch makes none without
  torch::Tensor shard_;
  torch::Tensor gradient_;
  bool whole_ = false;  ///< the storage has memory
};

}  // namespace troupe::train
