#include "actors/train/engine/train_state.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "actors/ddp/optimizer_state.hpp"
#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

template <class Optimizer, class Options>
struct LinearJob {
  torch::nn::Linear model() const { return torch::nn::Linear(16, 4); }
  Optimizer optimizer(torch::nn::Linear& net) const { return Optimizer(net->parameters(), options); }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  Options options;
};

void step(StepEngine& engine, const std::shared_ptr<collectives::ProcessGroup>& group, std::uint64_t number) {
  engine.run_step(
      number, leaf_batches(*group, number, [](std::uint64_t s, int leaf) { return small_batch(s, leaf); }));
  engine.apply(true);
}

std::vector<std::byte> file_of(const TrainState& state) {
  const StateView view = state.view();
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(view.parts).value());
}

template <class Job>
void check_round_trip(const Job& job) {
  set_up_numerics();
  StepEngine trained(make_training_model(job, 1), {.logical_ranks = 1});
  const auto group = lone_group(1);
  trained.attach(group);
  for (std::uint64_t s = 0; s < 3; ++s) step(trained, group, s);
  const std::vector<std::byte> bytes = file_of(trained.state());

  StepEngine fresh(make_training_model(job, 2), {.logical_ranks = 1});
  CHECK(fresh.state().hash() != trained.state().hash());
  const auto parts = checkpoint::read_safetensors("state", bytes).value().tensors;
  fresh.state().install(parts).value();
  CHECK(fresh.state().hash() == trained.state().hash());
  CHECK((file_of(fresh.state()) == bytes));

  // What was installed is all that the next steps depend on.
  const auto other = lone_group(1);
  fresh.attach(other);
  step(trained, group, 3);
  step(fresh, other, 3);
  CHECK(fresh.state().hash() == trained.state().hash());
}

TEST_CASE("a state goes round with every optimizer") {
  namespace optim = torch::optim;
  check_round_trip(SmallJob{});  // Adam, buffers and a scheduler
  check_round_trip(LinearJob<optim::SGD, optim::SGDOptions>{optim::SGDOptions(0.1)});
  check_round_trip(LinearJob<optim::SGD, optim::SGDOptions>{optim::SGDOptions(0.1).momentum(0.9)});
  check_round_trip(LinearJob<optim::Adam, optim::AdamOptions>{optim::AdamOptions(0.1).amsgrad(true)});
  check_round_trip(LinearJob<optim::AdamW, optim::AdamWOptions>{optim::AdamWOptions(0.1)});
  check_round_trip(
      LinearJob<optim::RMSprop, optim::RMSpropOptions>{optim::RMSpropOptions(0.1).momentum(0.5)});
  check_round_trip(LinearJob<optim::Adagrad, optim::AdagradOptions>{optim::AdagradOptions(0.1)});
}

TEST_CASE("the names and their order are those of the state dict") {
  set_up_numerics();
  StepEngine engine(make_training_model(SmallJob{}, 1), {.logical_ranks = 1});
  const auto group = lone_group(1);
  engine.attach(group);
  step(engine, group, 0);
  std::vector<std::string> names;
  for (const StatePart& part : engine.state().view().parts) names.push_back(part.name);
  CHECK(names[0] == "in.weight");
  CHECK(names[6] == "norm.running_mean");
  CHECK(names[8] == "norm.num_batches_tracked");
  CHECK(names[9] == "optimizer/in.weight/step");
  CHECK(names[10] == "optimizer/in.weight/exp_avg");
  CHECK(std::find(names.begin(), names.end(), "optimizer_options/betas") != names.end());
  CHECK(names[names.size() - 2] == "optimizer/learning_rates");
  CHECK(names.back() == "scheduler/steps");
}

/// Counts in a member of the net what no part has, and computes by it.
struct ForgetfulImpl : torch::nn::Module {
  ForgetfulImpl() { register_module("fc", fc); }
  torch::Tensor forward(const torch::Tensor& x) { return fc(x) / (1.0 + static_cast<double>(++calls)); }
  torch::nn::Linear fc{16, 4};
  std::int64_t calls = 0;
};
TORCH_MODULE(Forgetful);

/// Warms up by a counter of its own.
struct WarmSgd : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    for (auto& group : param_groups()) group.options().set_lr(0.1 * static_cast<double>(++steps));
    return SGD::step(std::move(closure));
  }
  std::int64_t steps = 0;
};

