#include "tests/collectives/every_op.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/texts.hpp"
#include "tests/collectives/kernel_reference.hpp"

namespace troupe::collectives::testing {
namespace {

constexpr std::size_t kGuard = 64;  ///< bytes around private buffers that nobody may write
constexpr std::byte kGuardByte{0x5a};

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

bool is_move(OpKind kind) {
  return !reduces(kind);
}

/// Elements that `from` has for `to`: small, none and large ones, where they differ.
std::size_t part(const OpSpec& spec, int from, int to) {
  if (!has_counts(spec.kind)) return spec.count;
  const std::size_t mixed = index(from) * 3 + index(to) * 5;
  return mixed % 4 == 1 ? 0 : mixed % 7 * spec.count / 6 + mixed % 3;
}
/// The part of `rank` of what all ranks have alike.
std::size_t part(const OpSpec& spec, int rank) {
  return part(spec, rank, rank);
}

template <class F>
std::size_t sum_over(int ranks, F f) {
  std::size_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += f(r);
  return sum;
}
std::size_t begin_of(const OpSpec& spec, int rank) {
  return sum_over(rank, [&](int r) { return part(spec, r); });
}

std::size_t input_elements(const OpSpec& spec, int rank, int size) {
  switch (spec.kind) {
    case OpKind::kBarrier:
      return 0;
    case OpKind::kScatter:
      return rank == spec.root ? index(size) * spec.count : 0;
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterV:
      return begin_of(spec, size);
    case OpKind::kAllToAll:
    case OpKind::kAllToAllV:
      return sum_over(size, [&](int to) { return part(spec, rank, to); });
    default:
      return part(spec, rank);
  }
}

std::size_t output_elements(const OpSpec& spec, int rank, int size) {
  switch (spec.kind) {
    case OpKind::kBarrier:
      return 0;
    case OpKind::kGather:
      return rank == spec.root ? index(size) * spec.count : 0;
    case OpKind::kAllGather:
    case OpKind::kAllGatherV:
      return begin_of(spec, size);
    case OpKind::kAllToAll:
    case OpKind::kAllToAllV:
      return sum_over(size, [&](int from) { return part(spec, from, rank); });
    default:
      return part(spec, rank);
  }
}

/// What rank or leaf `who` has: any bits, or small whole numbers where the order of additions is not given.
Bytes values(const OpSpec& spec, int who, std::size_t count) {
  SeededRandom random(mix(spec.seed, static_cast<std::uint64_t>(who)));
  Bytes bytes(count * element_size(spec.dtype));
  if (is_move(spec.kind)) {
    random.fill(bytes);
    return bytes;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Bits small = 1 + random.below(3);
    const Bits whole = is_float(spec.dtype) ? encoded(spec.dtype, static_cast<double>(small)) : small;
    store(spec.dtype, bytes.data(), i,
          spec.dtype == DType::kBool ? small & 1
          : !spec.how.exact          ? whole
                                     : random_value(spec.dtype, random));
  }
  return bytes;
}

/// The value of a node of the tree, by its definition.
Bytes fold(const OpSpec& spec, const std::vector<Bytes>& leaves, LeafInterval node) {
  if (node.size() == 1) return leaves[index(node.begin)];
  const int middle = node.begin + split_point(node.size());
  Bytes left = fold(spec, leaves, {node.begin, middle});
  const Bytes right = fold(spec, leaves, {middle, node.end});
  for (std::size_t i = 0; i < left.size() / element_size(spec.dtype); ++i) {
    const Bits both = combined(spec.dtype, spec.how.op, load(spec.dtype, left.data(), i),
                               load(spec.dtype, right.data(), i));
    store(spec.dtype, left.data(), i, both);
  }
  return left;
}

std::vector<Bytes> all_values(const OpSpec& spec, int leaves, std::size_t count) {
  std::vector<Bytes> all;
  for (int l = 0; l < leaves; ++l) all.push_back(values(spec, l, count));
  return all;
}

template <class F>
void change_each(const OpSpec& spec, Bytes& bytes, F change) {
  for (std::size_t i = 0; i < bytes.size() / element_size(spec.dtype); ++i)
    store(spec.dtype, bytes.data(), i, change(load(spec.dtype, bytes.data(), i)));
}

Bytes reduced(const OpSpec& spec, int count, std::size_t elements) {
  std::vector<Bytes> leaves = all_values(spec, count, elements);
  if (spec.how.op == ReduceOp::kPremulSum) {
    for (Bytes& leaf : leaves)
      change_each(spec, leaf, [&](Bits x) { return scaled(spec.dtype, x, spec.how.factor); });
  }
  Bytes all = fold(spec, leaves, {0, count});
  if (spec.how.op == ReduceOp::kAvg)
    change_each(spec, all, [&](Bits x) { return divided(spec.dtype, x, count); });
  return all;
}

/// Computed by the first of the ranks that are threads; the others wait.
Bytes reduced_once(const OpSpec& spec, int leaves, std::size_t elements) {
  static std::mutex mutex;
  static std::map<std::string, Bytes> known;
  const std::string key = to_string(spec) + listed(std::array{spec.seed, std::uint64_t(leaves), elements});
  const std::lock_guard lock(mutex);
  if (known.size() > 16) known.clear();
  const auto [at, is_new] = known.try_emplace(key);
  if (is_new) at->second = reduced(spec, leaves, elements);
  return at->second;
}

Bytes slice(const Bytes& all, std::size_t begin, std::size_t end, std::size_t element) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin * element),
          all.begin() + static_cast<std::ptrdiff_t>(end * element)};
}

