// What loss() may change of the state, and what it may not: the same bits however leaves are dealt, and after
// a step that was aborted.
#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>

#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

/// Computes by a counter of its forwards, a random stream of its own and statistics.
struct NoisyNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor noisy = x + 0.1 * torch::rand({16}, generator);
    seen += 1;  // no gradient goes there
    return out(norm(in(noisy))) / (static_cast<double>(++calls) + temperature);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 4));
  torch::Tensor seen = register_buffer("seen", torch::zeros({}, torch::kLong));
  torch::Tensor temperature = register_buffer("temperature", torch::ones({}));
  at::Generator generator = at::detail::createCPUGenerator(5);
  std::int64_t calls = 0;
};
TORCH_MODULE(NoisyNet);

struct NoisyJob {
  bool cools = false;
  mutable torch::Tensor temperature{};  ///< the net's

  NoisyNet model() const {
    NoisyNet net;
    temperature = net->temperature;
    return net;
  }
  torch::optim::SGD optimizer(NoisyNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(NoisyNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void apply(Apply& a) const {
    a.step();
    const torch::NoGradGuard no_grad;
    if (cools) temperature.mul_(0.75);
  }
  void state(StateRegistry& state, NoisyNet& net, torch::optim::SGD&) const {
    state.add("calls", net->calls);
    state.add("noise", net->generator);
  }
};

/// Six steps. Where `aborts_in` is one of this rank's leaves, the group is aborted there in the fourth, which
/// each rank then computes alone, as it does the others. The hash.
template <class Job>
std::string train_noisy(const Job& job, int leaves, std::shared_ptr<collectives::ProcessGroup> group,
                        int aborts_in = -1, bool rehearses = false) {
  const auto engine = engine_for(job, leaves);
  engine->attach(group);
  bool alone = aborts_in < 0;
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (bool done = false; !done;) {
      if (rehearses && step == 4) engine->rehearse(make_training_model(job, kSeed));
      engine->begin_step(step);
      try {
        for (const LeafBatch& leaf : leaf_batches(*group, step, small)) {
          if (!alone && step == 3 && leaf.leaf == aborts_in) group->abort("a test ends this group");
          engine->run_leaf(leaf);
        }
        engine->finish_step();
        done = true;
      } catch (const CollectiveAborted&) {
        alone = true;
        group = lone_group(leaves);
        engine->attach(group);
      }
    }
    engine->apply();
  }
  return alone ? engine->state().hash() : "no step was aborted";
}

// A counter of forwards and a stream moved with each leaf that a trainer had, so one trainer of three leaves
// and three trainers ended otherwise.
TEST_CASE("numbers and streams that a loss moves do not depend on how leaves are dealt") {
  const auto alone = fork_ranks(3, 1, [](auto group) { return train_noisy(NoisyJob{}, 3, group); });
  REQUIRE(alone[0].size() == 64);
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    // A rehearsal of another leaf than the first takes the step's.
    const auto body = [](auto group) { return train_noisy(NoisyJob{}, 3, group, -1, true); };
    for (const std::string& hash : fork_ranks(3, ranks, body)) CHECK(hash == alone[0]);
  }
}

// A survivor that waited in the reduction had moved them, and moved them again when the step ran again.
TEST_CASE("an aborted step puts numbers and streams back, and gives the same bits") {
  const auto undisturbed = fork_ranks(2, 1, [](auto group) { return train_noisy(NoisyJob{}, 2, group); });
  for (const std::string& hash :
       fork_ranks(2, 2, [](auto group) { return train_noisy(NoisyJob{}, 2, group, /*aborts_in=*/1); })) {
    CHECK(hash == undisturbed[0]);
  }
}

TEST_CASE("an evaluation leaves buffers, numbers and streams that its loss changes alone") {
  const auto engine = engine_for(NoisyJob{}, 1);
  const std::string before = engine->state().hash();
  const auto first = engine->evaluate(0, 0, small(0, 0));
  CHECK((engine->evaluate(0, 0, small(0, 0)) == first));
  CHECK(engine->state().hash() == before);
}

