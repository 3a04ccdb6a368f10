// A tied weight, one tensor in two submodules, is one parameter.
#include <catch2/catch.hpp>

#include "actors/train/engine/numerics.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

constexpr std::uint64_t kSteps = 4;
constexpr double kScale = 1024;

/// A linear layer whose weight somebody else may have, too.
struct PieceImpl : torch::nn::Module {
  explicit PieceImpl(const torch::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::zeros({16}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias).tanh(); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(Piece);

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("a", a);
    register_module("b", b);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(b(a(x))); }
  torch::Tensor shared = torch::randn({16, 16});
  Piece a{shared}, b{shared};
  torch::nn::Linear out{16, 4};
};
TORCH_MODULE(Tied);

std::vector<torch::Tensor> each_once(const Tied& net) {
  return {net->a->weight, net->a->bias, net->b->bias, net->out->weight, net->out->bias};
}

double tokens_of(std::uint64_t step, int leaf) {
  return static_cast<double>(1 + (step + 2 * static_cast<std::uint64_t>(leaf)) % 4);
}

struct TiedJob {
  bool as_listed = true;  ///< the optimizer's parameters are net->parameters(), which has the tied one twice
  bool weighted = false;
  bool scaled = false;
  double max_norm = 0;
  double max_value = 0;

  Tied model() const { return Tied(); }
  torch::optim::SGD optimizer(Tied& net) const {
    return torch::optim::SGD(as_listed ? net->parameters() : each_once(net),
                             torch::optim::SGDOptions(0.2).momentum(0.9));
  }
  torch::Tensor loss(Tied& net, const data::Batch& batch, Leaf& at) const {
    if (weighted) at.weight(tokens_of(static_cast<std::uint64_t>(at.step), at.rank));
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void apply(Apply& a) const {
    if (max_norm > 0) a.clip_grad_norm(max_norm);
    if (max_value > 0) a.clip_grad_value(max_value);
    a.step();
  }
  Precision precision() const {
    if (scaled) return {.scaler = GradScalerOptions{.init_scale = kScale, .growth_interval = 100}};
    return {};
  }
};

/// Four steps of two leaves by the engine. In the second a copy of the state computes, too.
void train(StepEngine& engine, const std::shared_ptr<collectives::ProcessGroup>& group, const TiedJob& job) {
  engine.attach(group);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (step == 1) engine.rehearse(make_training_model(job, kSeed));
    engine.run_step(step, leaf_batches(*group, step, small));
    engine.apply(false, job.weighted ? tokens_of(step, 0) + tokens_of(step, 1) : 0);
  }
}

/// The same in a loop that knows nothing of the engine.
Tied plain_loop(const TiedJob& job) {
  seed_initial_weights(kSeed);
  Tied net = job.model();
  torch::optim::SGD optimizer = job.optimizer(net);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (const int leaf : {0, 1}) {
      const data::Batch batch = small(step, leaf);
      const double share =
          job.weighted ? tokens_of(step, leaf) / (tokens_of(step, 0) + tokens_of(step, 1)) : 0.5;
      (torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target) * share).backward();
    }
    if (job.max_norm > 0) torch::nn::utils::clip_grad_norm_(each_once(net), job.max_norm);
    if (job.max_value > 0) torch::nn::utils::clip_grad_value_(each_once(net), job.max_value);
    optimizer.step();
  }
  return net;
}

