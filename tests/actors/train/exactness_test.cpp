// The promise: for a config and seed the same bits, however leaves are dealt, and after a step that was
// aborted.
#include <catch2/catch.hpp>
#include <sstream>

#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

/// Trains `steps` steps and returns the state's hash.
std::string train(StepEngine& engine, const std::shared_ptr<collectives::ProcessGroup>& group,
                  std::uint64_t first, std::uint64_t steps, const BatchOf& batch) {
  engine.attach(group);
  for (std::uint64_t step = first; step < first + steps; ++step) {
    engine.run_step(step, leaf_batches(*group, step, batch));
    engine.apply(/*ends_epoch=*/step % 8 == 7);
  }
  return engine.state().hash();
}

TEST_CASE("twenty steps end with one hash for every dealing of leaves over ranks") {
  const int leaves = GENERATE(3, 4, 5);
  ReducerOptions reducer;
  reducer.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};  // several buckets in a small net
  std::string expected;
  for (int ranks = 1; ranks <= leaves; ++ranks) {
    CAPTURE(leaves, ranks);
    const auto hashes = fork_ranks(leaves, ranks, [&](auto group) {
      auto engine = engine_for(SmallJob{}, leaves, reducer);
      return train(*engine, group, 0, 20, small);
    });
    if (expected.empty()) expected = hashes[0];
    CHECK(expected.size() == 64);
    for (const std::string& hash : hashes) CHECK(hash == expected);
  }
}

TEST_CASE("a dealing that cuts across subtrees gives the same bits") {
  const auto body = [](auto group) {
    auto engine = engine_for(SmallJob{}, 8);
    return train(*engine, group, 0, 5, small);
  };
  const auto even = fork_ranks(8, 1, body);
  for (const std::string& hash : fork_ranks({{0, 3}, {3, 7}, {7, 8}}, body)) CHECK(hash == even[0]);
  for (const std::string& hash : fork_ranks({{0, 1}, {1, 8}}, body)) CHECK(hash == even[0]);
}

TEST_CASE("the ConvNet too, with BatchNorm and momentum") {
  const auto body = [](auto group) {
    auto engine = engine_for(ConvJob{}, 4);
    return train(*engine, group, 0, 4,
                 [](std::uint64_t step, int leaf) { return image_batch(static_cast<int>(step), leaf, 5); });
  };
  const auto one = fork_ranks(4, 1, body);
  CHECK(one[0].size() == 64);
  for (const int ranks : {2, 3, 4}) {
    for (const std::string& hash : fork_ranks(4, ranks, body)) CHECK(hash == one[0]);
  }
}

TEST_CASE("the seed decides, and so does the step") {
  const auto hash_with = [](std::uint64_t seed, std::uint64_t first) {
    set_up_numerics();
    StepEngine engine(make_training_model(SmallJob{}, kSeed), {.logical_ranks = 2, .seed = seed});
    return train(engine, lone_group(2), first, 1,
                 [](std::uint64_t, int leaf) { return small_batch(0, leaf); });
  };
  CHECK(hash_with(1, 0) == hash_with(1, 0));
  CHECK(hash_with(1, 0) != hash_with(2, 0));
  CHECK(hash_with(1, 0) != hash_with(1, 1));  // other dropout masks
}

/// Runs one step; at the leaf `abort_at` the group is aborted first.
void run_step_aborting(StepEngine& engine, collectives::ProcessGroup& group, std::uint64_t step,
                       int abort_at) {
  engine.begin_step(step);
  for (const LeafBatch& leaf : leaf_batches(group, step, small)) {
    if (leaf.leaf == abort_at) group.abort("a test ends this group");
    engine.run_leaf(leaf);
  }
  engine.finish_step();
}

TEST_CASE("an aborted step leaves the state untouched, and the step runs again with the same bits") {
  const int leaves = 4;
  const auto undisturbed = fork_ranks(leaves, 1, [](auto group) {
    auto engine = engine_for(SmallJob{}, leaves);
    return train(*engine, group, 0, 6, small);
  });
  // Rank 1 aborts the group at a leaf of step 3. Each rank then goes on alone, from the step that it was in:
  // rank 0 may still have been waiting for step 2, whose last bucket rank 1 had seen complete.
  const int at_leaf = GENERATE(2, 3);
  const auto disturbed = fork_ranks(leaves, 2, [&](auto group) -> std::string {
    auto engine = engine_for(SmallJob{}, leaves);
    engine->attach(group);
    int aborted = 0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      const std::string before = engine->state().hash();
      try {
        run_step_aborting(*engine, *group, step, step == 3 && aborted == 0 ? at_leaf : -1);
      } catch (const CollectiveAborted&) {
        ++aborted;
        if (engine->state().hash() != before) return "the aborted step changed the state";
        group = lone_group(leaves);
        engine->attach(group);
        run_step_aborting(*engine, *group, step, -1);
      }
      engine->apply(/*ends_epoch=*/step % 8 == 7);
    }
    return aborted == 1 ? engine->state().hash() : "no step was aborted";
  });
  CAPTURE(at_leaf);
  for (const std::string& hash : disturbed) CHECK(hash == undisturbed[0]);
}