struct ForgetfulJob {
  bool declares = false;
  Forgetful model() const { return Forgetful(); }
  WarmSgd optimizer(Forgetful& net) const {
    return WarmSgd(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(Forgetful& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void state(StateRegistry& state, Forgetful& net, WarmSgd& optimizer) const {
    if (declares_net) state.add("calls", net->calls);
    if (declares) state.add("warm-up", optimizer.steps);
  }
  bool declares_net = false;
};

// Without its state() such a job would not compile; one with LibTorch's own classes needs none.
static_assert(!detail::keeps_known_state<ForgetfulJob>());
static_assert(detail::keeps_known_state<SmallJob>());

template <class Job>
std::string rehearsal_of(const Job& job) {
  set_up_numerics();
  StepEngine engine(make_training_model(job, 1), {.logical_ranks = 1});
  const auto group = lone_group(1);
  engine.attach(group);
  step(engine, group, 0);
  engine.rehearse(make_training_model(job, 1));
  try {
    step(engine, group, 1);
  } catch (const BadConfig& error) {
    return error.what();
  }
  return "the same";
}

TEST_CASE("a step that depends on more than the state is found by its rehearsal") {
  // Such a job went on after a kill or a resume with a counter at 0: exit code 0, and another hash.
  CHECK(rehearsal_of(ForgetfulJob{true, true}) == "the same");
  CHECK_THAT(rehearsal_of(ForgetfulJob{true, false}),
             Catch::Contains("its loss was") && Catch::Contains("StateRegistry"));
  CHECK_THAT(rehearsal_of(ForgetfulJob{false, true}), Catch::Contains("'fc.weight' differs after it"));
  CHECK(rehearsal_of(SmallJob{}) == "the same");  // dropout, BatchNorm, a scheduler
}

TEST_CASE("what a job declares goes round with its state") {
  check_round_trip(ForgetfulJob{true, true});
  set_up_numerics();
  at::Generator generator = at::detail::createCPUGenerator(7);
  torch::Tensor average = torch::zeros({2, 3}, torch::kComplexFloat);
  double decay = 0.1;  // not a float32, as which it once went round: another rate after a resume
  bool flag = true;
  std::vector<std::byte> text{std::byte{1}};
  StateRegistry registry;
  registry.add("generator", generator);
  registry.add("average", average);
  registry.add("decay", decay);
  registry.add("flag", flag);
  registry.add(
      "text", [&] { return text; },
      [&](std::span<const std::byte> bytes) { text.assign(bytes.begin(), bytes.end()); });
  CHECK_THROWS_AS(registry.add("flag", flag), BadConfig);
  std::vector<torch::Tensor> saved;
  for (const UserPart& part : registry.parts()) {
    const torch::Tensor now = part.read();
    saved.push_back((now.is_complex() ? torch::view_as_real(now) : now).clone());
  }
  const auto drawn = torch::rand({4}, generator);
  average.fill_(3);
  decay = 1, flag = false, text = {};
  for (std::size_t i = 0; i < saved.size(); ++i) registry.parts()[i].write(saved[i]);
  CHECK(torch::equal(torch::rand({4}, generator), drawn));
  CHECK(average.abs().sum().item<double>() == 0);
  CHECK(decay == 0.1);
  CHECK(flag);
  CHECK((text == std::vector<std::byte>{std::byte{1}}));
}

TEST_CASE("an optimizer's options are part of the state, and not of the final hash") {
  set_up_numerics();
  using Job = LinearJob<torch::optim::Adam, torch::optim::AdamOptions>;
  const auto changed =
      make_training_model(Job{torch::optim::AdamOptions(0.1).betas({0.5, 0.75}).weight_decay(0.1)}, 1);
  const auto plain = make_training_model(Job{torch::optim::AdamOptions(0.1)}, 1);
  CHECK(TrainState(*changed).hash() == TrainState(*plain).hash());
  CHECK((hash_parts(TrainState(*changed).view().parts) != hash_parts(TrainState(*plain).view().parts)));
  TrainState(*plain).install(TrainState(*changed).view().parts).value();
  const auto& options = static_cast<torch::optim::AdamOptions&>(
      plain->optimizers().front().optimizer->param_groups()[0].options());
  CHECK(options.betas() == std::tuple(0.5, 0.75));
  CHECK(options.weight_decay() == 0.1);
  CHECK_FALSE(options.amsgrad());
}

struct DecayingJob {
  double lr = 0.1;
  torch::nn::Linear model() const { return torch::nn::Linear(3, 2); }
  torch::optim::SGD optimizer(torch::nn::Linear& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr));
  }
  auto scheduler(torch::optim::SGD& optimizer) const {
    return every_step(
        LambdaLR(optimizer, [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); }));
  }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return net->forward(batch.input).sum();
  }
};

