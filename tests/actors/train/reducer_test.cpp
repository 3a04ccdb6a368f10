#include "actors/train/engine/reducer.hpp"

#include <catch2/catch.hpp>

#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

using collectives::DType;
using collectives::FoldStep;

TEST_CASE("buckets follow DDP's rule: add, then close at the cap, in reverse order") {
  const std::vector<BucketItem> items{{100}, {10}, {300}, {20}, {250}};
  const auto buckets = make_buckets(items, {.cap_bytes = 1200, .first_cap_bytes = 1000});
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].members.size() == 1);  // 250 floats reach the first cap
  CHECK(buckets[0].members[0].item == 4);
  REQUIRE(buckets[1].members.size() == 2);
  CHECK(buckets[1].members[1].item == 2);
  CHECK(buckets[1].members[1].offset == 32);  // 20 floats, then the next 64-byte boundary
  CHECK(buckets[1].count == 32 + 304);
  CHECK(buckets[2].members.size() == 2);
}

TEST_CASE("an element type has buckets of its own") {
  const auto buckets = make_buckets({{8, DType::kFloat64}, {8, DType::kFloat32}, {8, DType::kFloat64}});
  REQUIRE(buckets.size() == 2);
  for (const Bucket& bucket : buckets) {
    CHECK(bucket.members.size() == (bucket.dtype == DType::kFloat64 ? 2u : 1u));
  }
}

TEST_CASE("leaves fold like a binary counter") {
  const FoldSchedule four = make_fold_schedule({0, 4}, 4);
  CHECK(four.partials == 1);
  CHECK(four.scratch == 1);
  REQUIRE(four.leaves.size() == 4);
  CHECK((four.leaves[0].array == 0 && !four.leaves[0].add));
  CHECK((four.leaves[1].array == 0 && four.leaves[1].add));
  CHECK((four.leaves[2].array == 1 && !four.leaves[2].add));
  CHECK((four.leaves[3].array == 1 && four.leaves[3].add));
  CHECK((four.leaves[3].after == std::vector<FoldStep>{{0, 1}}));
  CHECK(make_fold_schedule({0, 64}, 64).scratch == 5);
}

/// The sum of leaf values in the order that the tree defines.
double tree_sum(collectives::LeafInterval node, const std::vector<double>& values) {
  if (node.size() == 1) return values[static_cast<std::size_t>(node.begin)];
  const int middle = node.begin + collectives::split_point(node.size());
  return tree_sum({node.begin, middle}, values) + tree_sum({middle, node.end}, values);
}

TEST_CASE("for every interval of every tree the schedule's arrays hold the canonical nodes' sums") {
  for (int leaves = 1; leaves <= 13; ++leaves) {
    std::vector<double> values;
    for (int i = 0; i < leaves; ++i) values.push_back(1.0 / (3 + i * i));
    for (int begin = 0; begin < leaves; ++begin) {
      for (int end = begin + 1; end <= leaves; ++end) {
        const FoldSchedule schedule = make_fold_schedule({begin, end}, leaves);
        std::vector<double> arrays(static_cast<std::size_t>(schedule.partials + schedule.scratch), -1e9);
        for (int leaf = begin; leaf < end; ++leaf) {
          const LeafFold& fold = schedule.leaves[static_cast<std::size_t>(leaf - begin)];
          double& into = arrays[static_cast<std::size_t>(fold.array)];
          into = (fold.add ? into : 0.0) + values[static_cast<std::size_t>(leaf)];
          for (const FoldStep& step : fold.after) {
            arrays[static_cast<std::size_t>(step.into)] += arrays[static_cast<std::size_t>(step.from)];
          }
        }
        const auto nodes = collectives::canonical_nodes({begin, end}, leaves);
        for (std::size_t n = 0; n < nodes.size(); ++n) REQUIRE(arrays[n] == tree_sum(nodes[n], values));
      }
    }
  }
}

/// A net with a parameter that `forward` may leave out.
struct PartNetImpl : torch::nn::Module {
  PartNetImpl() {
    register_module("used", used);
    register_module("spare", spare);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return used->forward(x) + (with_spare ? spare->forward(x) : 0 * x.sum());
  }
  torch::nn::Linear used{16, 4}, spare{16, 4};
  bool with_spare = false;
};
TORCH_MODULE(PartNet);

