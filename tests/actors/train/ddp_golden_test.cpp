// The same losses as PyTorch's DistributedDataParallel: golden/make_ddp_golden.py trains the same net on the
// same data with 2 ranks over gloo and writes golden/ddp_losses.txt.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

#include "actors/train/engine/numerics.hpp"
#include "tests/actors/ddp/golden_losses.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

constexpr int kBatch = 10;
constexpr double kTolerance = 1e-4;

/// ConvJob with the weights of set_weights in make_ddp_golden.py.
struct GoldenJob : ConvJob {
  ConvNet model() const {
    ConvNet net;
    const torch::NoGradGuard no_grad;
    int position = 0;
    for (auto& item : net->named_parameters()) {
      ++position;
      if (item.key().find(".1.") != std::string::npos) continue;  // BatchNorm stays 1 and 0
      const double scale = 1 / std::sqrt(static_cast<double>(item.value()[0].numel()));
      set_golden_values(item.value(), position, scale);
    }
    return net;
  }
};

std::vector<std::vector<double>> ddp_losses() {
  std::ifstream file(TROUPE_GOLDEN_DIR "/ddp_losses.txt");
  std::vector<std::vector<double>> losses;
  for (double first = 0, second = 0; file >> first >> second;) losses.push_back({first, second});
  return losses;
}

/// Every loss of this rank's leaves, one line a step.
std::string losses_of(const std::shared_ptr<collectives::ProcessGroup>& group, int steps) {
  set_up_numerics();
  StepEngine engine(make_training_model(GoldenJob{}, 1), {.logical_ranks = 2});
  engine.attach(group);
  std::ostringstream text;
  text.precision(12);
  for (int step = 0; step < steps; ++step) {
    const auto batches = leaf_batches(
        *group, static_cast<std::uint64_t>(step),
        [](std::uint64_t s, int leaf) { return image_batch(static_cast<int>(s), leaf, kBatch); });
    for (const double loss : engine.run_step(static_cast<std::uint64_t>(step), batches)) text << loss << ' ';
    engine.apply();
  }
  return text.str();
}

TEST_CASE("losses over 200 steps agree with PyTorch DDP") {
  const auto golden = ddp_losses();
  REQUIRE(golden.size() == 200);
  CHECK(golden.back()[0] < golden.front()[0] / 2);  // something was learned
  const auto results = fork_ranks(2, 2, [&](auto group) { return losses_of(group, 200); });
  double worst = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::istringstream text(results[rank]);
    for (std::size_t step = 0; step < golden.size(); ++step) {
      double loss = NAN;
      text >> loss;
      CAPTURE(rank, step, loss, golden[step][rank]);
      REQUIRE(std::abs(loss - golden[step][rank]) < kTolerance);
      worst = std::max(worst, std::abs(loss - golden[step][rank]));
    }
  }
  INFO("largest difference " << worst);
  CHECK(worst < kTolerance);
}

}  // namespace
}  // namespace troupe::train::testing
