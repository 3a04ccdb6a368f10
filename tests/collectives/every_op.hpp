/// Any operation of a process group as a value: its inputs, what it has to give, by definition, and how to
/// call it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::collectives::testing {

using Bytes = std::vector<std::byte>;

inline constexpr OpKind kCollectives[] = {OpKind::kAllReduce,     OpKind::kReduce,   OpKind::kBroadcast,
                                          OpKind::kGather,        OpKind::kScatter,  OpKind::kAllGather,
                                          OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kBarrier};

struct OpSpec {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kFloat32;  ///< of reductions: f32, f64, i32 or i64
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 0;  ///< of one part
  int root = 0;
  std::uint64_t seed = 0;
};
std::string to_string(const OpSpec& spec);

/// Elements of the buffers of `rank`; 0: none.
std::size_t input_elements(const OpSpec& spec, int rank, int size);
std::size_t output_elements(const OpSpec& spec, int rank, int size);
/// Whether input and output are one buffer.
bool one_buffer(const OpSpec& spec);

/// The input of `rank`: random, from the spec's seed.
Bytes input_of(const OpSpec& spec, int rank, int size);
/// The output of `rank` by the definition of the operation, one element at a time; none if it has no output.
std::optional<Bytes> output_of(const OpSpec& spec, int rank, int size);

/// Calls it. A rank without one of the buffers passes what nobody may look at.
std::shared_ptr<Work> call(ProcessGroup& group, const OpSpec& spec, std::byte* input, std::byte* output);

/// A call with its own buffers, made and checked.
class Running {
 public:
  /// Where buffers are: in memory of the caller, in the group's (`arena`, from which it takes), or the
  /// smaller buffer inside the larger one, where that is allowed.
  enum class Where { kPrivate, kGroups, kInPlace };
  Running(ProcessGroup& group, const OpSpec& spec, Where where, std::span<std::byte>& arena);
  void launch() { work_ = call(group_, spec_, input_, output_); }
  Work& work() { return *work_; }
  /// Throws unless the output has the right bits, and everything else still has what it had.
  void check() const;

 private:
  std::byte* memory(std::size_t bytes, bool groups, std::span<std::byte>& arena);

  ProcessGroup& group_;
  OpSpec spec_;
  std::vector<std::unique_ptr<std::byte[]>> own_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::size_t input_bytes_ = 0;
  std::size_t output_bytes_ = 0;
  bool overlaps_ = false;
  std::shared_ptr<Work> work_;
};

}  // namespace troupe::collectives::testing