/// Three layers that say how far a leaf has come.
struct ChainNetImpl : torch::nn::Module {
  ChainNetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }
  torch::Tensor forward(const torch::Tensor& x) { return third->forward(second->forward(first->forward(x))); }
  torch::nn::Linear first{16, 8}, second{8, 8}, third{8, 4};
};
TORCH_MODULE(ChainNet);

struct ChainJob {
  static inline std::function<void(const std::string&)> came_to;

  ChainNet model() const { return ChainNet(); }
  torch::optim::SGD optimizer(ChainNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(ChainNet& net, const data::Batch& batch) const {
    const auto low = net->first->forward(batch.input), high = net->second->forward(low);
    low.register_hook([](const torch::Tensor&) { came_to("low gradient"); });
    high.register_hook([](const torch::Tensor&) { came_to("high gradient"); });
    came_to("forward");
    return net->third->forward(high).square().mean();
  }
};

TEST_CASE("a leaf whose group is aborted ends after its forward, or at the next gradient") {
  const std::string moment = GENERATE("forward", "high gradient");
  auto engine = engine_for(ChainJob{}, 1);
  auto group = lone_group(1);
  engine->attach(group);
  std::string last;
  ChainJob::came_to = [&](const std::string& here) {
    last = here;
    if (here == moment) group->abort("a test ends this group");
  };
  const std::string before = engine->state().hash();
  CHECK_THROWS_AS(engine->run_step(0, leaf_batches(*group, 0, small)), CollectiveAborted);
  CHECK(last == moment);
  CHECK(engine->state().hash() == before);

  ChainJob::came_to = [](const std::string&) {};
  auto undisturbed = engine_for(ChainJob{}, 1);
  for (StepEngine* one : {engine.get(), undisturbed.get()}) {
    group = lone_group(1);
    one->attach(group);
    one->run_step(0, leaf_batches(*group, 0, small));
    one->apply();
  }
  CHECK(engine->state().hash() == undisturbed->state().hash());
}

TEST_CASE("what user code throws reaches the peers at once and leaves the state alone") {
  const auto results = fork_ranks(2, 2, [](auto group) -> std::string {
    auto engine = engine_for(SmallJob{}, 2);
    const std::string before = train(*engine, group, 0, 2, small);
    std::string what;
    try {
      auto batches = leaf_batches(*group, 2, small);
      // The loss throws, when the forward has already moved BatchNorm's statistics.
      if (group->rank() == 1) batches[0].batch.target.fill_(99);
      engine->run_step(2, batches);
    } catch (const std::exception& error) {
      what = error.what();
    }
    return engine->state().hash() == before ? what : "the state changed";
  });
  CHECK(results[0].find("rank 1 failed in step 2") != std::string::npos);
  CHECK(results[1].find("out of bounds") != std::string::npos);
}

/// Draws in its loss, which serves the evaluation, too: noise, and dropout that does not ask for the mode.
struct DrawingJob : SmallJob {
  torch::Tensor loss(SmallNet& net, const data::Batch& batch, Leaf& at) const {
    at.count("drawn", at.random.uniform(), 1);
    const torch::Tensor input = torch::dropout(batch.input + 0.1 * torch::rand(16), 0.5, true);
    return torch::nn::functional::cross_entropy(net->forward(input), batch.target);
  }
};

// Was: pieces of the test set drew on from wherever the trainer's generator stood, so test figures, and with
// early stopping the weights, depended on the number of trainers.
TEST_CASE("figures of a piece that draws depend on the piece and the epoch, not on what ran before it") {
  auto engine = engine_for(DrawingJob{}, 2);
  const auto figures = [&](int piece, int epoch) {
    return engine->evaluate(piece, epoch, small_batch(9, piece));
  };
  std::vector<std::vector<Figure>> alone;  // one trainer evaluates all
  for (const int piece : {0, 1, 2, 3}) alone.push_back(figures(piece, 1));
  torch::manual_seed(3);
  for (const int piece : {2, 3, 0}) CHECK((figures(piece, 1) == alone[piece]));
  const auto other_epoch = figures(0, 2);
  const auto other_piece = engine->evaluate(1, 1, small_batch(9, 0));
  for (std::size_t i = 0; i < alone[0].size(); ++i) {
    CAPTURE(alone[0][i].name);
    if (alone[0][i].name == "accuracy") continue;  // a whole number, which may be the same
    CHECK(other_epoch[i].sum != alone[0][i].sum);
    CHECK(other_piece[i].sum != alone[0][i].sum);
  }
}

TEST_CASE("what was reduced and not applied is given up by the next step") {
  auto engine = engine_for(SmallJob{}, 2);
  auto twice = engine_for(SmallJob{}, 2);
  const auto group = lone_group(2);
  const auto other = lone_group(2);
  engine->attach(group);
  twice->attach(other);
  engine->run_step(0, leaf_batches(*group, 0, small));
  engine->apply();
  twice->run_step(0, leaf_batches(*other, 0, small));
  twice->run_step(0, leaf_batches(*other, 0, small));
  twice->apply();
  CHECK(engine->state().hash() == twice->state().hash());
}

}  // namespace
}  // namespace troupe::train::testing
