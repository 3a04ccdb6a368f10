// What a job's struct may say beyond a model, an optimizer and a loss.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "actors/ddp/sync_batch_norm.hpp"
#include "actors/train/engine/numerics.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

/// Two nets that train in turns, with an optimizer each, one of them on a schedule.
struct TwoNets {
  struct Nets {
    torch::nn::Linear maker{nullptr}, judge{nullptr};
  };
  Nets setup(Setup& s) const {
    Nets nets{s.module("maker", torch::nn::Linear(16, 16)), s.module("judge", torch::nn::Linear(16, 1))};
    auto& adam =
        s.optimizer<torch::optim::Adam>("maker", nets.maker->parameters(), torch::optim::AdamOptions(0.01));
    s.scheduler<LambdaLR>(adam, Every::kStep, [](std::int64_t steps) { return 1.0 / (1.0 + steps); });
    s.optimizer<torch::optim::SGD>("judge", nets.judge->parameters(),
                                   torch::optim::SGDOptions(0.01).momentum(0.9));
    return nets;
  }
  torch::Tensor loss(Nets& nets, const data::Batch& batch, Leaf& at) const {
    const bool judges = at.step % 2 == 0;
    const torch::Tensor made = nets.maker->forward(torch::randn({batch.size(), 16}));
    const torch::Tensor real = nets.judge->forward(batch.input).sigmoid();
    const torch::Tensor fake = nets.judge->forward(judges ? made.detach() : made).sigmoid();
    at.count("fooled", (fake > 0.5).sum(), static_cast<double>(batch.size()));
    return judges ? (1 - real).square().mean() + fake.square().mean() : (1 - fake).square().mean();
  }
  void apply(Apply& a) const {
    a.grad_norm();
    a.count("judges", a.step_number % 2 == 0 ? 1 : 0);
    a.step(a.step_number % 2 == 0 ? "judge" : "maker");
  }
};

const ReducerOptions kAllowUnused{.allow_unused = true};

TEST_CASE("two nets that train in turns end with one hash for every dealing, and every part has a name") {
  const auto body = [](auto group) {
    const auto engine_owner = engine_for(TwoNets{}, 4, kAllowUnused);
    StepEngine& engine = *engine_owner;
    engine.attach(group);
    std::string names;
    for (std::uint64_t step = 0; step < 6; ++step) {
      engine.run_step(step, leaf_batches(*group, step, small));
      for (const auto& [name, value] : engine.apply()) names += name + "=" + std::to_string(value) + " ";
    }
    for (const auto& part : engine.state().view().parts) names += part.name + " ";
    return engine.state().hash() + " " + names;
  };
  const auto alone = fork_ranks(4, 1, body);
  REQUIRE(alone[0].size() > 64);
  CHECK(alone[0].find(" maker.weight maker.bias judge.weight judge.bias ") != std::string::npos);
  CHECK(alone[0].find(" optimizer[maker]/maker.weight/exp_avg ") != std::string::npos);
  CHECK(alone[0].find(" optimizer[judge]/judge.bias/momentum_buffer ") != std::string::npos);
  CHECK(alone[0].find(" optimizer[judge]/maker.") == std::string::npos);
  CHECK(alone[0].find(" scheduler[maker]/steps ") != std::string::npos);
  // Of each step: the rates that it was made with, the norm of its gradients, and what it counted.
  CHECK(alone[0].find(" judges=1.000000 learning_rate/judge=0.010000 learning_rate/maker=0.010000 ") !=
        std::string::npos);
  CHECK(alone[0].find(" judges=0.000000 learning_rate/judge=0.010000 learning_rate/maker=0.005000 ") !=
        std::string::npos);
  CHECK(alone[0].find(" gradient_norm=") != std::string::npos);
  for (const int ranks : {2, 3}) {
    for (const std::string& seen : fork_ranks(4, ranks, body)) CHECK(seen == alone[0]);
  }
}

