/// What is measured: the operations, their buffers, the values put into them and the values that must come
/// out. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

enum class Op : std::uint32_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kAllToAll };

constexpr const char* op_name(Op op) {
  constexpr const char* kNames[] = {"all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"};
  return kNames[static_cast<std::size_t>(op)];
}

/// An operation on float32. `count` is of a rank's larger buffer and a multiple of `ranks`; reductions are
/// sums, and the root is rank 0.
struct Shape {
  Op op = Op::kAllReduce;
  int ranks = 1;
  std::size_t count = 0;

  std::size_t part() const { return count / static_cast<std::size_t>(ranks); }
  std::size_t input_count() const { return op == Op::kAllGather ? part() : count; }
  std::size_t output_count() const { return op == Op::kReduceScatter ? part() : count; }
  bool in_place() const { return op == Op::kAllReduce || op == Op::kBroadcast; }
};

/// Element `i` of the input of `rank`: a whole number, so that every order of addition gives the same.
inline float input(int rank, std::size_t i) {
  return static_cast<float>((i & 63) + static_cast<std::size_t>(rank) * 64);
}

inline void fill(const Shape& shape, float* values, int rank) {
  for (std::size_t i = 0; i < shape.input_count(); ++i) values[i] = input(rank, i);
}

/// Element `i` of the output of `rank`.
inline float output(const Shape& shape, int rank, std::size_t i) {
  const std::size_t mine = shape.part() * static_cast<std::size_t>(rank);
  const auto sum = [&](std::size_t at) {
    float all = 0;
    for (int r = 0; r < shape.ranks; ++r) all += input(r, at);
    return all;
  };
  switch (shape.op) {
    case Op::kAllReduce:
      return sum(i);
    case Op::kBroadcast:
      return input(0, i);
    case Op::kReduceScatter:
      return sum(mine + i);
    case Op::kAllGather:
      return input(static_cast<int>(i / shape.part()), i % shape.part());
    case Op::kAllToAll:
      return input(static_cast<int>(i / shape.part()), mine + i % shape.part());
  }
  return 0;
}

/// Looks at the first element, the last and about a hundred between.
inline bool is_right(const Shape& shape, const float* values, int rank) {
  const std::size_t count = shape.output_count();
  for (std::size_t i = 0; i < count; i += 1 + count / 97) {
    if (values[i] != output(shape, rank, i)) return false;
  }
  return count == 0 || values[count - 1] == output(shape, rank, count - 1);
}

}  // namespace bench