struct PartJob {
  PartNet model() const { return PartNet(); }
  torch::optim::SGD optimizer(PartNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(PartNet& net, const data::Batch& batch) const {
    net->with_spare = batch.target[0].item<std::int64_t>() == 1;
    return net->forward(batch.input).square().mean();
  }
};

data::Batch part_batch(int leaf, bool with_spare) {
  data::Batch batch = small_batch(0, leaf);
  batch.target.fill_(with_spare ? 1 : 0);
  return batch;
}

TEST_CASE("unused parameters are an error that names them") {
  set_up_numerics();
  StepEngine engine(make_training_model(PartJob{}, 1), {.logical_ranks = 1});
  engine.attach(lone_group(1));
  const std::vector<LeafBatch> leaves{{0, part_batch(0, false)}};
  CHECK_THROWS_WITH(engine.run_step(0, leaves), Catch::Contains("spare.weight, spare.bias"));
}

TEST_CASE("with allow_unused a parameter that no leaf used keeps an undefined gradient") {
  set_up_numerics();
  StepEngine engine(make_training_model(PartJob{}, 1),
                    {.logical_ranks = 3, .reducer = {.allow_unused = true}});
  engine.attach(lone_group(3));
  const auto spare = engine.model().parameters()[2];
  REQUIRE(spare.name == "spare.weight");
  std::vector<LeafBatch> leaves;
  for (int leaf = 0; leaf < 3; ++leaf) leaves.push_back({leaf, part_batch(leaf, false)});
  engine.run_step(0, leaves);
  CHECK_FALSE(spare.tensor.grad().defined());
  engine.apply();

  leaves[1].batch = part_batch(1, true);
  engine.run_step(1, leaves);
  REQUIRE(spare.tensor.grad().defined());
  const torch::Tensor mean = spare.tensor.grad().clone();
  engine.apply();

  // The same leaf by itself, against a third of it.
  StepEngine alone(make_training_model(PartJob{}, 1),
                   {.logical_ranks = 1, .reducer = {.allow_unused = true}});
  alone.attach(lone_group(1));
  alone.run_step(0, std::vector<LeafBatch>{{0, part_batch(0, false)}});
  CHECK_FALSE(alone.model().parameters()[2].tensor.grad().defined());
  CHECK(mean.abs().sum().item<float>() > 0);
}

TEST_CASE("leaves that use different parameters still give one hash") {
  const auto body = [](auto group) {
    set_up_numerics();
    StepEngine engine(make_training_model(PartJob{}, 1),
                      {.logical_ranks = 3, .reducer = {.allow_unused = true}});
    engine.attach(group);
    for (std::uint64_t step = 0; step < 4; ++step) {
      engine.run_step(step, leaf_batches(*group, step, [](std::uint64_t s, int leaf) {
                        return part_batch(leaf, s != 0 && leaf != static_cast<int>(s) - 1);
                      }));
      engine.apply();
    }
    return engine.state().hash();
  };
  const auto one = fork_ranks(3, 1, body);
  CHECK(one[0].size() == 64);
  for (const int ranks : {2, 3}) {
    for (const std::string& hash : fork_ranks(3, ranks, body)) CHECK(hash == one[0]);
  }
}

TEST_CASE("gradients after a step are the mean over leaves, in memory that may be changed in place") {
  set_up_numerics();
  StepEngine engine(make_training_model(ConvJob{}, 3), {.logical_ranks = 2});
  engine.attach(lone_group(2));
  const std::vector<LeafBatch> leaves{{0, image_batch(0, 0, 4)}, {1, image_batch(0, 1, 4)}};
  engine.run_step(0, leaves);

  auto reference = make_training_model(ConvJob{}, 3);
  Leaf at({}, 0);
  (reference->loss(leaves[0].batch, at) / 2).backward();
  (reference->loss(leaves[1].batch, at) / 2).backward();
  const auto ours = engine.model().parameters();
  const auto theirs = reference->parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(ours[i].name);
    CHECK(torch::allclose(ours[i].tensor.grad(), theirs[i].tensor.grad(), 1e-4, 1e-6));
    CHECK(reinterpret_cast<std::uintptr_t>(ours[i].tensor.grad().data_ptr()) % kTensorAlignment_bytes == 0);
    ours[i].tensor.grad().mul_(0.5);
  }
  engine.apply();
}