Buffer buffer(const OpSpec& spec, std::byte* data, std::size_t count, const Buffer& like, bool is_there) {
  // What a rank does not have is not looked at: not even this.
  if (!is_there) return {reinterpret_cast<void*>(1), ~std::size_t{0}, DType::kBool, {}, nullptr};
  return {data, count, spec.dtype, like.device, like.stream};
}

}  // namespace

std::string to_string(const OpSpec& spec) {
  return to_string(
      Op{.kind = spec.kind, .dtype = spec.dtype, .how = spec.how, .peer = spec.root, .count = spec.count});
}

bool one_buffer(const OpSpec& spec) {
  return spec.kind == OpKind::kAllReduce || spec.kind == OpKind::kReduce || spec.kind == OpKind::kBroadcast;
}

Bytes input_of(const OpSpec& spec, int rank, int size) {
  return values(spec, rank, input_elements(spec, rank, size));
}

std::optional<Bytes> output_of(const OpSpec& spec, int rank, int size) {
  const std::size_t element = element_size(spec.dtype);
  const bool is_root = rank == spec.root;
  const auto input = [&](int r) { return input_of(spec, r, size); };
  const std::size_t begin = begin_of(spec, rank), end = begin + part(spec, rank);
  Bytes out;
  switch (spec.kind) {
    case OpKind::kBarrier:
      return std::nullopt;
    case OpKind::kAllReduceTree:
      return reduced_once(spec, spec.leaves, spec.count);
    case OpKind::kBroadcast:
      return input(spec.root);
    case OpKind::kScatter:
      return slice(input(spec.root), begin, end, element);
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      if (spec.kind == OpKind::kReduce && !is_root) return std::nullopt;
      return reduced_once(spec, size, spec.count);
    case OpKind::kReduceScatter:
    case OpKind::kReduceScatterV:
      return slice(reduced_once(spec, size, begin_of(spec, size)), begin, end, element);
    case OpKind::kGather:
      if (!is_root) return std::nullopt;
      [[fallthrough]];
    default:
      for (int from = 0; from < size; ++from) {
        Bytes given = input(from);
        if (spec.kind == OpKind::kAllToAll || spec.kind == OpKind::kAllToAllV) {
          const std::size_t at = sum_over(rank, [&](int to) { return part(spec, from, to); });
          given = slice(given, at, at + part(spec, from, rank), element);
        }
        out.insert(out.end(), given.begin(), given.end());
      }
      return out;
  }
}

