/// The arithmetic, in every instruction set that this machine has, against one element at a time by the book.

#include "collectives/native/kernels.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>

#include "collectives/native/tree_sum.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/kernel_reference.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32,    DType::kFloat16,   DType::kBFloat16,
                             DType::kInt8,    DType::kInt16,      DType::kInt32,     DType::kInt64,
                             DType::kUInt8,   DType::kBool,       DType::kUInt16,    DType::kUInt32,
                             DType::kUInt64,  DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                             ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                             ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> all;
  for (auto set : {InstructionSet::kBase, InstructionSet::kAvx2, InstructionSet::kAvx512})
    if (set <= best_instruction_set()) all.push_back(set);
  return all;
}

/// For every dtype, every operation that it has and every instruction set.
void for_each_kernel(const std::function<void(DType, ReduceOp, InstructionSet, const Kernel&)>& body) {
  for (DType dtype : kDTypes)
    for (ReduceOp op : kOps)
      for (InstructionSet set : sets())
        if (why_not(dtype, op).empty()) body(dtype, op, set, kernel_for(dtype, op, set));
}

std::string named(DType dtype, ReduceOp op, InstructionSet set) {
  return std::string(dtype_name(dtype)) + " " + std::string(reduce_op_name(op)) + " " +
         std::string(instruction_set_name(set));
}

/// Fails with the first element that differs, and what it was made from.
void compare(const std::string& what, DType dtype, const std::vector<std::byte>& got,
             const std::vector<Bits>& expected, const std::vector<std::vector<Bits>>& inputs) {
  const auto wanted = packed(dtype, expected);
  REQUIRE(got.size() == wanted.size());
  if (got == wanted) return;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (load(dtype, got.data(), i) == expected[i]) continue;
    std::ostringstream text;
    text << what << ", element " << i << std::hex << " of";
    for (const auto& input : inputs) text << " " << input[i];
    text << ": " << load(dtype, got.data(), i) << " and not " << expected[i];
    FAIL(text.str());
  }
}

