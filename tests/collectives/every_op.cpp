#include "tests/collectives/every_op.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "collectives/leaf_tree.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives::testing {
namespace {

constexpr std::size_t kGuard = 64;  ///< bytes around private buffers that nobody may write
constexpr std::byte kGuardByte{0x5a};

bool sums(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

template <class F>
auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kInt32:
      return f(std::int32_t{});
    case DType::kInt64:
      return f(std::int64_t{});
    default:
      throw std::runtime_error("this test does not reduce that dtype");
  }
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(a), y = static_cast<U>(b);
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

/// One element of all ranks on the tree of ranks.
template <class T>
T on_tree(ReduceOp op, const std::vector<T>& values, LeafInterval node) {
  if (node.size() == 1) return values[static_cast<std::size_t>(node.begin)];
  const int middle = node.begin + split_point(node.size());
  return combine(op, on_tree(op, values, {node.begin, middle}), on_tree(op, values, {middle, node.end}));
}

Bytes reduced(const OpSpec& spec, const std::vector<Bytes>& inputs) {
  return with_type(spec.dtype, [&]<class T>(T) {
    Bytes out(inputs[0].size());
    std::vector<T> values(inputs.size());
    for (std::size_t at = 0; at < out.size(); at += sizeof(T)) {
      for (std::size_t r = 0; r < inputs.size(); ++r)
        std::memcpy(&values[r], inputs[r].data() + at, sizeof(T));
      T all = on_tree(spec.op, values, {0, static_cast<int>(inputs.size())});
      if (spec.op == ReduceOp::kAvg) all = all / static_cast<T>(inputs.size());
      std::memcpy(out.data() + at, &all, sizeof(T));
    }
    return out;
  });
}

Buffer buffer(const OpSpec& spec, std::byte* data, std::size_t count) {
  // What a rank does not have is not looked at: not even this.
  if (count == 0 && data == nullptr)
    return {reinterpret_cast<void*>(1), ~std::size_t{0}, DType::kBool, {}, nullptr};
  return {data, count, spec.dtype, {}, nullptr};
}

}  // namespace

std::string to_string(const OpSpec& spec) {
  return to_string(
      Op{.kind = spec.kind, .dtype = spec.dtype, .how = spec.op, .peer = spec.root, .count = spec.count});
}

std::size_t input_elements(const OpSpec& spec, int rank, int size) {
  const auto n = static_cast<std::size_t>(size);
  switch (spec.kind) {
    case OpKind::kBarrier:
      return 0;
    case OpKind::kScatter:
      return rank == spec.root ? n * spec.count : 0;
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return n * spec.count;
    default:
      return spec.count;
  }
}

std::size_t output_elements(const OpSpec& spec, int rank, int size) {
  const auto n = static_cast<std::size_t>(size);
  switch (spec.kind) {
    case OpKind::kBarrier:
      return 0;
    case OpKind::kGather:
      return rank == spec.root ? n * spec.count : 0;
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return n * spec.count;
    default:
      return spec.count;
  }
}

bool one_buffer(const OpSpec& spec) {
  return spec.kind == OpKind::kAllReduce || spec.kind == OpKind::kReduce || spec.kind == OpKind::kBroadcast;
}

Bytes input_of(const OpSpec& spec, int rank, int size) {
  SeededRandom random(mix(spec.seed, static_cast<std::uint64_t>(rank)));
  Bytes bytes(input_elements(spec, rank, size) * element_size(spec.dtype));
  if (!sums(spec.kind)) {
    random.fill(bytes);
    return bytes;
  }
  // Values that neither overflow nor hide a wrong order of additions.
  with_type(spec.dtype, [&]<class T>(T) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      const std::uint64_t bits = random.next();
      const double value = static_cast<double>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-32 *
                           static_cast<double>(1U << (bits & 7));
      const T stored = static_cast<T>(std::is_integral_v<T> ? value * 1000 : value);
      std::memcpy(bytes.data() + at, &stored, sizeof(T));
    }
    return 0;
  });
  return bytes;
}

std::optional<Bytes> output_of(const OpSpec& spec, int rank, int size) {
  if (output_elements(spec, rank, size) == 0 && spec.count != 0) return std::nullopt;
  if (spec.kind == OpKind::kBarrier || (spec.kind == OpKind::kReduce && rank != spec.root))
    return std::nullopt;
  const std::size_t part = spec.count * element_size(spec.dtype);
  const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * part);
  const auto end = begin + static_cast<std::ptrdiff_t>(part);
  if (spec.kind == OpKind::kBroadcast) return input_of(spec, spec.root, size);
  if (spec.kind == OpKind::kScatter) {
    const Bytes all = input_of(spec, spec.root, size);
    return Bytes(all.begin() + begin, all.begin() + end);
  }
  std::vector<Bytes> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input_of(spec, r, size));
  if (sums(spec.kind)) {
    const Bytes all = reduced(spec, inputs);
    return spec.kind == OpKind::kReduceScatter ? Bytes(all.begin() + begin, all.begin() + end) : all;
  }
  Bytes out;
  for (const Bytes& input : inputs) {
    const bool own_part = spec.kind == OpKind::kAllToAll;
    out.insert(out.end(), input.begin() + (own_part ? begin : 0),
               own_part ? input.begin() + end : input.end());
  }
  return out;
}