// The first step after a clone ran with the rate as the struct has it, where a tenth of it was meant.
TEST_CASE("a clone with another rate begins with what its schedule makes of it by then") {
  set_up_numerics();
  const auto rate = [](TrainingModel& model) {
    return learning_rates(*model.optimizers().front().optimizer).at(0);
  };
  const auto before = make_training_model(DecayingJob{0.1}, 1);
  for (int step = 0; step < 4; ++step) before->optimizers().front().scheduler->step();
  CHECK(rate(*before) == Approx(0.1 / 5));
  const auto was = TrainState(*before).view();
  auto parts = was.parts;
  const auto fresh = make_training_model(DecayingJob{0.5}, 2);
  TrainState own(*fresh);
  own.step_schedulers(parts);
  const auto view = own.view();
  take_options(parts, view.parts);
  const auto clone = make_training_model(DecayingJob{0.5}, 3);
  TrainState(*clone).install(parts).value();
  CHECK(rate(*clone) == Approx(0.5 / 5));
  clone->optimizers().front().scheduler->step();
  CHECK(rate(*clone) == Approx(0.5 / 6));
}

/// Fixed values, so that (also in Python, from the layout in README.md) every release and machine must
/// compute the same digest.
struct FixedJob {
  torch::nn::Linear model() const {
    torch::nn::Linear net(3, 2);
    const torch::NoGradGuard no_grad;
    net->weight.copy_(torch::arange(6).reshape({2, 3}));
    net->bias.fill_(0.5);
    return net;
  }
  torch::optim::SGD optimizer(torch::nn::Linear& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.25));
  }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return net->forward(batch.input).sum();
  }
};

TEST_CASE("the hash of known values does not depend on the release") {
  const auto model = make_training_model(FixedJob{}, 1);
  CHECK(TrainState(*model).hash() == "a42d4d11479ac8206b8866a129c359fc976b46d517d7a1a2212f57ef100b3429");
}

/// Changes a state's tensors, installs it, and expects an error that leaves everything alone.
template <class Change>
std::string refusal(Change&& change) {
  set_up_numerics();
  StepEngine engine(make_training_model(SmallJob{}, 1), {.logical_ranks = 1});
  const auto group = lone_group(1);
  engine.attach(group);
  step(engine, group, 0);
  const std::string before = engine.state().hash();
  StepEngine other(make_training_model(SmallJob{}, 2), {.logical_ranks = 1});
  const auto other_group = lone_group(1);
  other.attach(other_group);
  step(other, other_group, 0);
  StateView view = other.state().view();
  change(view.parts);
  const Result<void> installed = engine.state().install(view.parts);
  REQUIRE_FALSE(installed.ok());
  CHECK(engine.state().hash() == before);
  return installed.error().message();
}

TEST_CASE("a state that does not fit is refused as a whole, with the tensor's name") {
  using Tensors = std::vector<StatePart>;
  CHECK(refusal([](Tensors& t) { t.erase(t.begin()); }).find("in.weight") != std::string::npos);
  CHECK(refusal([](Tensors& t) {
          t[0].shape = {16, 24};
        }).find("F32[16,24], the model F32[24,16]") != std::string::npos);
  CHECK(refusal([](Tensors& t) { t[1].dtype = checkpoint::DType::kI32; }).find("in.bias") !=
        std::string::npos);
  CHECK(refusal([](Tensors& t) { t.push_back(t[0]); }).find("twice") != std::string::npos);
  CHECK(refusal([](Tensors& t) { t[10].name = "optimizer/in.weight/other"; }).find("exp_avg") !=
        std::string::npos);
  CHECK(refusal([](Tensors& t) { t[10].shape = {24}; }).find("in.weight/exp_avg") != std::string::npos);
  CHECK(refusal([](Tensors& t) { t.back().name = "scheduler"; }).find("scheduler") != std::string::npos);
  CHECK(refusal([](Tensors& t) { t[0].bytes = t[0].bytes.first(8); }).find("in.weight") != std::string::npos);
}