/// Operands: all pairs of special values and random ones, or for a byte all pairs.
struct Pairs {
  std::vector<Bits> a, b;
};
Pairs pairs_of(DType dtype) {
  Pairs pairs;
  const auto add = [&](Bits a, Bits b) { pairs.a.push_back(a), pairs.b.push_back(b); };
  if (element_size(dtype) == 1) {
    for (Bits i = 0; i < 65536; ++i) add(i & 255, i >> 8);
    return pairs;
  }
  const auto special = special_values(dtype);
  for (Bits a : special)
    for (Bits b : special) add(a, b);
  SeededRandom random(11);
  for (int i = 0; i < 10'000; ++i) add(random_value(dtype, random), random_value(dtype, random));
  for (int i = 0; i < 1'000; ++i) add(special[random.below(special.size())], random_value(dtype, random));
  return pairs;
}

double factor_of(DType dtype) {
  const bool is_float = why_not(dtype, ReduceOp::kAvg).empty();
  return is_float ? -0.3 : !factor_fits(dtype, -77) ? 201 : -77;
}

}  // namespace

TEST_CASE("a combination has the bits of the book in every instruction set") {
  for (DType dtype : kDTypes) {
    const Pairs pairs = pairs_of(dtype);
    const auto a = packed(dtype, pairs.a), b = packed(dtype, pairs.b);
    for (ReduceOp op : kOps) {
      if (!why_not(dtype, op).empty()) continue;
      std::vector<Bits> expected;
      for (std::size_t i = 0; i < pairs.a.size(); ++i)
        expected.push_back(combined(dtype, op, pairs.a[i], pairs.b[i]));
      for (InstructionSet set : sets()) {
        std::vector<std::byte> out(a.size());
        kernel_for(dtype, op, set).combine(out.data(), a.data(), b.data(), expected.size());
        compare(named(dtype, op, set), dtype, out, expected, {pairs.a, pairs.b});
      }
    }
  }
}

TEST_CASE("any number of elements at any address, in place or not, and nothing beside them is touched") {
  constexpr std::size_t kMost = 200, kGuard = 64;
  for_each_kernel([](DType dtype, ReduceOp op, InstructionSet set, const Kernel& kernel) {
    SeededRandom random(static_cast<std::uint64_t>(dtype) * 16 + static_cast<std::uint64_t>(op));
    std::vector<Bits> a, b, both, twice, divided_a, scaled_a;
    const double factor = factor_of(dtype);
    for (std::size_t i = 0; i < kMost; ++i) {
      a.push_back(random_value(dtype, random));
      b.push_back(random_value(dtype, random));
      both.push_back(combined(dtype, op, a[i], b[i]));
      twice.push_back(combined(dtype, op, a[i], a[i]));
      if (kernel.divide != nullptr) divided_a.push_back(divided(dtype, a[i], 7));
      if (kernel.scale != nullptr) scaled_a.push_back(scaled(dtype, a[i], factor));
    }
    const auto left = packed(dtype, a), right = packed(dtype, b);
    const std::size_t size = element_size(dtype), room = kMost * size + 2 * kGuard + 8;
    std::vector<std::byte> x(room), y(room), z(room), guard(kGuard, std::byte{0xa5});
    // How `out` may lie: apart, over a, over b, over both; and in place for the operations with one input.
    enum Way { kApart, kOverA, kOverB, kOverBoth, kDivide, kScale, kScaleInPlace, kEnd };
    for (int w = 0; w < kEnd; ++w) {
      const Way way = static_cast<Way>(w);
      if (way == kDivide && kernel.divide == nullptr) continue;
      if ((way == kScale || way == kScaleInPlace) && kernel.scale == nullptr) continue;
      const auto wanted = packed(dtype, way == kOverBoth                        ? twice
                                        : way == kDivide                        ? divided_a
                                        : way == kScale || way == kScaleInPlace ? scaled_a
                                                                                : both);
      for (std::size_t count = 0; count <= kMost; ++count) {
        // Odd offsets too, a different one each.
        std::byte* at_x = x.data() + kGuard + count % 8;
        std::byte* at_y = y.data() + kGuard + count * 3 % 8;
        std::byte* at_z = z.data() + kGuard + count * 5 % 8;
        for (auto* buffer : {&x, &y, &z}) std::memset(buffer->data(), 0xa5, room);
        std::memcpy(at_x, left.data(), count * size);
        std::memcpy(at_y, right.data(), count * size);
        std::byte* out = way == kApart || way == kScale ? at_z : way == kOverB ? at_y : at_x;
        if (way == kDivide) {
          kernel.divide(out, count, 7);
        } else if (way == kScale || way == kScaleInPlace) {
          kernel.scale(out, at_x, count, factor);
        } else {
          kernel.combine(out, at_x, way == kOverBoth ? at_x : at_y, count);
        }
        INFO(named(dtype, op, set) << ", way " << w << ", " << count << " elements");
        if (std::memcmp(out, wanted.data(), count * size) != 0) FAIL("wrong elements");
        const auto untouched = [&](const std::byte* at) {
          return std::memcmp(at, guard.data(), kGuard) == 0;
        };
        if (!untouched(out - kGuard)) FAIL("wrote before the first element");
        if (!untouched(out + count * size)) FAIL("wrote past the last");
      }
    }
  });
}

TEST_CASE("f16 and bf16, all 65,536 of them, divided and multiplied") {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<Bits> all(65536), expected(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    const auto in = packed(dtype, all);
    // By 1: what is converted to f32 and back is the same, but for NaN.
    for (double factor :
         {1.0, -1.0, 0.1, 3.0, 1.0 / 3, 0x1p-14, 0x1p-24, 1e30, 1e-30, 0x1p-130, 65504.0,
          std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        expected[i] = scaled(dtype, all[i], factor);
        if (factor == 1 && !std::isnan(decoded(dtype, all[i])) && expected[i] != all[i])
          FAIL("changed " << all[i]);
      }
      for (InstructionSet set : sets()) {
        auto out = in;
        kernel_for(dtype, ReduceOp::kPremulSum, set).scale(out.data(), in.data(), all.size(), factor);
        compare(named(dtype, ReduceOp::kPremulSum, set) + " by " + std::to_string(factor), dtype, out,
                expected, {all});
      }
    }
    for (int divisor : {1, 2, 3, 7, 1000, 1 << 20, std::numeric_limits<int>::max()}) {
      for (std::size_t i = 0; i < all.size(); ++i) expected[i] = divided(dtype, all[i], divisor);
      for (InstructionSet set : sets()) {
        auto out = in;
        kernel_for(dtype, ReduceOp::kAvg, set).divide(out.data(), all.size(), divisor);
        compare(named(dtype, ReduceOp::kAvg, set) + " by " + std::to_string(divisor), dtype, out, expected,
                {all});
      }
    }
  }
}

TEST_CASE("values known without a reference") {
  struct Row {
    DType dtype;
    ReduceOp op;
    Bits a, b, result;
  };
  const Row rows[] = {
      {DType::kFloat32, ReduceOp::kSum, 0x3f800000, 0x40000000, 0x40400000},     // 1 + 2
      {DType::kFloat32, ReduceOp::kSum, 0x7f800000, 0xff800000, 0x7fc00000},     // inf - inf
      {DType::kFloat32, ReduceOp::kSum, 0xffc00123, 0x7f800456, 0x7fc00000},     // NaNs with payloads
      {DType::kFloat32, ReduceOp::kMin, 0x00000000, 0x80000000, 0x80000000},     // -0 is less
      {DType::kFloat32, ReduceOp::kMax, 0x80000000, 0x00000000, 0x00000000},     // and +0 is more
      {DType::kFloat64, ReduceOp::kMax, 0xfff0000000000001, 0x7ff0000000000000,  //
       0x7ff8000000000000},                                                      // NaN and inf
      {DType::kFloat16, ReduceOp::kSum, 0x3c00, 0x1000, 0x3c00},                 // 1 + 2^-11: a tie, to even
      {DType::kFloat16, ReduceOp::kSum, 0x3c01, 0x1000, 0x3c02},                 // and the other way
      {DType::kFloat16, ReduceOp::kSum, 0x7bff, 0x4c00, 0x7c00},                 // 65504 + 16 is infinite
      {DType::kFloat16, ReduceOp::kProduct, 0x0400, 0x3800, 0x0200},             // a subnormal
      {DType::kFloat16, ReduceOp::kMin, 0x7e01, 0x3c00, 0x7e00},                 // NaN
      {DType::kBFloat16, ReduceOp::kSum, 0x3f80, 0x3b80, 0x3f80},                // 1 + 2^-8: a tie, to even
      {DType::kBFloat16, ReduceOp::kMax, 0xffff, 0x0000, 0x7fc0},                // NaN
      {DType::kInt8, ReduceOp::kSum, 127, 1, 128},                               // wraps to -128
      {DType::kInt16, ReduceOp::kProduct, 0xffff, 0xffff, 1},                    // -1 * -1
      {DType::kInt64, ReduceOp::kMin, ~Bits{0}, 0, ~Bits{0}},                    // -1 < 0
      {DType::kUInt8, ReduceOp::kMin, 255, 0, 0},
      {DType::kInt32, ReduceOp::kBxor, 0xf0f0f0f0, 0xffffffff, 0x0f0f0f0f},
      {DType::kBool, ReduceOp::kSum, 1, 1, 1},
      {DType::kBool, ReduceOp::kBand, 2, 4, 1},
      {DType::kBool, ReduceOp::kBxor, 2, 1, 0},
  };
  for (const Row& row : rows) {
    for (InstructionSet set : sets()) {
      const auto a = packed(row.dtype, {row.a}), b = packed(row.dtype, {row.b});
      std::vector<std::byte> out(a.size());
      kernel_for(row.dtype, row.op, set).combine(out.data(), a.data(), b.data(), 1);
      compare(named(row.dtype, row.op, set), row.dtype, out, {row.result}, {{row.a}, {row.b}});
      CHECK(combined(row.dtype, row.op, row.a, row.b) == row.result);
    }
  }
}

#if defined(__x86_64__)
/// torch::set_flush_denormal(true) on one trainer and not on another must not change f16, whose subnormals
/// are small and not rare: the first conversion to f32 went through subnormals of f32, which were flushed in
/// the base instruction set and kept by F16C.
TEST_CASE("f16 keeps its subnormals on a thread that flushes those of f32") {
  const Pairs pairs = pairs_of(DType::kFloat16);
  const auto a = packed(DType::kFloat16, pairs.a), b = packed(DType::kFloat16, pairs.b);
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin}) {
    std::vector<Bits> expected;
    for (std::size_t i = 0; i < pairs.a.size(); ++i)
      expected.push_back(combined(DType::kFloat16, op, pairs.a[i], pairs.b[i]));
    for (InstructionSet set : sets()) {
      std::vector<std::byte> out(a.size());
      const unsigned before = _mm_getcsr();
      _mm_setcsr(before | 0x8040);  // FTZ and DAZ
      kernel_for(DType::kFloat16, op, set).combine(out.data(), a.data(), b.data(), expected.size());
      _mm_setcsr(before);
      compare(named(DType::kFloat16, op, set), DType::kFloat16, out, expected, {pairs.a, pairs.b});
    }
  }
}
#endif

