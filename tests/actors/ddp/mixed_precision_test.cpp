#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <limits>

#include "actors/ddp/autocast.hpp"
#include "actors/ddp/distributed_sampler.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

struct Scaled {
  torch::nn::Linear net{4, 2};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1)};
  torch::Tensor loss() { return net->forward(torch::ones({3, 4})).square().mean(); }
};

TEST_CASE("a scaled step is the step") {
  Scaled scaled;
  Scaled plain;
  {
    const torch::NoGradGuard no_grad;
    plain.net->weight.copy_(scaled.net->weight);
    plain.net->bias.copy_(scaled.net->bias);
  }
  GradScaler scaler;
  scaler.scale(scaled.loss()).backward();
  CHECK(scaler.step(scaled.optimizer));
  scaler.update();
  plain.loss().backward();
  plain.optimizer.step();
  CHECK(torch::equal(scaled.net->weight, plain.net->weight));  // 65536 is a power of 2
}

TEST_CASE("a step with inf or NaN on one rank is left out on every rank") {
  const auto said = fork_ddp(3, [](auto group) {
    Scaled one;
    GradScaler scaler({.init_scale = 8}, group);
    scaler.scale(one.loss()).backward();
    if (group->rank() == 2) one.net->bias.mutable_grad()[1] = std::numeric_limits<float>::quiet_NaN();
    const bool stepped = scaler.step(one.optimizer);
    scaler.update();
    return std::to_string(stepped) + " " + std::to_string(static_cast<int>(scaler.get_scale()));
  });
  for (const std::string& text : said) CHECK(text == "0 4");
}

TEST_CASE("a step of the scaler without any gradient is an error on every rank") {
  // It stepped and let the scale grow, as PyTorch refuses to.
  const auto said = fork_ddp(2, [](auto group) -> std::string {
    Scaled one;
    GradScaler scaler({}, group);
    scaler.scale(one.loss()).backward();
    if (group->rank() == 1) {
      for (auto& parameter : one.net->parameters()) parameter.mutable_grad() = torch::Tensor();
    }
    const std::string what = thrown_by([&] { scaler.step(one.optimizer); });
    one.optimizer.zero_grad();
    scaler.scale(one.loss()).backward();
    return scaler.step(one.optimizer) ? what : "it did not step with gradients";
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Contains("no parameter of this optimizer has a gradient on rank 1"));
}

TEST_CASE("after a step without any gradient the scaler takes the next one with some") {
  // It said "no parameter has a gradient" of every backward after that, until update().
  const bool unscales = GENERATE(false, true);
  Scaled one;
  GradScaler scaler;
  const torch::Tensor loss = scaler.scale(one.loss());
  if (unscales) scaler.unscale_(one.optimizer);
  CHECK_THROWS_WITH(scaler.step(one.optimizer), Catch::Contains("has a gradient") &&
                                                    Catch::Contains("zero_grad()") &&
                                                    Catch::Contains("and step() again"));
  // PyTorch: "No inf checks were recorded prior to update."
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("no gradient was unscaled since the last one"));
  loss.backward();
  CHECK(scaler.step(one.optimizer));
  scaler.update();
  CHECK(scaler.state().growth_tracker == 1);
}

TEST_CASE("without a scaler a NaN goes where it came from") {
  Scaled one;
  GradScaler off({.enabled = false});
  const torch::Tensor loss = one.loss() * std::numeric_limits<float>::quiet_NaN();
  off.scale(loss).backward();
  CHECK(off.step(one.optimizer));
  off.update();
  CHECK(one.net->weight.isnan().all().item<bool>());
}

TEST_CASE("the scale grows after an interval without inf, and survives a checkpoint") {
  Scaled one;
  GradScaler scaler({.init_scale = 4, .growth_interval = 3});
  for (int i = 0; i < 4; ++i) {
    one.optimizer.zero_grad();
    scaler.scale(one.loss()).backward();
    scaler.step(one.optimizer);
    scaler.update();
  }
  CHECK(scaler.get_scale() == 8);
  GradScaler loaded;
  loaded.load(scaler.state());
  CHECK(loaded.get_scale() == 8);
  CHECK(loaded.state().growth_tracker == 1);
}