std::shared_ptr<Work> call(ProcessGroup& group, const OpSpec& spec, std::byte* input, std::byte* output) {
  const Buffer in = buffer(spec, input, input_elements(spec, group.rank(), group.size()));
  const Buffer out = buffer(spec, output, output_elements(spec, group.rank(), group.size()));
  switch (spec.kind) {
    case OpKind::kAllReduce:
      return group.all_reduce(in, spec.op);
    case OpKind::kReduce:
      return group.reduce(in, spec.op, spec.root);
    case OpKind::kBroadcast:
      return group.broadcast(in, spec.root);
    case OpKind::kGather:
      return group.gather(in, out, spec.root);
    case OpKind::kScatter:
      return group.scatter(in, out, spec.root);
    case OpKind::kAllGather:
      return group.all_gather(in, out);
    case OpKind::kReduceScatter:
      return group.reduce_scatter(in, out, spec.op);
    case OpKind::kAllToAll:
      return group.all_to_all(in, out);
    default:
      return group.barrier();
  }
}

std::byte* Running::memory(std::size_t bytes, bool groups, std::span<std::byte>& arena) {
  const std::size_t padded = (bytes + 2 * kGuard + 63) / 64 * 64;
  std::byte* at = nullptr;
  if (groups && padded <= arena.size()) {
    at = arena.data();
    arena = arena.subspan(padded);
  } else {
    at = own_.emplace_back(std::make_unique<std::byte[]>(padded)).get();
  }
  std::fill(at, at + padded, kGuardByte);
  return at + kGuard;
}

Running::Running(ProcessGroup& group, const OpSpec& spec, Where where, std::span<std::byte>& arena)
    : group_(group), spec_(spec) {
  const int rank = group.rank(), size = group.size();
  const std::size_t element = element_size(spec.dtype);
  const bool has_input =
      spec.kind != OpKind::kBarrier && (spec.kind != OpKind::kScatter || rank == spec.root);
  const bool has_output =
      spec.kind != OpKind::kBarrier && (spec.kind != OpKind::kGather || rank == spec.root);
  input_bytes_ = input_elements(spec, rank, size) * element;
  output_bytes_ = output_elements(spec, rank, size) * element;
  const bool groups = where == Where::kGroups;
  if (has_input) input_ = memory(input_bytes_, groups, arena);
  if (one_buffer(spec)) {
    output_ = input_;
  } else if (has_output && has_input && where == Where::kInPlace && input_bytes_ != output_bytes_) {
    overlaps_ = true;
    const std::size_t at = static_cast<std::size_t>(rank) * spec.count * element;
    if (output_bytes_ > input_bytes_) {
      output_ = memory(output_bytes_, group.rank() % 2 == 0, arena);
      input_ = output_ + at;
    } else {
      output_ = input_ + at;
    }
  } else if (has_output) {
    output_ = memory(output_bytes_, groups, arena);
  }
  const Bytes input = input_of(spec, rank, size);
  if (!input.empty()) std::memcpy(input_, input.data(), input.size());
}

void Running::check() const {
  const int rank = group_.rank(), size = group_.size();
  const auto wrong = [&](const char* what) {
    throw std::runtime_error("rank " + std::to_string(rank) + ": " + to_string(spec_) + ": " + what);
  };
  const Bytes input = input_of(spec_, rank, size);
  const auto wanted = output_of(spec_, rank, size);
  if (wanted && !wanted->empty() && std::memcmp(output_, wanted->data(), wanted->size()) != 0)
    wrong("wrong output");
  const bool keeps_input = !overlaps_ && (!one_buffer(spec_) || !wanted);
  if (keeps_input && !input.empty() && std::memcmp(input_, input.data(), input.size()) != 0)
    wrong("its input was changed");
  const auto guarded = [&](const std::byte* at, std::size_t bytes) {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(at - kGuard, at, is_guard) && std::all_of(at + bytes, at + bytes + kGuard, is_guard);
  };
  const bool inside = overlaps_ && output_bytes_ > input_bytes_;
  if (input_ != nullptr && !inside && !guarded(input_, input_bytes_)) wrong("wrote around its input");
  const bool output_alone = !overlaps_ || inside;
  if (output_ != nullptr && output_alone && !guarded(output_, output_bytes_))
    wrong("wrote around its output");
}

}  // namespace troupe::collectives::testing