TEST_CASE("a sum on the tree is within depth x eps of the exact one, and does not know who hosts what") {
  SeededRandom random(23);
  for (int round = 0; round < 120; ++round) {
    const DType dtype = kFloats[round % 4];
    const int leaves = 1 + static_cast<int>(random.below(40));
    const std::size_t count = 1 + random.below(700), size = element_size(dtype);
    std::vector<std::vector<Bits>> values(static_cast<std::size_t>(leaves), std::vector<Bits>(count));
    for (auto& leaf : values)
      for (Bits& value : leaf) value = encoded(dtype, random.uniform() * 4 - 2);
    const std::function<Bits(LeafInterval, std::size_t)> sum = [&](LeafInterval node, std::size_t i) {
      if (node.size() == 1) return values[static_cast<std::size_t>(node.begin)][i];
      const int middle = node.begin + split_point(node.size());
      return combined(dtype, ReduceOp::kSum, sum({node.begin, middle}, i), sum({middle, node.end}, i));
    };
    std::vector<LeafInterval> nodes;  // of ranks with random intervals
    for (int at = 0; at < leaves;) {
      const int end = at + 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(leaves - at)));
      for (LeafInterval node : canonical_nodes({at, end}, leaves)) nodes.push_back(node);
      at = end;
    }
    std::vector<std::vector<std::byte>> partials;
    std::vector<const std::byte*> sources;
    for (LeafInterval node : nodes) {
      partials.emplace_back(count * size);
      for (std::size_t i = 0; i < count; ++i) store(dtype, partials.back().data(), i, sum(node, i));
    }
    for (const auto& partial : partials) sources.push_back(partial.data());
    std::vector<std::byte> result(count * size);
    std::byte* const target = result.data();
    TreeSum(nodes, leaves).run(kernel_for(dtype, ReduceOp::kSum), sources, {&target, 1}, count, size);

    int depth = 0;
    while (1 << depth < leaves) ++depth;
    const double eps = std::ldexp(1.0, -format_of(dtype).digits - 1);
    for (std::size_t i = 0; i < count; ++i) {
      const Bits got = load(dtype, target, i);
      if (got != sum({0, leaves}, i))
        FAIL(dtype_name(dtype) << ", " << leaves << " leaves: not the tree's bits");
      long double exact = 0, magnitudes = 0;
      for (const auto& leaf : values) {
        exact += decoded(dtype, leaf[i]);
        magnitudes += std::abs(decoded(dtype, leaf[i]));
      }
      // (1 + eps)^depth - 1, and what the exact sum itself may be off.
      const long double bound = (std::pow(1.0L + eps, depth) - 1 + 0x1p-58L) * magnitudes;
      if (std::abs(decoded(dtype, got) - exact) > bound)
        FAIL(dtype_name(dtype) << ", " << leaves << " leaves: " << decoded(dtype, got) << " is not "
                               << exact);
    }
  }
}