TEST_CASE("misuse of a scaler is one clear error") {
  Scaled one;
  GradScaler scaler;
  CHECK_THROWS_WITH(scaler.step(one.optimizer), Catch::Contains("scale() was not called"));
  CHECK_THROWS_WITH(scaler.unscale_(one.optimizer), Catch::Contains("scale() was not called"));
  scaler.scale(one.loss()).backward();
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("no gradient was unscaled"));
  scaler.unscale_(one.optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(one.optimizer), Catch::Contains("since the last update()"));
  CHECK(scaler.step(one.optimizer));
  CHECK_THROWS_WITH(scaler.step(one.optimizer), Catch::Contains("since the last update()"));
  CHECK_THROWS_WITH(scaler.unscale_(one.optimizer), Catch::Contains("step() was called"));
  scaler.update();
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), BadConfig);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), BadConfig);
  CHECK_THROWS_AS(scaler.update(-1.0), BadConfig);
  // As a float these are infinite and zero: no step would ever be made.
  CHECK_THROWS_AS(GradScaler({.init_scale = 1e39}), BadConfig);
  CHECK_THROWS_AS(GradScaler({.init_scale = 1e-50}), BadConfig);
  CHECK_THROWS_AS(scaler.update(1e39), BadConfig);

  one.net->to(torch::kFloat16);
  for (auto& parameter : one.net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  CHECK_THROWS_WITH(scaler.unscale_(one.optimizer), Catch::Contains("float16"));
}

TEST_CASE("autocast computes products in bfloat16, and leaves parameters, gradients and its outside alone") {
  Scaled one;
  torch::Tensor output;
  {
    const Autocast autocast;
    output = one.net->forward(torch::ones({3, 4}));
    CHECK(output.scalar_type() == torch::kBFloat16);
    {
      const Autocast off(torch::kCPU, torch::kBFloat16, false);
      CHECK(one.net->forward(torch::ones({3, 4})).scalar_type() == torch::kFloat32);
    }
    CHECK(one.net->forward(torch::ones({3, 4})).scalar_type() == torch::kBFloat16);
  }
  CHECK(one.net->forward(torch::ones({3, 4})).scalar_type() == torch::kFloat32);
  output.to(torch::kFloat32).sum().backward();
  CHECK(one.net->weight.grad().scalar_type() == torch::kFloat32);
  CHECK_THROWS_WITH(Autocast(torch::kCPU, torch::kFloat16), Catch::Contains("the CPU has bfloat16 alone"));
  CHECK_THROWS_WITH(Autocast(torch::kCUDA, torch::kFloat64), Catch::Contains("no autocast to Double"));
  CHECK_THROWS_WITH(Autocast(torch::kMeta), Catch::Contains("no autocast on meta"));
}

TEST_CASE("autocast of CUDA is to float16 if nothing else is said, and no matter of the CPU's") {
  const AutocastState before = autocast_of(torch::kCUDA);
  CHECK_FALSE(before.enabled);
  {
    const Autocast autocast(torch::kCUDA);
    CHECK(autocast_of(torch::kCUDA).enabled);
    CHECK(autocast_of(torch::kCUDA).dtype == torch::kFloat16);
    CHECK_FALSE(autocast_of(torch::kCPU).enabled);
    const Autocast inner(torch::kCUDA, torch::kBFloat16);
    CHECK(autocast_of(torch::kCUDA).dtype == torch::kBFloat16);
  }
  CHECK_FALSE(autocast_of(torch::kCUDA).enabled);
  CHECK(autocast_of(torch::kCUDA).dtype == before.dtype);
}

TEST_CASE("DistributedSampler gives PyTorch's numbers to LibTorch's data loader") {
  // test_data holds the order to 100 lists that PyTorch made; these are of semantics that users see.
  const std::vector<std::vector<std::int64_t>> golden{{10, 5, 9}, {0, 8, 7}, {4, 2, 6}, {3, 1, 10}};
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(11, 4, rank);
    CHECK(sampler.indices() == golden[static_cast<std::size_t>(rank)]);
    CHECK(sampler.size() == 3);
    auto loader =
        torch::data::make_data_loader(torch::data::datasets::TensorDataset(torch::arange(11)), sampler, 2);
    for (const std::uint64_t epoch : {0, 1, 5}) {
      sampler.set_epoch(epoch);
      std::vector<std::int64_t> seen;
      for (auto& batch : *loader) {
        for (auto& example : batch) seen.push_back(example.data.item<std::int64_t>());
      }
      CHECK(seen == sampler.indices());
    }
  }
  CHECK(DistributedSampler(11, 4, 0, {.drop_last = true}).indices().size() == 2);
  CHECK(DistributedSampler(11, 4, 3, {.shuffle = false}).indices() == std::vector<std::int64_t>{3, 7, 0});
  CHECK_THROWS_AS(DistributedSampler(0, 1, 0), BadConfig);
  CHECK_THROWS_WITH(DistributedSampler(5, 2, 2), Catch::Contains("no rank 2 of 2"));
}

}  // namespace
}  // namespace troupe::train::testing