TEST_CASE("a state of several optimizers goes round, and the next steps are the same") {
  const auto trained_owner = engine_for(TwoNets{}, 1, kAllowUnused);
  StepEngine& trained = *trained_owner;
  const auto group = lone_group(1);
  trained.attach(group);
  const auto step = [](StepEngine& engine, const auto& in, std::uint64_t number) {
    engine.run_step(number, leaf_batches(*in, number, small));
    engine.apply();
  };
  for (std::uint64_t s = 0; s < 4; ++s) step(trained, group, s);
  set_up_numerics();
  StepEngine fresh(make_training_model(TwoNets{}, 99),
                   {.logical_ranks = 1, .seed = kSeed, .reducer = {.allow_unused = true}});
  const StateView view = trained.state().view();
  fresh.state().install(view.parts).value();
  const auto other = lone_group(1);
  fresh.attach(other);
  for (std::uint64_t s = 4; s < 8; ++s) {
    step(trained, group, s);
    step(fresh, other, s);
  }
  CHECK(fresh.state().hash() == trained.state().hash());
}

// The others stood still while a newcomer got the state: now it takes their reduced gradients beside the
// steps.
TEST_CASE("a trainer that follows another one's steps without its leaves comes to the same bits") {
  const auto source_owner = engine_for(SmallJob{}, 2);
  StepEngine& source = *source_owner;
  const auto group = lone_group(2);
  source.attach(group);
  const auto compute = [&](std::uint64_t number) {
    source.run_step(number, leaf_batches(*group, number, small));
  };
  for (std::uint64_t s = 0; s < 3; ++s) {
    compute(s);
    source.apply(s % 2 == 1);
  }
  StepEngine follower(make_training_model(SmallJob{}, 99), {.logical_ranks = 2, .seed = kSeed});
  {
    const StateView view = source.state().view();
    follower.state().install(view.parts).value();
  }
  for (std::uint64_t s = 3; s < 7; ++s) {
    compute(s);
    const auto record = source.record();
    source.apply(s % 2 == 1);
    follower.take(s, 0, record);
    follower.apply(s % 2 == 1);
    CHECK(follower.state().hash() == source.state().hash());
    CHECK_THROWS_AS(follower.take(s, 0, std::span(record).first(record.size() - 1)), Error);
  }
  // And computes on.
  follower.attach(lone_group(2));
  compute(7);
  source.apply();
  follower.run_step(7, leaf_batches(*group, 7, small));
  follower.apply();
  CHECK(follower.state().hash() == source.state().hash());
}

/// Every leaf's gradient of `w` is its batch's first target.
struct Shares {
  struct NetImpl : torch::nn::Module {
    NetImpl() { w = register_parameter("w", torch::zeros({1})); }
    torch::Tensor w;
  };
  TORCH_MODULE(Net);
  Net model() const { return Net(); }
  torch::optim::SGD optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(1.0));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch, Leaf& at) const {
    if (weighted) at.weight(static_cast<double>(batch.target[0].item<std::int64_t>()));
    return (net->w * batch.target[0]).sum();
  }
  void apply(Apply& a) const {
    if (clip > 0) norm_seen = a.clip_grad_norm(clip);
    if (skip) a.skip_if_not_finite();
    a.step();
  }
  bool weighted = false;
  double clip = 0;
  bool skip = false;
  inline static double norm_seen = 0;
};

data::Batch target_batch(double target) {
  return {torch::zeros({1, 1}),
          torch::full({1}, target, std::isfinite(target) ? torch::kLong : torch::kFloat)};
}

double w_after(const Shares& job, std::vector<double> targets, double total_weight) {
  const auto engine_owner = engine_for(job, static_cast<int>(targets.size()));
  StepEngine& engine = *engine_owner;
  engine.attach(lone_group(static_cast<int>(targets.size())));
  std::vector<LeafBatch> leaves;
  for (std::size_t i = 0; i < targets.size(); ++i)
    leaves.push_back({static_cast<int>(i), target_batch(targets[i])});
  engine.run_step(0, leaves);
  engine.apply(false, total_weight);
  return engine.model().parameters()[0].tensor.item<double>();
}

TEST_CASE("leaves count alike, or by the weights that the job gives them") {
  CHECK(w_after({}, {1, 3}, 0) == -2);  // the mean of 1 and 3
  CHECK(w_after({.weighted = true}, {1, 3}, 4) == -(1 * 1 + 3 * 3) / 4.0);
}

TEST_CASE("a weight that is no share is refused") {
  CHECK_THROWS_WITH(w_after({.weighted = true}, {-1, 3}, 2), Catch::Contains("a leaf's weight is -1"));
}

