/// What the GPU's kernel is compiled from, on the CPU: its elements are those of the native kernels
/// (kernels_test.cpp), its nodes and the fold its own.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "runtime/core/random.hpp"
#include "tests/collectives/element_ops.hpp"
#include "tests/collectives/fold_on_host.hpp"
#include "tests/collectives/kernel_reference.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::nccl;

namespace {

using testing::combine;
using testing::scale;
using F16 = kernel::SmallFloat<kernel::Float16>;
using BF16 = kernel::SmallFloat<kernel::BFloat16>;

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

namespace {

/// By the book: a sum of bf16, rounded once. A sum of two whose exponents are far apart has more digits than
/// f64: `rest`, what f64 left out, says on which side of a tie it is.
std::uint16_t bf16_of_sum(double a, double b) {
  const double sum = a + b;
  if (std::isnan(sum)) return 0x7fc0;
  const std::uint16_t sign = std::signbit(sum) ? 0x8000 : 0;
  const double large = std::fabs(a) < std::fabs(b) ? b : a, small = std::fabs(a) < std::fabs(b) ? a : b;
  const double rest = std::isinf(sum) ? 0 : small - (sum - large), magnitude = std::fabs(sum);
  if (magnitude == 0) return sign;
  if (magnitude >= 0x1.ffp127) return sign | 0x7f80;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 8, -133);
  const double scaled = std::ldexp(magnitude, -unit), low = std::floor(scaled);
  const double over = scaled - low, more = std::signbit(sum) ? -rest : rest;
  const bool odd = std::fmod(low, 2) == 1;
  const bool up = over > 0.5 || (over == 0.5 && (more > 0 || (more == 0 && odd)));
  const auto bits = static_cast<std::uint16_t>(low + (up ? 1 : 0));
  return sign | (unit == -133 ? bits : static_cast<std::uint16_t>(((unit + 133) << 7) + bits));
}

/// Both zeros, subnormals, powers of two and their neighbours, ties, the ends of the range, infinities, NaN.
std::vector<std::uint16_t> interesting(int digits) {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x8000; bits += 1U << digits) {
    for (const std::uint32_t more : {0U, 1U, 2U, (1U << digits) / 2, (1U << digits) - 1}) {
      all.push_back(static_cast<std::uint16_t>(bits + more));
      all.push_back(static_cast<std::uint16_t>(0x8000 + bits + more));
    }
  }
  return all;
}

/// As the kernel has it, in the upper lane of a word; the lower one has another sum.
template <class Element, class Op>
std::uint16_t node(Op op, std::uint16_t a, std::uint16_t b) {
  const std::uint32_t both = node_of<Element>(op, std::uint32_t{a} << 16 | 0x0001, std::uint32_t{b} << 16);
  return static_cast<std::uint16_t>(both >> 16);
}

/// Pairs: all of `some`, and each of 65,536 with a few.
template <class Check>
void for_pairs(const std::vector<std::uint16_t>& some, Check check) {
  for (const std::uint16_t a : some) {
    for (const std::uint16_t b : some) check(a, b);
  }
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const std::uint16_t b :
         {0x0000, 0x8000, 0x0001, 0x3c00, 0x3f80, 0x3c01, 0xbf81, 0x7bff, 0x7f7f, 0x7c00})
      check(static_cast<std::uint16_t>(bits), b);
  }
}

}  // namespace

/// The GPU adds and multiplies f16, and adds bf16, by its own instructions, which round once.
TEST_CASE("fold nodes: f16 and bf16 by way of f32 have the bits of one rounding") {
  std::uint64_t wrong = 0;
  for_pairs(interesting(10), [&](std::uint16_t a, std::uint16_t b) {
    // A product of two has 22 digits, and a sum at most 41: f64 holds both, and is rounded once.
    const double x = testing::decoded(DType::kFloat16, a), y = testing::decoded(DType::kFloat16, b);
    wrong += node<F16>(kernel::Sum{}, a, b) != testing::encoded(DType::kFloat16, x + y);
    wrong += node<F16>(kernel::Product{}, a, b) != testing::encoded(DType::kFloat16, x * y);
  });
  CHECK(wrong == 0);
  for_pairs(interesting(7), [&](std::uint16_t a, std::uint16_t b) {
    const double x = testing::decoded(DType::kBFloat16, a), y = testing::decoded(DType::kBFloat16, b);
    wrong += node<BF16>(kernel::Sum{}, a, b) != bf16_of_sum(x, y);
  });
  CHECK(wrong == 0);
}