/// Plain descent whose rate falls with a counter of its own.
struct Falling : torch::optim::Optimizer {
  Falling(std::vector<torch::Tensor> parameters, double rate)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(rate)) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    ++steps;
    for (auto& parameter : param_groups()[0].params())
      if (parameter.grad().defined()) parameter.sub_(parameter.grad() / static_cast<double>(steps));
    return {};
  }
  std::int64_t steps = 0;
};
struct FallingJob {
  torch::nn::Linear model() const { return torch::nn::Linear(16, 4); }
  Falling optimizer(torch::nn::Linear& net) const { return Falling(net->parameters(), 0.1); }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void state(StateRegistry& state, torch::nn::Linear&, Falling& optimizer) const {
    state.add("falling/steps", optimizer.steps);
  }
};

TEST_CASE("an optimizer of the job's own goes round by what the job declares") {
  check_round_trip(FallingJob{});
}

TEST_CASE("evaluation counts and leaves the mode alone") {
  set_up_numerics();
  StepEngine engine(make_training_model(SmallJob{}, 1), {.logical_ranks = 1});
  const std::string before = engine.state().hash();
  const auto one = engine.evaluate(0, 0, small_batch(0, 0, 40));
  const auto again = engine.evaluate(1, 0, small_batch(0, 0, 40));
  REQUIRE(one.size() == 2);
  CHECK(one[0].name == "accuracy");
  CHECK(one[0].weight == 40);
  CHECK(one[0].sum <= 40);
  CHECK(one[1].name == "loss");
  CHECK((one == again));  // no dropout
  CHECK(engine.state().hash() == before);
}

TEST_CASE("a step that is left out leaves parameters, buffers and the optimizer; schedules go on") {
  set_up_numerics();
  StepEngine engine(make_training_model(SmallJob{}, 1), {.logical_ranks = 1});
  StepEngine other(make_training_model(SmallJob{}, 1), {.logical_ranks = 1});
  const auto group = lone_group(1), group_of_other = lone_group(1);
  engine.attach(group);
  other.attach(group_of_other);
  step(engine, group, 0);
  step(other, group_of_other, 0);
  const auto batches =
      leaf_batches(*group, 1, [](std::uint64_t s, int leaf) { return small_batch(s, leaf); });
  engine.run_step(1, batches);
  const StepValues values = engine.skip();
  CHECK(values.contains("learning_rate"));
  CHECK(engine.state().hash() == other.state().hash());
  step(engine, group, 2);
  step(other, group_of_other, 2);
  CHECK(engine.state().hash() == other.state().hash());
  engine.run_step(3, batches);
  engine.skip(true);  // the end of an epoch: its schedule goes on
  CHECK(engine.state().hash() != other.state().hash());
}

/// 17 MiB in a parameter that does not lie row by row, then 8 MiB.
struct LargeImpl : torch::nn::Module {
  explicit LargeImpl(torch::Device device)
      : turned(register_parameter("turned", torch::rand({1088, 4096}, device).t())),
        plain(register_parameter("plain", torch::rand({2, 1024, 1024}, device))) {}
  torch::Tensor turned, plain;
  torch::Tensor forward(const torch::Tensor& x) { return x * turned.sum() * plain.sum(); }
};
TORCH_MODULE(Large);
struct LargeJob {
  torch::Device device = torch::kCPU;
  Large model() const { return Large(device); }
  torch::optim::SGD optimizer(Large& net) const { return torch::optim::SGD(net->parameters(), 0.1); }
  torch::Tensor loss(Large& net, const data::Batch& batch) const { return net->forward(batch.input).sum(); }
};

TEST_CASE("a piece of a state has the hashes that it has in a copy of it all") {
  const auto model = make_training_model(LargeJob{}, 1);
  const TrainState state(*model);
  const StateView whole = state.view();
  std::size_t parts = 0;
  for (int piece = 0; piece < 4; ++piece) {
    const PieceHashes expected = hash_piece(whole.parts, piece);
    const PieceHashes proved = state.prove(piece);
    CHECK((proved.parts == expected.parts));
    CHECK(proved.last == expected.last);
    CHECK(proved.last == (piece >= 1));
    parts += proved.parts.size();
  }
  CHECK(parts == whole.parts.size() + 1);  // "turned" lies in two pieces
}

// Was: each of the steps that prove a state copied all of it from the device, for a piece of 16 MiB.
TEST_CASE("only the piece that is proved comes from the device") {
  const auto model =
      make_training_model(LargeJob{torch::kMeta}, 1, torch::kMeta);  // nothing can be copied from there
  const TrainState state(*model);
  CHECK_THROWS(state.view());
  CHECK_THROWS(state.prove(0));
  CHECK_NOTHROW(state.prove(2));  // behind the parameters
}

}  // namespace
}  // namespace troupe::train::testing