TEST_CASE("what makes no sense is refused, with the reason") {
  for (DType dtype : kDTypes) {
    const bool is_bool = dtype == DType::kBool;
    const bool floats = is_float(dtype);
    for (ReduceOp op : kOps) {
      const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
      const bool refused =
          (floats && bitwise) || (!floats && op == ReduceOp::kAvg) || (is_bool && op == ReduceOp::kPremulSum);
      for (InstructionSet set : sets()) {
        INFO(named(dtype, op, set));
        const Kernel kernel = kernel_for(dtype, op, set);
        CHECK(why_not(dtype, op).empty() == !refused);
        CHECK((kernel.combine == nullptr) == refused);
        CHECK((kernel.divide != nullptr) == (op == ReduceOp::kAvg && !refused));
        CHECK((kernel.scale != nullptr) == (op == ReduceOp::kPremulSum && !refused));
      }
    }
  }
  CHECK(why_not(DType::kInt32, ReduceOp::kAvg) == "an average of i32 values is not an integer");
}

TEST_CASE("a factor fits its dtype, or is refused") {
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : kFloats) {
    const bool wide = dtype == DType::kFloat64;
    for (double factor : {0.0, -0.0, 1.0, 0.1, -3e38, 0x1.fffffefp127, 1e-45, infinity, -infinity, nan})
      CHECK(factor_fits(dtype, factor));
    for (double factor : {1e39, -0x1.ffffffp127, 1e-46, -1e-300}) CHECK(factor_fits(dtype, factor) == wide);
  }
  struct Range {
    DType dtype;
    double least, most;
  };
  for (Range range : {Range{DType::kInt8, -128, 127}, Range{DType::kInt16, -32768, 32767},
                      Range{DType::kInt32, -0x1p31, 0x1p31 - 1}, Range{DType::kInt64, -0x1p63, 0x1p63 - 1024},
                      Range{DType::kUInt8, 0, 255}}) {
    INFO(dtype_name(range.dtype));
    for (double factor : {range.least, range.most, 0.0, -0.0, 1.0, 77.0})
      CHECK(factor_fits(range.dtype, factor));
    const double next = range.dtype == DType::kInt64 ? 2048 : 1;
    for (double factor : {range.least - next, range.most + next, 0.5, -1.5, 1e300, infinity, -infinity, nan})
      CHECK_FALSE(factor_fits(range.dtype, factor));
  }
  CHECK_FALSE(factor_fits(DType::kBool, 1));
}
