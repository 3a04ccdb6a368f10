/// The native group's arithmetic: what it computes, against a scalar walk of the leaf tree.

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>

#include "collectives/native/kernels.hpp"
#include "collectives/native/leaf_sums.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

using Bytes = std::vector<std::byte>;

/// One element of any dtype as the reference computes with it: doubles hold f32 sums of two terms exactly
/// before they are rounded, so the reference rounds where the group has to.
std::uint16_t to_bf16(float f) {
  if (std::isnan(f)) return 0x7fc0;
  auto bits = std::bit_cast<std::uint32_t>(f);
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<std::uint16_t>(bits >> 16);
}
float from_bf16(std::uint16_t h) {
  return std::bit_cast<float>(std::uint32_t{h} << 16);
}

/// f16 by the book: the value of the bits, and the nearest half with ties to even.
double from_f16(std::uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}
std::uint16_t to_f16(double value) {
  if (std::isnan(value)) return 0x7e00;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  const int exponent = magnitude == 0 ? -14 : std::max(-14, std::ilogb(magnitude));
  const double unit = std::ldexp(1.0, exponent - 10);
  const double rounded = std::nearbyint(magnitude / unit) * unit;  // ties to even, the default rounding mode
  if (rounded < std::ldexp(1.0, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(rounded, 24));
  const int e = std::ilogb(rounded);
  const auto bits =
      static_cast<std::uint16_t>((e + 14) * 1024 + static_cast<int>(std::ldexp(rounded, 10 - e)));
  return sign | bits;
}

template <class T>
T apply(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

/// a op b on the bytes of one element.
void combine_one(DType dtype, ReduceOp op, std::byte* a, const std::byte* b) {
  const auto as = [&]<class T, class F>(T, F f) {
    T x, y;
    std::memcpy(&x, a, sizeof x);
    std::memcpy(&y, b, sizeof y);
    const T z = f(x, y);
    std::memcpy(a, &z, sizeof z);
  };
  switch (dtype) {
    case DType::kFloat32:
      return as(float{}, [&](float x, float y) { return apply(op, x, y); });
    case DType::kFloat64:
      return as(double{}, [&](double x, double y) { return apply(op, x, y); });
    case DType::kInt32:
      return as(std::uint32_t{}, [&](std::uint32_t x, std::uint32_t y) {
        const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
        return ordered ? static_cast<std::uint32_t>(
                             apply(op, static_cast<std::int32_t>(x), static_cast<std::int32_t>(y)))
                       : apply(op, x, y);
      });
    case DType::kInt64:
      return as(std::uint64_t{}, [&](std::uint64_t x, std::uint64_t y) {
        const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
        return ordered ? static_cast<std::uint64_t>(
                             apply(op, static_cast<std::int64_t>(x), static_cast<std::int64_t>(y)))
                       : apply(op, x, y);
      });
    case DType::kBFloat16:
      return as(std::uint16_t{}, [&](std::uint16_t x, std::uint16_t y) {
        return to_bf16(apply(op, from_bf16(x), from_bf16(y)));
      });
    default:
      return as(std::uint16_t{}, [&](std::uint16_t x, std::uint16_t y) {
        return to_f16(apply(op, static_cast<float>(from_f16(x)), static_cast<float>(from_f16(y))));
      });
  }
}

void divide_one(DType dtype, int by, std::byte* a) {
  const auto as = [&]<class T, class F>(T, F f) {
    T x;
    std::memcpy(&x, a, sizeof x);
    x = f(x);
    std::memcpy(a, &x, sizeof x);
  };
  if (dtype == DType::kFloat32) as(float{}, [&](float x) { return x / static_cast<float>(by); });
  if (dtype == DType::kFloat64) as(double{}, [&](double x) { return x / by; });
  if (dtype == DType::kBFloat16) {
    as(std::uint16_t{}, [&](std::uint16_t x) { return to_bf16(from_bf16(x) / static_cast<float>(by)); });
  }
  if (dtype == DType::kFloat16) {
    as(std::uint16_t{},
       [&](std::uint16_t x) { return to_f16(static_cast<float>(from_f16(x)) / static_cast<float>(by)); });
  }
}

/// Values that neither overflow nor hide a wrong order of additions.
Bytes random_values(DType dtype, std::size_t count, Random& random) {
  Bytes bytes(count * element_size(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const double value = (random.uniform() - 0.5) * std::ldexp(1.0, static_cast<int>(random.below(6)));
    std::byte* at = bytes.data() + i * element_size(dtype);
    const auto put = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    if (dtype == DType::kFloat32) put(static_cast<float>(value));
    if (dtype == DType::kFloat64) put(value);
    if (dtype == DType::kInt32) put(static_cast<std::int32_t>(value * 1000));
    if (dtype == DType::kInt64) put(static_cast<std::int64_t>(value * 1000));
    if (dtype == DType::kFloat16) put(to_f16(value));
    if (dtype == DType::kBFloat16) put(to_bf16(static_cast<float>(value)));
  }
  return bytes;
}

struct Reference {
  DType dtype;
  ReduceOp op;
  std::vector<Bytes> leaves;

  /// The value of a tree node, by the definition of the tree.
  Bytes node(LeafInterval interval) const {
    if (interval.size() == 1) return leaves[static_cast<std::size_t>(interval.begin)];
    const int middle = interval.begin + split_point(interval.size());
    Bytes left = node({interval.begin, middle});
    const Bytes right = node({middle, interval.end});
    const std::size_t element = element_size(dtype);
    for (std::size_t at = 0; at < left.size(); at += element) {
      combine_one(dtype, op, left.data() + at, right.data() + at);
    }
    return left;
  }
  Bytes result() const {
    Bytes all = node({0, static_cast<int>(leaves.size())});
    if (op == ReduceOp::kAvg) {
      for (std::size_t at = 0; at < all.size(); at += element_size(dtype)) {
        divide_one(dtype, static_cast<int>(leaves.size()), all.data() + at);
      }
    }
    return all;
  }
};

Reference reference_of(DType dtype, ReduceOp op, int leaves, std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  Reference reference{dtype, op, {}};
  for (int l = 0; l < leaves; ++l) reference.leaves.push_back(random_values(dtype, count, random));
  return reference;
}

/// Reduces on the group's tree and compares every byte.
void check_tree(ProcessGroup& group, const Reference& reference, const std::vector<LeafInterval>& dealt) {
  const std::size_t count = reference.leaves[0].size() / element_size(reference.dtype);
  TreeBuffer tree = group.allocate_tree(count, reference.dtype);
  const auto nodes = canonical_nodes(group.leaves(), dealt.back().end);
  if (nodes.size() != tree.partials.size()) throw std::runtime_error("wrong number of partials");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Bytes value = reference.node(nodes[i]);
    if (!value.empty()) std::memcpy(tree.partials[i], value.data(), value.size());
  }
  group.all_reduce_tree(tree, reference.op)->wait();
  const Bytes wanted = reference.result();
  if (!wanted.empty() && std::memcmp(tree.partials[0], wanted.data(), wanted.size()) != 0) {
    throw std::runtime_error("rank " + std::to_string(group.rank()) + " has other bits");
  }
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,
                             DType::kInt64,   DType::kFloat16, DType::kBFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax};

bool supported(DType dtype, ReduceOp op) {
  return op != ReduceOp::kAvg || (dtype != DType::kInt32 && dtype != DType::kInt64);
}

}  // namespace

TEST_CASE("every world size, leaf count, dtype and op gives the bits of the tree") {
  const std::uint64_t seed = 20260101;
  CAPTURE(seed);
  SeededRandom random(seed);
  for (int size = 1; size <= 6; ++size) {
    for (int leaves = size; leaves <= 9; ++leaves) {
      const auto dealt = deal_leaves(leaves, size);
      std::vector<Reference> references;
      for (DType dtype : kDTypes) {
        for (ReduceOp op : kOps) {
          if (!supported(dtype, op)) continue;
          const std::size_t count = random.below(4) == 0 ? random.below(5) : 1 + random.below(300);
          references.push_back(reference_of(dtype, op, leaves, count, random.next()));
        }
      }
      CAPTURE(size, leaves);
      run(size, {.leaves = dealt}, [&](ProcessGroup& group) {
        for (const auto& reference : references) check_tree(group, reference, dealt);
      });
    }
  }
}

TEST_CASE("ranks scattered over machines at random give the bits of the tree") {
  const std::uint64_t seed = 4711;
  SeededRandom random(seed);
  for (int i = 0; i < 60; ++i) {
    const int size = 2 + static_cast<int>(random.below(6));
    const int leaves = size + static_cast<int>(random.below(6));
    const auto dealt = deal_leaves(leaves, size);
    std::vector<std::vector<int>> nodes(1 + random.below(4));
    std::size_t machine = 0;
    for (int r = 0; r < size; ++r) {
      if (random.below(2) == 0) machine = random.below(nodes.size());  // else beside the rank before
      nodes[machine].push_back(r);
    }
    std::erase_if(nodes, [](const auto& ranks) { return ranks.empty(); });
    std::vector<Reference> references;
    for (int k = 0; k < 4; ++k) {
      const auto dtype = kDTypes[random.below(std::size(kDTypes))];
      auto op = kOps[random.below(std::size(kOps))];
      if (!supported(dtype, op)) op = ReduceOp::kSum;
      const std::size_t count = random.below(3) == 0 ? 150000 + random.below(250000) : random.below(9000);
      references.push_back(reference_of(dtype, op, leaves, count, random.next()));
    }
    CAPTURE(seed, i, size, leaves);
    run(size, {.leaves = dealt, .nodes = nodes, .data_bytes = 64 << 20}, [&](ProcessGroup& group) {
      for (const auto& reference : references) check_tree(group, reference, dealt);
    });
  }
}

TEST_CASE("a host adds up what its adjacent ranks have, as far as the tree allows") {
  const HostLayout layout({0, 0, 0, 1, 0, 1, 1});
  CHECK(layout.host_groups() == std::vector<LeafInterval>{{0, 3}, {3, 4}, {4, 5}, {5, 7}});
  CHECK(layout.ranks_with(4) == std::vector{0, 1, 2, 4});
  const LeafSums sums(deal_leaves(7, 7), layout, 1);
  CHECK(sums.of_rank == std::vector<std::size_t>(7, 1));
  CHECK(sums.of_group == std::vector<std::size_t>{2, 1, 1, 2});  // 0-1 and 2; 5 and 6 have no common node
  CHECK((sums.of_host == std::vector<std::size_t>{3, 3} && sums.apart == std::vector<std::size_t>{4, 3}));
  REQUIRE(sums.own_host.size() == 3);
  CHECK((sums.own_host[0].sources == 2 && sums.own_host[1].sources == 1 && sums.own_host[2].sources == 1));
}

TEST_CASE("ranks without a connection of their own take part") {
  std::vector<std::vector<int>> nodes(3);  // 2 x 4 connections, and 13 ranks on one host
  for (int rank = 0; rank < 16; ++rank) nodes[rank == 3 ? 1 : rank == 11 ? 2 : 0].push_back(rank);
  auto options = options_of(16, {.nodes = nodes, .data_bytes = 8 << 20});
  std::size_t without = 0;
  for (auto& o : options) {
    without += o.remote.empty() ? 1 : 0;
  }
  CHECK(without == 12);
  const auto reference = reference_of(DType::kFloat32, ReduceOp::kSum, 16, 50021, 7);
  for (const auto& what : run_threads(std::move(options), [&](ProcessGroup& group) {
         check_tree(group, reference, rank_leaves(16));
         std::vector<float> value(30000, 1);
         for (const std::size_t count : {std::size_t{1}, value.size()}) {
           const auto part = std::span(value).first(count);
           group.all_reduce(part)->wait();
           group.broadcast(part, 12)->wait();
         }
         if (value[0] != 256 || value[29999] != 16) throw std::runtime_error("other bits");
       })) {
    CHECK(what.empty());
  }
}

TEST_CASE("a slice that fills many blocks has the bits of the tree") {
  for (int size : {2, 3, 4}) {
    const auto dealt = deal_leaves(5, size);
    const auto reference = reference_of(DType::kFloat32, ReduceOp::kAvg, 5, 50021, 7);
    run(size, {.leaves = dealt, .data_bytes = 8 << 20},
        [&](ProcessGroup& group) { check_tree(group, reference, dealt); });
  }
}

TEST_CASE("shared memory, sockets and both together give the same bits") {
  const auto dealt = deal_leaves(7, 4);
  std::vector<Reference> references;
  for (DType dtype : kDTypes) references.push_back(reference_of(dtype, ReduceOp::kSum, 7, 30011, 3));
  const std::vector<std::vector<std::vector<int>>> layouts = {
      {{0, 1, 2, 3}}, {{0, 1}, {2, 3}}, {{0, 3}, {1, 2}}, {{0}, {1, 2, 3}}, {{0}, {1}, {2}, {3}}};
  for (const auto& nodes : layouts) {
    run(4, {.leaves = dealt, .nodes = nodes, .data_bytes = 8 << 20}, [&](ProcessGroup& group) {
      for (const auto& reference : references) check_tree(group, reference, dealt);
    });
  }
}

TEST_CASE("private buffers go through in chunks, buffers of the region in place, on one machine and on two") {
  const std::size_t count = 300017;  // five chunks of f32
  for (int size : {1, 2, 4}) {
    const auto reference = reference_of(DType::kFloat32, ReduceOp::kSum, size, count, 11);
    const Bytes wanted = reference.result();
    std::vector<std::vector<std::vector<int>>> layouts{{}};
    if (size == 2) layouts.push_back({{0}, {1}});
    if (size == 4) layouts.insert(layouts.end(), {{{0, 2}, {1, 3}}, {{0, 1}, {2, 3}}, {{0, 1, 2}, {3}}});
    for (const auto& nodes : layouts) {
      const Layout layout{.nodes = nodes, .data_bytes = 2 << 20};
      for (int in_place_ranks = 0; in_place_ranks <= size; ++in_place_ranks) {
        run(size, layout, [&](ProcessGroup& group) {
          Bytes own = reference.leaves[static_cast<std::size_t>(group.rank())];
          const TreeBuffer tree = group.allocate_tree(count, DType::kFloat32);
          std::byte* at = group.rank() < in_place_ranks ? tree.partials[0] : own.data();
          if (at != own.data()) std::memcpy(at, own.data(), own.size());
          group.all_reduce({.data = at, .count = count}, ReduceOp::kSum)->wait();
          if (std::memcmp(at, wanted.data(), wanted.size()) != 0) throw std::runtime_error("other bits");
          for (int root = 0; root < group.size(); ++root) {
            const Bytes& from = reference.leaves[static_cast<std::size_t>(root)];
            if (group.rank() == root) std::memcpy(at, from.data(), from.size());
            group.broadcast({.data = at, .count = count}, root)->wait();
            if (std::memcmp(at, from.data(), from.size()) != 0) throw std::runtime_error("wrong broadcast");
          }
        });
      }
    }
  }
}

TEST_CASE("operations launched ahead complete in any order of waiting") {
  for (const auto& nodes :
       {std::vector<std::vector<int>>{{0, 1, 2}}, std::vector<std::vector<int>>{{0}, {1, 2}}}) {
    run(3, {.nodes = nodes, .data_bytes = 4 << 20}, [](ProcessGroup& group) {
      constexpr std::size_t kCount = 5003;
      constexpr int kLaunches = 100;  // more than may be in flight
      std::vector<TreeBuffer> trees;
      std::vector<std::vector<float>> privates(kLaunches, std::vector<float>(70001, 1.0F));
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kLaunches; ++i) {
        trees.push_back(group.allocate_tree(kCount, DType::kFloat32));
        auto* values = reinterpret_cast<float*>(trees.back().partials[0]);
        for (std::size_t k = 0; k < kCount; ++k) values[k] = static_cast<float>(i + group.rank());
        works.push_back(group.all_reduce_tree(trees.back(), ReduceOp::kSum));
        auto& own = privates[static_cast<std::size_t>(i)];
        works.push_back(group.all_reduce({.data = own.data(), .count = own.size()}, ReduceOp::kSum));
        if (i % 10 == 0) works.push_back(group.barrier());
      }
      std::reverse(works.begin(), works.end());
      for (auto& work : works) work->wait();
      for (int i = 0; i < kLaunches; ++i) {
        const auto* values = reinterpret_cast<const float*>(trees[static_cast<std::size_t>(i)].partials[0]);
        for (std::size_t k = 0; k < kCount; ++k) {
          if (values[k] != static_cast<float>(3 * i + 3)) throw std::runtime_error("wrong tree sum");
        }
        for (float value : privates[static_cast<std::size_t>(i)]) {
          if (value != 3.0F) throw std::runtime_error("wrong sum");
        }
      }
    });
  }
}