std::shared_ptr<Work> call(ProcessGroup& group, const OpSpec& spec, std::byte* input, std::byte* output,
                           const Buffer& like) {
  const int size = group.size();
  const bool is_root = group.rank() == spec.root;
  const Buffer in = buffer(spec, input, input_elements(spec, group.rank(), size), like,
                           is_root || spec.kind != OpKind::kScatter);
  const Buffer out = buffer(spec, output, output_elements(spec, group.rank(), size), like,
                            is_root || spec.kind != OpKind::kGather);
  std::vector<std::size_t> counts, gives, gets;
  for (int r = 0; r < size; ++r) {
    counts.push_back(part(spec, r));
    gives.push_back(part(spec, group.rank(), r));
    gets.push_back(part(spec, r, group.rank()));
  }
  switch (spec.kind) {
    case OpKind::kAllReduce:
      return group.all_reduce(in, spec.how);
    case OpKind::kReduce:
      return group.reduce(in, spec.how, spec.root);
    case OpKind::kBroadcast:
      return group.broadcast(in, spec.root);
    case OpKind::kGather:
      return group.gather(in, out, spec.root);
    case OpKind::kScatter:
      return group.scatter(in, out, spec.root);
    case OpKind::kAllGather:
      return group.all_gather(in, out);
    case OpKind::kReduceScatter:
      return group.reduce_scatter(in, out, spec.how);
    case OpKind::kAllToAll:
      return group.all_to_all(in, out);
    case OpKind::kAllGatherV:
      return group.all_gather(in, out, counts);
    case OpKind::kReduceScatterV:
      return group.reduce_scatter(in, out, counts, spec.how);
    case OpKind::kAllToAllV:
      return group.all_to_all(in, gives, out, gets);
    default:
      return group.barrier();
  }
}

std::vector<Bytes> partials_of(const OpSpec& spec, LeafInterval of) {
  const auto leaves = all_values(spec, spec.leaves, spec.count);
  std::vector<Bytes> partials;
  for (const LeafInterval node : canonical_nodes(of, spec.leaves))
    partials.push_back(fold(spec, leaves, node));
  return partials;
}

std::byte* Running::memory(std::size_t bytes, bool groups, std::span<std::byte>& arena) {
  const std::size_t padded = (bytes + 2 * kGuard + 63) / 64 * 64;
  if (groups && padded <= arena.size()) {
    std::byte* at = arena.data();
    arena = arena.subspan(padded);
    std::fill(at, at + padded, kGuardByte);
    return at + kGuard;
  }
  // Anywhere in a line where an element may be, and elsewhere on every rank.
  const std::size_t element = element_size(spec_.dtype), places = kGuard / element;
  const std::size_t shift = (spec_.seed * 5 + index(group_.rank()) * 7) % places * element;
  std::byte* at = own_.emplace_back(std::make_unique<std::byte[]>(padded + shift)).get() + shift;
  std::fill(at, at + padded, kGuardByte);
  return at + kGuard;
}

Running::Running(ProcessGroup& group, const OpSpec& spec, Where where, std::span<std::byte>& arena)
    : group_(group), spec_(spec) {
  if (spec.kind == OpKind::kAllReduceTree) {
    tree_ = group.allocate_tree(spec.count, spec.dtype);
    const auto partials = partials_of(spec, group.leaves());
    require(partials.size() == tree_.partials.size(), "wrong number of partials");
    for (std::size_t i = 0; i < partials.size() && spec.count != 0; ++i)
      std::memcpy(tree_.partials[i], partials[i].data(), partials[i].size());
    output_ = tree_.partials[0];
    return;
  }
  place(where, arena);
  const Bytes input = input_of(spec, group.rank(), group.size());
  if (!input.empty()) std::memcpy(input_, input.data(), input.size());
}