// Leaf 0's buffers came behind the job's apply, and took back what it had done to them: a rehearsal said that
// the state lacked something, and without one it was lost.
TEST_CASE("a buffer that the job changes in apply() stays changed") {
  const auto cools = [](auto group, bool rehearses) {
    return train_noisy(NoisyJob{true}, 2, group, -1, rehearses);
  };
  const auto plain = fork_ranks(2, 1, [&](auto group) { return cools(group, false); });
  CHECK(plain[0].size() == 64);
  for (const int ranks : {1, 2}) {
    const auto body = [&](auto group) { return cools(group, true); };
    for (const std::string& hash : fork_ranks(2, ranks, body)) CHECK(hash == plain[0]);
  }
  set_up_numerics();
  for (const bool pieces : {false, true}) {
    EngineOptions options{.logical_ranks = 1, .seed = kSeed};
    if (pieces) options.shard_parameters = FsdpOptions{.min_num_params = 50};
    StepEngine engine(make_training_model(NoisyJob{true}, kSeed), options);
    const auto group = lone_group(1);
    engine.attach(group);
    for (std::uint64_t step = 0; step < 2; ++step) {
      engine.run_step(step, leaf_batches(*group, step, small));
      engine.apply();
    }
    for (const NamedTensor& buffer : engine.model().buffers()) {
      if (buffer.name == "temperature") CHECK(buffer.tensor.item<double>() == 0.5625);
    }
  }
}

/// Changes in its loss what the test says.
struct ChangingJob {
  struct NetImpl : torch::nn::Module {
    torch::nn::Linear fc = register_module("fc", torch::nn::Linear(16, 4));
    torch::Tensor mean = torch::zeros({16});
    torch::Tensor seen = register_buffer("seen", torch::zeros({}));
    std::vector<std::byte> bytes{std::byte{1}};
  };
  std::string changes;

  struct Holder : torch::nn::ModuleHolder<NetImpl> {
    using torch::nn::ModuleHolder<NetImpl>::ModuleHolder;
  };
  Holder model() const { return Holder(); }
  torch::optim::SGD optimizer(Holder& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(Holder& net, const data::Batch& batch) const {
    const torch::NoGradGuard no_grad;
    if (changes == "a tensor") net->mean.add_(batch.input.mean(0));
    if (changes == "a buffer") net->seen.add_(1);
    if (changes == "bytes") net->bytes.push_back(std::byte{2});
    if (changes == "the batch") batch.input.view({-1}).mul_(2);
    const torch::AutoGradMode grad(true);
    return torch::nn::functional::cross_entropy(net->fc(batch.input), batch.target);
  }
  void state(StateRegistry& state, Holder& net, torch::optim::SGD&) const {
    state.add("mean", net->mean);
    state.add("seen", net->seen);  // which is in the state already
    const auto of = net.ptr();
    state.add(
        "bytes", [of] { return of->bytes; },
        [of](std::span<const std::byte> bytes) { of->bytes.assign(bytes.begin(), bytes.end()); });
  }
};

template <class Body>
std::string refusal_of(const std::string& changes, const Body& body) {
  const ChangingJob job{changes};
  const auto engine = engine_for(job, 1);
  const auto group = lone_group(1);
  engine->attach(group);
  engine->rehearse(make_training_model(job, kSeed));
  try {
    body(*engine, *group);
  } catch (const BadConfig& error) {
    return error.what();
  }
  return "none";
}

// A step that ran again had them changed twice: another result, and nobody said so.
TEST_CASE("a loss that changes tensors or bytes of its state, or its batch, is refused") {
  const auto step = [](StepEngine& engine, collectives::ProcessGroup& group) {
    engine.run_step(0, leaf_batches(group, 0, small));
    engine.apply();
  };
  CHECK(refusal_of("nothing", step) == "none");
  CHECK(refusal_of("a buffer", step) == "none");
  CHECK_THAT(refusal_of("a tensor", step),
             Catch::Contains("tensors of its state() in loss") && Catch::Contains("register_buffer"));
  CHECK_THAT(refusal_of("bytes", step), Catch::Contains("bytes of its state() in loss"));
  CHECK_THAT(refusal_of("the batch", step),
             Catch::Contains("a batch in place in loss") && Catch::Contains("clone()"));
  const auto piece = [](StepEngine& engine, collectives::ProcessGroup&) {
    engine.evaluate(0, 0, small(0, 0));
  };
  CHECK(refusal_of("nothing", piece) == "none");
  CHECK_THAT(refusal_of("the batch", piece), Catch::Contains("a batch in place in loss"));
}

}  // namespace
}  // namespace troupe::train::testing