namespace {

/// Three partials, two of them other ranks', at `misaligned` bytes; checks every element, and that nothing is
/// written around them. Whether all is well.
template <class T>
bool fold_is_right(std::size_t count, std::size_t misaligned, int depth) {
  constexpr std::size_t kGuard = 32;
  const std::size_t stride = (count * sizeof(T) + 255) / 256 * 256;
  std::vector<std::byte> received(2 * stride + 2 * kGuard, std::byte{0x11});
  std::vector<std::byte> own(count * sizeof(T) + 2 * kGuard), out(own.size(), std::byte{0x5a});
  const auto start = [&](std::vector<std::byte>& memory, std::size_t by) {
    const std::size_t over = reinterpret_cast<std::uintptr_t>(memory.data()) % kPackBytes;
    return memory.data() + (kPackBytes - over) % kPackBytes + by;
  };
  std::byte* const mine = start(own, misaligned);
  std::byte* const to = start(out, misaligned);
  std::byte* const others = start(received, 0);
  const auto value = [](std::size_t source, std::size_t i) {
    return static_cast<T>((i * 7 + source * 31 + 3) % 41);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const T a = value(0, i), b = value(1, i), c = value(2, i);
    std::memcpy(others + i * sizeof(T), &a, sizeof(T));
    std::memcpy(mine + i * sizeof(T), &b, sizeof(T));
    std::memcpy(others + stride + i * sizeof(T), &c, sizeof(T));
  }
  const std::vector<std::uint8_t> program{0, 1, 1};
  TreeFold fold{.received = others, .stride = stride, .own_first = 1, .own_count = 1};
  fold.own[0] = mine;
  fold.program = program.data();
  fold.depth = depth;
  fold.sources = 3;
  fold.out = to;
  fold.count = count;
  fold.dtype = collectives::dtype_of<T>();
  fold_on_host(fold);
  bool right = true;
  for (std::size_t i = 0; i < count; ++i) {
    T got;
    std::memcpy(&got, to + i * sizeof(T), sizeof(T));
    right = right && got == static_cast<T>(value(0, i) + value(1, i) + value(2, i));
  }
  for (const std::byte& byte : out) {
    right = right && ((&byte >= to && &byte < to + count * sizeof(T)) || byte == std::byte{0x5a});
  }
  return right;
}

}  // namespace

TEST_CASE("fold: every element once, for every count and misalignment") {
  std::string wrong;
  const auto look = [&](bool right, std::size_t count, std::size_t misaligned) {
    if (!right) wrong += std::to_string(count) + " elements at " + std::to_string(misaligned) + "; ";
  };
  for (std::size_t count = 0; count <= 4097; ++count) {
    const int depth = count % 2 == 0 ? kShallowDepth : kMaxDepth;
    look(fold_is_right<std::int8_t>(count, count % 16, depth), count, count % 16);
    look(fold_is_right<double>(count, count / 2 % 2 * 8, depth), count, count / 2 % 2 * 8);
  }
  for (const std::size_t count : {1, 15, 16, 17, 31, 33, 255, 257, 4095, 4096, 4097, 8191, 8193}) {
    for (std::size_t misaligned = 0; misaligned < 16; ++misaligned) {
      for (const int depth : {kShallowDepth, kMaxDepth}) {
        look(fold_is_right<std::int8_t>(count, misaligned, depth), count, misaligned);
        if (misaligned % 2 == 0)
          look(fold_is_right<std::int16_t>(count, misaligned, depth), count, misaligned);
        if (misaligned % 4 == 0) look(fold_is_right<float>(count, misaligned, depth), count, misaligned);
      }
    }
  }
  CHECK(wrong == "");
}

TEST_CASE("fold: neighbours load neighbouring packs, and each pack is one thread's") {
  std::vector<int> seen(std::size_t{3} * kFoldThreads * kFoldPacks);
  for (std::size_t tile = 0; tile < 3; ++tile) {
    for (int thread = 0; thread < kFoldThreads; ++thread) {
      for (int j = 0; j < kFoldPacks; ++j) {
        ++seen.at(pack_of(tile, j, thread));
        CHECK((thread == 0 || pack_of(tile, j, thread) == pack_of(tile, j, thread - 1) + 1));
      }
    }
  }
  CHECK(seen == std::vector<int>(seen.size(), 1));
}

/// A shallow stack shifts, a deep one counts: the same fold by both.
TEST_CASE("fold: the depth that it is compiled for does not change the sum") {
  constexpr std::size_t kCount = 100;
  for (int sources = 1; sources <= 16; ++sources) {
    std::vector<LeafInterval> nodes;
    for (int i = 0; i < sources; ++i) nodes.push_back({i, i + 1});
    const auto program = fold_program(nodes, sources);
    REQUIRE(fold_depth(program) <= kShallowDepth);
    SeededRandom random(7);
    std::vector<float> received(static_cast<std::size_t>(sources) * kCount), shallow(kCount), deep(kCount);
    for (float& value : received) value = static_cast<float>(random.uniform());
    TreeFold fold{.received = reinterpret_cast<const std::byte*>(received.data()),
                  .stride = kCount * sizeof(float),
                  .own_first = sources};
    fold.program = program.data();
    fold.sources = sources;
    fold.count = kCount;
    fold.out = reinterpret_cast<std::byte*>(deep.data());
    fold_on_host(fold);
    fold.depth = fold_depth(program);
    fold.out = reinterpret_cast<std::byte*>(shallow.data());
    fold_on_host(fold);
    CHECK(shallow == deep);
  }
}