void Running::place(Where where, std::span<std::byte>& arena) {
  const int rank = group_.rank(), size = group_.size();
  const OpKind kind = spec_.kind;
  const std::size_t element = element_size(spec_.dtype);
  const bool has_input = kind != OpKind::kBarrier && (kind != OpKind::kScatter || rank == spec_.root);
  const bool has_output = kind != OpKind::kBarrier && (kind != OpKind::kGather || rank == spec_.root);
  const bool exchanges = kind == OpKind::kAllToAll || kind == OpKind::kAllToAllV;
  const bool groups = where == Where::kGroups;
  input_bytes_ = input_elements(spec_, rank, size) * element;
  output_bytes_ = output_elements(spec_, rank, size) * element;
  overlaps_ = has_output && has_input && !one_buffer(spec_) && !exchanges && where == Where::kInPlace &&
              input_bytes_ != output_bytes_;
  const std::size_t at = begin_of(spec_, rank) * element;
  if (overlaps_ && output_bytes_ > input_bytes_) {
    output_ = memory(output_bytes_, rank % 2 == 0, arena);
    input_ = output_ + at;
    return;
  }
  if (has_input) input_ = memory(input_bytes_, groups, arena);
  if (overlaps_) {
    output_ = input_ + at;
  } else if (has_output) {
    output_ = one_buffer(spec_) ? input_ : memory(output_bytes_, groups, arena);
  }
}

void Running::launch() {
  work_ = spec_.kind == OpKind::kAllReduceTree ? group_.all_reduce_tree(tree_, spec_.how)
                                               : call(group_, spec_, input_, output_);
}

void Running::check() const {
  const int rank = group_.rank(), size = group_.size();
  const auto good = [&](bool is, const char* what) {
    require(is, "rank " + std::to_string(rank) + ": " + to_string(spec_) + ": " + what);
  };
  const auto wanted = output_of(spec_, rank, size);
  good(!wanted || wanted->empty() || std::memcmp(output_, wanted->data(), wanted->size()) == 0,
       "wrong output");
  if (spec_.kind == OpKind::kAllReduceTree) return;
  const Bytes input = input_of(spec_, rank, size);
  const bool keeps_input = !overlaps_ && (!one_buffer(spec_) || !wanted);
  good(!keeps_input || input.empty() || std::memcmp(input_, input.data(), input.size()) == 0,
       "its input was changed");
  const auto guarded = [&](const std::byte* at, std::size_t bytes) {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(at - kGuard, at, is_guard) && std::all_of(at + bytes, at + bytes + kGuard, is_guard);
  };
  const bool inside = overlaps_ && output_bytes_ > input_bytes_;
  good(input_ == nullptr || inside || guarded(input_, input_bytes_), "wrote around its input");
  const bool output_alone = !overlaps_ || inside;
  good(output_ == nullptr || !output_alone || guarded(output_, output_bytes_), "wrote around its output");
}

namespace {

constexpr OpKind kUneven[] = {OpKind::kAllGatherV, OpKind::kReduceScatterV, OpKind::kAllToAllV};

Reduction reduction(int op, bool exact) {
  const auto what = static_cast<ReduceOp>(op);
  return what == ReduceOp::kPremulSum ? Reduction::premul_sum(3, exact) : Reduction(what, exact);
}

/// What `add` is given: every kind, and of what has a root one for each, or of many ranks for some.
template <class F>
void for_each_kind(int size, F add) {
  for (const OpKind kind : kCollectives) {
    for (int root = 0; root<(has_root(kind) ? size : 1); root += size> 12 ? 7 : 1) add(kind, root);
  }
  for (const OpKind kind : kUneven) add(kind, 0);
}

/// The dtypes and reductions that there are.
template <class F>
void for_each_reduction(F add) {
  for (std::size_t dtype = 0; dtype < kDTypeNames.size(); ++dtype) {
    const auto type = static_cast<DType>(dtype);
    for (int op = 0; op < static_cast<int>(kReduceOpNames.size()) && !is_complex(type); ++op) {
      if (kernel_for(type, static_cast<ReduceOp>(op)).combine != nullptr) add(type, reduction(op, true));
    }
  }
}

}  // namespace