TEST_CASE("apply: the norm of the mean gradient is clipped; a step that is not finite is left out") {
  CHECK(std::abs(w_after({.clip = 0.5}, {1, 3}, 0) + 0.5) < 1e-5);
  CHECK(Shares::norm_seen == Approx(2));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(w_after({}, {nan, 3}, 0)));
  CHECK(w_after({.skip = true}, {nan, 3}, 0) == 0);
}

TEST_CASE("LambdaLR: the rate of step k is the job's times factor(k), as in PyTorch") {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(8));
  LambdaLR scheduler(sgd, [](std::int64_t steps) { return std::pow(0.5, static_cast<double>(steps)); });
  std::vector<double> rates;
  for (int step = 0; step < 4; ++step, scheduler.step())
    rates.push_back(sgd.param_groups()[0].options().get_lr());
  CHECK(rates == std::vector<double>{8, 4, 2, 1});
}

/// A net with a part that the job froze in evaluation mode.
struct Frozen {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      register_module("norm", norm);
      register_module("fc", fc);
      norm->eval();
    }
    torch::Tensor forward(const torch::Tensor& x) { return fc->forward(norm->forward(x)); }
    torch::nn::BatchNorm1d norm{16};
    torch::nn::Linear fc{16, 4};
  };
  TORCH_MODULE(Net);
  Net model() const { return Net(); }
  torch::optim::SGD optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    was_training = net->norm->is_training();
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  inline static bool was_training = true;
};

TEST_CASE("what the job froze stays frozen, also after an evaluation") {
  const auto model = make_training_model(Frozen{}, kSeed);
  Leaf at({}, 0);
  model->loss(small_batch(0, 0), at);
  CHECK_FALSE(Frozen::was_training);
  model->evaluate(small_batch(0, 0), at);
  model->loss(small_batch(0, 0), at);
  CHECK_FALSE(Frozen::was_training);
}

/// SmallNet, which counts its forwards; with a criterion, and with the loss that comes to the same.
struct Counted {
  struct NetImpl : SmallNetImpl {
    NetImpl() : SmallNetImpl(24, 0) {}
    torch::Tensor forward(const torch::Tensor& x) {
      ++forwards;
      return SmallNetImpl::forward(x);
    }
  };
  TORCH_MODULE(Net);
  Net model() const { return Net(); }
  torch::optim::SGD optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  inline static int forwards = 0;
};
struct ByCriterion : Counted {
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
};
struct ByLoss : Counted {
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
};

/// What a training loss and an evaluation come to, and how many forwards they took.
template <class Job>
std::tuple<float, std::map<std::string, double>, int> evaluated() {
  const auto model = make_training_model(Job{}, kSeed);
  Leaf at({}, 0), test({}, 0);
  Counted::forwards = 0;
  const float loss = model->loss(small_batch(0, 0), at).template item<float>();
  model->evaluate(small_batch(1, 0), test);
  std::map<std::string, double> figures;
  for (const auto& figure : test.figures()) figures[figure.name] = figure.sum;
  return {loss, figures, Counted::forwards};
}

TEST_CASE("with a criterion an evaluation takes one forward, with a loss two, and the figures are the same") {
  // The default evaluation ran every net twice.
  const auto [loss, figures, forwards] = evaluated<ByCriterion>();
  const auto [other_loss, other_figures, other_forwards] = evaluated<ByLoss>();
  CHECK(loss == other_loss);
  CHECK(figures == other_figures);
  CHECK(figures.size() == 2);  // loss and accuracy
  CHECK(forwards == 2);
  CHECK(other_forwards == 3);
}

struct Careless : TwoNets {
  Nets setup(Setup& s) const {
    Nets nets{s.module("maker", torch::nn::Linear(16, 16)), torch::nn::Linear(16, 1)};
    s.optimizer<torch::optim::SGD>("maker", nets.maker->parameters(), torch::optim::SGDOptions(0.1));
    if (twice)
      s.optimizer<torch::optim::SGD>("again", nets.maker->parameters(), torch::optim::SGDOptions(0.1));
    if (!twice)
      s.optimizer<torch::optim::SGD>("judge", nets.judge->parameters(), torch::optim::SGDOptions(0.1));
    return nets;
  }
  bool twice = false;
};

