/// Sums of slices by themselves, with a kernel of the test's own.

#include "collectives/native/tree_sum.hpp"

#include <catch2/catch.hpp>
#include <cstring>

using namespace troupe::collectives;

namespace {

void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float x, y;
    std::memcpy(&x, a + 4 * i, 4);
    std::memcpy(&y, b + 4 * i, 4);
    x += y;
    std::memcpy(out + 4 * i, &x, 4);
  }
}
void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    float x;
    std::memcpy(&x, in + 4 * i, 4);
    x *= static_cast<float>(factor);
    std::memcpy(out + 4 * i, &x, 4);
  }
}

}  // namespace

TEST_CASE("a kernel that scales multiplies every input once, before it is added, and changes none") {
  for (int nodes = 1; nodes <= 6; ++nodes) {
    for (const bool in_place : {false, true}) {
      const std::size_t count = 1000;
      std::vector<LeafInterval> leaves;
      std::vector<std::vector<float>> inputs;
      for (int n = 0; n < nodes; ++n) {
        leaves.push_back({n, n + 1});
        inputs.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i) inputs.back()[i] = static_cast<float>(n * 7 + i % 13) / 3;
      }
      // (((0 + 1) + (2 + 3)) + (4 + 5)) and so on, by the tree: fold_plan is tested elsewhere.
      std::vector<float> wanted(count);
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<float> at;
        for (const auto& input : inputs) at.push_back(input[i] * static_cast<float>(0.3));
        for (const FoldStep& step : fold_plan(leaves, nodes)) {
          at[static_cast<std::size_t>(step.into)] += at[static_cast<std::size_t>(step.from)];
        }
        wanted[i] = at[0];
      }
      const auto before = inputs;
      std::vector<float> out(count), also(count);
      std::vector<const std::byte*> sources;
      for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
      auto& target = in_place ? inputs.back() : out;
      std::byte* const targets[] = {reinterpret_cast<std::byte*>(target.data()),
                                    reinterpret_cast<std::byte*>(also.data())};
      TreeSum(leaves, nodes).run({combine, nullptr, scale}, sources, targets, count, 4, 0.3);
      CHECK(target == wanted);
      CHECK(also == wanted);
      for (int n = 0; n + (in_place ? 1 : 0) < nodes; ++n) {
        CHECK(inputs[static_cast<std::size_t>(n)] == before[static_cast<std::size_t>(n)]);
      }
    }
  }
}