std::vector<OpSpec> every_spec(int size, std::size_t most) {
  std::vector<OpSpec> specs;
  const auto add = [&](OpKind kind, DType dtype, Reduction how, std::size_t count, int root) {
    specs.push_back({kind, dtype, how, count, root, specs.size() + 1});
  };
  for_each_kind(size, [&](OpKind kind, int root) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, most}) {
      if (kind == OpKind::kBarrier) {
        add(kind, DType::kFloat32, {}, 0, 0);
      } else if (is_move(kind)) {
        for (const DType dtype : {DType::kComplex128, DType::kBFloat16, DType::kBool})
          add(kind, dtype, {}, count, root);
      } else if (count == most) {
        for_each_reduction([&](DType dtype, Reduction how) { add(kind, dtype, how, count, root); });
      } else {
        add(kind, DType::kInt16, {}, count, root);
      }
    }
  });
  return specs;
}

std::vector<OpSpec> any_order_specs(int size) {
  std::vector<OpSpec> specs;
  for_each_kind(size, [&](OpKind kind, int root) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt8, DType::kInt16, DType::kInt32,
                              DType::kInt64, DType::kUInt8, DType::kFloat16}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        if (is_move(kind) || kernel_for(dtype, op).combine == nullptr) continue;
        if (op == ReduceOp::kAvg && (size & (size - 1)) != 0) continue;  // others round
        specs.push_back({kind, dtype, Reduction(op, false), 1200, root, specs.size()});
      }
    }
  });
  return specs;
}

std::vector<OpSpec> specs_of(int size, std::size_t count) {
  std::vector<OpSpec> specs;
  for_each_kind(size, [&](OpKind kind, int root) {
    specs.push_back(
        {kind, DType::kFloat32, {}, kind == OpKind::kBarrier ? 0 : count, root, count + specs.size()});
  });
  return specs;
}

std::vector<OpSpec> tree_specs(int leaves, std::size_t most, std::uint64_t seed) {
  std::vector<OpSpec> specs;
  SeededRandom random(seed);
  for_each_reduction([&](DType dtype, Reduction how) {
    if (how.op == ReduceOp::kPremulSum) return;  // scales partial sums, which leaves alone do not give
    const std::size_t count = random.below(4) == 0 ? random.below(5) : 1 + random.below(most);
    specs.push_back({OpKind::kAllReduceTree, dtype, how, count, 0, random.next(), leaves});
  });
  return specs;
}

void run_specs(ProcessGroup& group, const std::vector<OpSpec>& specs, std::uint64_t seed,
               std::span<std::byte> arena) {
  SeededRandom random(mix(seed, 1000 + static_cast<std::uint64_t>(group.rank())));
  for (std::size_t at = 0; at < specs.size();) {
    std::span<std::byte> left = arena;
    const std::size_t batch = std::min<std::size_t>(specs.size() - at, 1 + random.below(6));
    std::vector<std::unique_ptr<Running>> running;
    for (std::size_t i = 0; i < batch; ++i) {
      const auto where = static_cast<Running::Where>(random.below(3));
      running.push_back(std::make_unique<Running>(group, specs[at + i], where, left));
      running.back()->launch();
    }
    std::vector<std::size_t> order(batch);
    for (std::size_t i = 0; i < batch; ++i) order[i] = i;
    for (std::size_t i = batch; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (const std::size_t i : order) {
      running[i]->work().wait();
      running[i]->check();
    }
    at += batch;
  }
  group.barrier()->wait();
}

}  // namespace troupe::collectives::testing