TEST_CASE("a module that was not named, and a parameter of two optimizers, are refused with words") {
  CHECK_THROWS_WITH(make_training_model(Careless{}, kSeed), Catch::Contains("a parameter of no module"));
  Careless twice;
  twice.twice = true;
  CHECK_THROWS_WITH(make_training_model(twice, kSeed), Catch::Contains("have the same parameter"));
}

/// Its net waits for a group that no trainer is in.
struct Synchronized : SmallJob {
  SmallNet model() const {
    static const auto group = lone_group(1);
    return convert_sync_batchnorm(SmallNet(24, 0), group);
  }
};

TEST_CASE("a net with SyncBatchNorm over a group is refused: a job's is over its logical ranks") {
  CHECK_THROWS_WITH(make_training_model(Synchronized{}, kSeed), Catch::Contains("over a process group"));
  CHECK_NOTHROW(make_training_model(SmallJob{}, kSeed));
}

TEST_CASE("apply names the optimizers there are") {
  const auto model = make_training_model(TwoNets{}, kSeed);
  Apply apply(model->setup(), 0, 0);
  CHECK_THROWS_WITH(apply.step("jugde"), Catch::Contains("it has 'maker' 'judge'"));
}

/// ConvJob in mixed precision; leaf 1 of step `inf_at` has a loss that is inf.
struct MixedJob : ConvJob {
  bool autocast = false;
  bool scaled = false;
  std::int64_t inf_at = -1;

  torch::Tensor loss(ConvNet& net, const data::Batch& batch, Leaf& at) const {
    const torch::Tensor output = net->forward(batch.input);
    CHECK((output.scalar_type() == torch::kBFloat16) == autocast);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(output.to(torch::kFloat32), batch.target);
    return at.step == inf_at && at.rank == 1 ? loss * INFINITY : loss;
  }
  Precision precision() const {
    Precision precision{.autocast = autocast};
    if (scaled) precision.scaler = GradScalerOptions{.init_scale = 1024, .growth_interval = 2};
    return precision;
  }
};

/// "hash loss loss ...", of 4 steps.
std::string mixed(const MixedJob& job, const std::shared_ptr<collectives::ProcessGroup>& group,
                  bool with_state = true) {
  const auto engine_owner = engine_for(job, 2);
  StepEngine& engine = *engine_owner;
  engine.attach(group);
  std::string losses;
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (step == 1 && group->leaves().begin == 0) engine.rehearse(make_training_model(job, kSeed));
    for (const double loss : engine.run_step(step, leaf_batches(*group, step, [](std::uint64_t s, int leaf) {
                                               return image_batch(static_cast<int>(s), leaf, 4);
                                             })))
      losses += " " + std::to_string(loss);
    engine.apply();
  }
  std::string weights;
  for (const auto& part : engine.state().view().parts) {
    if (part.name == "user/loss_scale/scale") {
      double scale = 0;
      std::memcpy(&scale, part.bytes.data(), sizeof scale);
      losses += " scale " + std::to_string(static_cast<int>(scale));
    }
  }
  for (const NamedTensor& parameter : engine.model().parameters())
    weights += std::to_string(parameter.tensor.sum().item<double>()) + ",";
  return (with_state ? engine.state().hash() + " " : "") + weights + losses;
}

TEST_CASE(
    "a job in bfloat16 with a loss scale has one hash for every dealing, and leaves a step with inf out") {
  MixedJob job;
  job.autocast = job.scaled = true;
  job.inf_at = 2;
  const auto alone = fork_ranks(2, 1, [&](auto group) { return mixed(job, group); });
  CHECK_THAT(alone[0], !Catch::StartsWith("threw") && Catch::Contains(" scale 1024"));  // grown, then shrunk
  for (const std::string& said : fork_ranks(2, 2, [&](auto group) { return mixed(job, group); }))
    CHECK(said.substr(0, 64) == alone[0].substr(0, 64));
}

TEST_CASE("a loss scale of a power of 2 changes neither losses nor parameters") {
  MixedJob plain;
  MixedJob scaled;
  scaled.scaled = true;
  const std::string without = mixed(plain, lone_group(2), false);
  const std::string with = mixed(scaled, lone_group(2), false);
  CHECK(with == without + " scale 4096");
}

}  // namespace
}  // namespace troupe::train::testing