// Was: net->parameters() refused, though LibTorch itself lists a tied weight twice; without it "parameters
// without a gradient: b.weight", and with the option that this advised the gradient was unscaled, divided by
// the sum of weights, and counted in the norm twice, in silence.
TEST_CASE("tied weights train as in a plain LibTorch loop") {
  TiedJob job;
  job.as_listed = GENERATE(true, false);
  SECTION("plain") {}
  SECTION("weights of leaves") {
    job.weighted = true;
  }
  SECTION("a loss scale") {
    job.scaled = true;
  }
  SECTION("the norm clipped") {
    job.max_norm = 0.1;
  }
  SECTION("values clipped") {
    job.max_value = 0.01;
  }
  SECTION("all of it") {
    job = {job.as_listed, true, true, 0.3, 0.05};
  }
  CAPTURE(job.as_listed);
  const auto engine_owner = engine_for(job, 2);
  StepEngine& engine = *engine_owner;
  train(engine, lone_group(2), job);
  Tied expected = plain_loop(job);
  const std::vector<torch::Tensor> weights = each_once(expected);
  const std::vector<NamedTensor> trained = engine.model().parameters();
  REQUIRE(trained.size() == weights.size());
  CHECK(trained[0].name == "a.weight");
  CHECK(trained[2].name == "b.bias");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    CAPTURE(trained[i].name);
    CHECK(torch::allclose(trained[i].tensor, weights[i], 1e-5, 1e-6));
  }
}

TEST_CASE("a state with tied weights has them once, goes round, and is one for every dealing") {
  const TiedJob job{.weighted = true, .max_norm = 0.5};
  const auto body = [&](auto group) {
    const auto engine_owner = engine_for(job, 2);
    StepEngine& engine = *engine_owner;
    train(engine, group, job);
    StepEngine fresh(make_training_model(job, 99), {.logical_ranks = 2, .seed = kSeed});
    const StateView view = engine.state().view();
    std::string names;
    for (const StatePart& part : view.parts) names += part.name + " ";
    fresh.state().install(view.parts).value();
    return engine.state().hash() == fresh.state().hash() ? engine.state().hash() + " " + names : "differs";
  };
  const auto alone = fork_ranks(2, 1, body);
  CHECK_THAT(alone[0], Catch::Contains(" a.weight a.bias b.bias out.weight ") &&
                           Catch::Contains(" optimizer/a.weight/momentum_buffer ") &&
                           !Catch::Contains("b.weight"));
  for (const std::string& said : fork_ranks(2, 2, body)) CHECK(said == alone[0]);
}

/// Two modules of one job share a weight.
struct AcrossModules {
  struct Nets {
    Piece maker{nullptr}, judge{nullptr};
  };
  Nets setup(Setup& s) const {
    const torch::Tensor shared = torch::randn({16, 16});
    Nets nets{s.module("maker", Piece(shared)), s.module("judge", Piece(shared))};
    std::vector<torch::Tensor> all = nets.maker->parameters();
    all.push_back(twice_in_one ? nets.maker->bias : nets.judge->weight);
    if (!in_two) s.optimizer<torch::optim::SGD>("all", all, torch::optim::SGDOptions(0.1));
    if (in_two) {
      s.optimizer<torch::optim::SGD>("maker", nets.maker->parameters(), torch::optim::SGDOptions(0.1));
      s.optimizer<torch::optim::SGD>("judge", nets.judge->parameters(), torch::optim::SGDOptions(0.1));
    }
    return nets;
  }
  torch::Tensor loss(Nets& nets, const data::Batch& batch) const {
    return nets.judge->forward(nets.maker->forward(batch.input)).square().mean();
  }
  bool in_two = false;        ///< two optimizers have it
  bool twice_in_one = false;  ///< one has a parameter twice that is in one module alone
};

TEST_CASE("a weight of two modules has the first one's name; two optimizers that step it are told which") {
  set_up_numerics();
  const auto model = make_training_model(AcrossModules{}, kSeed);
  std::string names;
  for (const NamedTensor& one : model->parameters()) names += one.name + " ";
  CHECK(names == "maker.weight maker.bias judge.bias ");
  CHECK_THROWS_WITH(make_training_model(AcrossModules{.in_two = true}, kSeed),
                    Catch::Contains("have the same parameter") && Catch::Contains("maker.weight"));
  CHECK_THROWS_WITH(make_training_model(AcrossModules{.twice_in_one = true}, kSeed),
                    Catch::Contains("have the same parameter") && Catch::Contains("maker.bias"));
}

}  // namespace
}  // namespace troupe::train::testing