TEST_CASE("from its second backward on a gradient is born in its slot") {
  set_up_numerics();
  torch::nn::Linear net(64, 64);
  // As many bytes as a gradient: what the backward makes on the way has the same size.
  const torch::Tensor input = torch::randn({64, 64});
  const torch::Tensor slot = torch::empty({64, 64});
  const std::vector<GradientPlacement::Slot> slots{{slot.data_ptr(), std::make_shared<torch::Tensor>(slot)}};
  GradientPlacement placement({slot.nbytes()});
  const auto gradient_of_a_backward = [&] {
    net->weight.mutable_grad() = torch::Tensor();
    const torch::Tensor loss = net->forward(torch::tanh(net->forward(input))).square().sum();
    placement.begin_backward(slots);
    loss.backward();
    placement.end_backward();
    return net->weight.grad();
  };
  const torch::Tensor first = gradient_of_a_backward();
  CHECK_FALSE(placement.landed(0, first));
  CHECK_FALSE(placement.occupied(0));
  {
    const torch::Tensor second = gradient_of_a_backward();
    CHECK(second.data_ptr() == slot.data_ptr());
    CHECK(placement.landed(0, second));
    CHECK(placement.occupied(0));
    CHECK(torch::equal(first, second));
    // Taken, so that the next goes elsewhere.
    CHECK(gradient_of_a_backward().data_ptr() != slot.data_ptr());
  }
  net->weight.mutable_grad() = torch::Tensor();
  CHECK_FALSE(placement.occupied(0));
}

/// Every tensor of its backward has the size of a weight, and the graph changes from step to step.
struct RestlessNetImpl : torch::nn::Module {
  RestlessNetImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 0; i < turns % 3; ++i) x = torch::tanh(a->forward(x));
    return a->forward(torch::tanh(b->forward(x)));
  }
  torch::nn::Linear a{64, 64}, b{64, 64};
  int turns = 0;
};
TORCH_MODULE(RestlessNet);

struct RestlessJob {
  RestlessNet model() const { return RestlessNet(); }
  torch::optim::SGD optimizer(RestlessNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  }
  torch::Tensor loss(RestlessNet& net, const data::Batch& batch) const {
    net->turns = static_cast<int>(batch.target[0].item<std::int64_t>());
    return net->forward(batch.input).square().mean();
  }
};

data::Batch restless_batch(std::uint64_t step, int leaf, bool restless) {
  data::Batch batch{
      torch::sin(torch::arange(64 * 64) * (1.0 + static_cast<double>(step) + leaf)).reshape({64, 64}),
      torch::zeros({64}, torch::kInt64)};
  if (restless) batch.target.fill_(static_cast<std::int64_t>(step * step + static_cast<std::uint64_t>(leaf)));
  return batch;
}

TEST_CASE("placing gradients changes no bit, also where the graph changes from step to step") {
  const bool restless = GENERATE(false, true);
  CAPTURE(restless);
  const auto hash_with = [&](bool place) {
    set_up_numerics();
    StepEngine engine(make_training_model(RestlessJob{}, 5),
                      {.logical_ranks = 5, .reducer = {.place_gradients = place}});
    const auto group = lone_group(5);
    engine.attach(group);
    for (std::uint64_t step = 0; step < 12; ++step) {
      engine.run_step(step, leaf_batches(*group, step, [&](std::uint64_t s, int leaf) {
                        return restless_batch(s, leaf, restless);
                      }));
      engine.apply();
    }
    return engine.state().hash();
  };
  CHECK(hash_with(true) == hash_with(false));
}

TEST_CASE("a step that nobody can reduce is refused") {
  set_up_numerics();
  StepEngine engine(make_training_model(ConvJob{}, 3), {.logical_ranks = 2});
  CHECK_THROWS_AS(engine.attach(lone_group(3)), BadConfig);
}

}  // namespace
}  // namespace troupe::train::testing