TEST_CASE("conversions of half types round as the standard says, for every bit pattern") {
  const Kernel kernel = kernel_for(DType::kFloat16, ReduceOp::kSum);
  std::vector<std::uint16_t> all(1 << 16), zero(1 << 16, 0), out(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  kernel.combine(bytes(out), bytes(all), bytes(zero), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(from_f16(all[i]))) {
      REQUIRE(std::isnan(from_f16(out[i])));
    } else if (all[i] != 0x8000) {  // -0 + 0 is 0
      REQUIRE(out[i] == all[i]);
    }
  }
  // Sums that have to be rounded: to subnormals, at ties, and to infinity.
  SeededRandom random(5);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(random.next());
    zero[i] = static_cast<std::uint16_t>(random.next());
  }
  kernel.combine(bytes(out), bytes(all), bytes(zero), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double sum = from_f16(all[i]) + from_f16(zero[i]);
    if (std::isnan(sum)) {
      REQUIRE(std::isnan(from_f16(out[i])));
    } else {
      REQUIRE(out[i] == to_f16(static_cast<float>(sum)));
    }
  }
}

TEST_CASE("NaN wins a minimum and a maximum from either side") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    run(2, {}, [&](ProcessGroup& group) {
      float values[3] = {group.rank() == 0 ? nan : 1, group.rank() == 1 ? nan : 1, 2};
      group.all_reduce({.data = values, .count = 3}, op)->wait();
      if (!std::isnan(values[0]) || !std::isnan(values[1]) || values[2] != 2)
        throw std::runtime_error("NaN lost");
    });
  }
}

TEST_CASE("what does not reduce is refused before anybody else takes part") {
  const auto options = options_of(1);
  run(1, {}, [](ProcessGroup& group) {
    std::vector<std::byte> bytes(64);
    const auto refused = [&](DType dtype, ReduceOp op) {
      try {
        group.all_reduce({.data = bytes.data(), .count = 4, .dtype = dtype}, op);
      } catch (const BadInput& e) {
        return std::string(e.what()).find("cannot all_reduce") != std::string::npos;
      }
      return false;
    };
    if (!refused(DType::kBool, ReduceOp::kAvg) || !refused(DType::kFloat32, ReduceOp::kBxor) ||
        !refused(DType::kInt32, ReduceOp::kAvg)) {
      throw std::runtime_error("not refused");
    }
    group.barrier()->wait();  // and the group is still good
  });
}
