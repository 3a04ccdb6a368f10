/// The arithmetic that the GPU's kernel is compiled from, on the CPU.

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/nccl/tree_fold.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/element_ops.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::nccl;

namespace {

using testing::combine;
using testing::scale;
/// The bits that are stored, without a sign.
std::uint16_t bits_of(std::int16_t stored) {
  return static_cast<std::uint16_t>(stored);
}
std::int16_t stored(std::uint16_t bits) {
  return static_cast<std::int16_t>(bits);
}
using F16 = kernel::SmallFloat<kernel::Float16>;
using BF16 = kernel::SmallFloat<kernel::BFloat16>;

/// f16 by the book.
double value_of_f16(std::uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// Folds one element a source by the program, and by the plan it was made from.
void check_program(const std::vector<LeafInterval>& nodes, int leaves) {
  // Strings show the shape of the expression.
  std::vector<std::string> slots, stack;
  for (std::size_t i = 0; i < nodes.size(); ++i) slots.push_back(std::to_string(i));
  const auto program = fold_program(nodes, leaves);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::string sum = slots[i];
    for (int merges = program[i]; merges > 0; --merges) {
      sum = "(" + stack.back() + "+" + sum + ")";
      stack.pop_back();
    }
    stack.push_back(sum);
  }
  for (const FoldStep& step : fold_plan(nodes, leaves)) {
    std::string& into = slots[static_cast<std::size_t>(step.into)];
    into = "(" + into + "+" + slots[static_cast<std::size_t>(step.from)] + ")";
  }
  REQUIRE(stack.size() == 1);
  CHECK(stack[0] == slots[0]);
}

}  // namespace

TEST_CASE("fold program: the same expression as the plan, for every deal") {
  for (int leaves = 1; leaves <= 33; ++leaves) {
    for (int ranks = 1; ranks <= leaves; ++ranks) {
      std::vector<LeafInterval> nodes;
      for (LeafInterval interval : deal_leaves(leaves, ranks)) {
        for (LeafInterval node : canonical_nodes(interval, leaves)) nodes.push_back(node);
      }
      check_program(nodes, leaves);
    }
  }
}

TEST_CASE("f16 and bf16 elements: every value loads exactly, and stores back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    const double f16 = value_of_f16(h);
    if (std::isnan(f16)) {
      CHECK(std::isnan(F16::load(stored(h))));
      CHECK(bits_of(F16::store(F16::load(stored(h)))) == 0x7e00);
    } else {
      REQUIRE(static_cast<double>(F16::load(stored(h))) == f16);
      REQUIRE(bits_of(F16::store(F16::load(stored(h)))) == h);
    }
    const float bf16 = BF16::load(stored(h));
    REQUIRE(bits_of(BF16::store(bf16)) == (std::isnan(bf16) ? 0x7fc0 : h));
  }
}

TEST_CASE("f16 elements: a value between two rounds to the nearer, and a tie to the even one") {
  for (std::uint16_t h = 0; h < 0x7bff; ++h) {
    const double low = value_of_f16(h), high = value_of_f16(h + 1), middle = (low + high) / 2;
    const auto below = std::nextafter(static_cast<float>(middle), 0.0F);
    const auto above = std::nextafter(static_cast<float>(middle), 1e9F);
    REQUIRE(bits_of(F16::store(below)) == h);
    REQUIRE(bits_of(F16::store(above)) == h + 1);
    REQUIRE(bits_of(F16::store(static_cast<float>(middle))) == (h % 2 == 0 ? h : h + 1));
    REQUIRE(bits_of(F16::store(-below)) == (h | 0x8000));
  }
  CHECK(bits_of(F16::store(65520)) == 0x7c00);
  CHECK(bits_of(F16::store(-65519.996F)) == 0xfbff);
}

TEST_CASE("elements: NaN, zeros with a sign, wrapping, and bool") {
  const float nan = std::bit_cast<float>(0xffc12345U), inf = std::numeric_limits<float>::infinity();
  using F = kernel::Float<float>;
  const auto bits = [](float f) { return std::bit_cast<std::uint32_t>(f); };
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    CHECK(bits(combine<F>(op, nan, 1)) == 0x7fc00000);
    CHECK(bits(combine<F>(op, 1, nan)) == 0x7fc00000);
  }
  CHECK(bits(combine<F>(ReduceOp::kSum, inf, -inf)) == 0x7fc00000);
  CHECK(bits(combine<F>(ReduceOp::kMin, 0.0F, -0.0F)) == 0x80000000);
  CHECK(bits(combine<F>(ReduceOp::kMin, -0.0F, 0.0F)) == 0x80000000);
  CHECK(bits(combine<F>(ReduceOp::kMax, -0.0F, 0.0F)) == 0);
  CHECK(combine<F16>(ReduceOp::kSum, stored(0x7c00), stored(0xfc00)) == 0x7e00);
  CHECK(combine<kernel::Integer<std::int8_t>>(ReduceOp::kSum, 127, 1) == -128);
  CHECK(combine<kernel::Integer<std::int16_t>>(ReduceOp::kProduct, 0x7fff, 0x7fff) == 1);
  CHECK(combine<kernel::Integer<std::int64_t>>(ReduceOp::kSum, std::numeric_limits<std::int64_t>::max(), 1) ==
        std::numeric_limits<std::int64_t>::min());
  CHECK(combine<kernel::Integer<std::uint8_t>>(ReduceOp::kBxor, 0xf0, 0xff) == 0x0f);
  CHECK(combine<kernel::Bool>(ReduceOp::kSum, 7, 1) == 1);
  CHECK(combine<kernel::Bool>(ReduceOp::kProduct, 7, 0) == 0);
  CHECK(combine<kernel::Bool>(ReduceOp::kBxor, 2, 1) == 0);
  CHECK(combine<kernel::Bool>(ReduceOp::kBand, 2, 1) == 1);
}

TEST_CASE("elements: f32 multiplies and adds in two roundings") {
  SeededRandom random(5);
  using F = kernel::Float<float>;
  for (int i = 0; i < 1000; ++i) {
    const auto a = static_cast<float>(random.uniform()), b = static_cast<float>(random.uniform());
    const auto product = static_cast<float>(static_cast<double>(a) * 0.1F);
    const auto sum = static_cast<float>(static_cast<double>(product) + b);
    CHECK(combine<F>(ReduceOp::kSum, scale<F>(a, 0.1F), b) == sum);
  }
}
