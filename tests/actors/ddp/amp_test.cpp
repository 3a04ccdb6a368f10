#include "actors/ddp/amp.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <limits>
#include <sstream>

#include "actors/ddp/distributed_data_parallel.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    in = register_module("in", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = x.scalar_type();
    return out->forward(torch::relu(norm->forward(in->forward(x))));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::ScalarType seen = torch::kFloat32;
};
TORCH_MODULE(Normed);

torch::optim::SGD sgd(const Normed& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

Normed seeded() {
  torch::manual_seed(3);
  return Normed();
}

torch::Tensor inputs(int step) {
  torch::manual_seed(100 + step);
  return torch::randn({16, 6});
}

torch::Tensor loss_of(const torch::Tensor& output, int step) {
  const torch::Tensor target = torch::arange(16).remainder(3).roll(step);
  return torch::nn::functional::cross_entropy(output, target);
}

/// After `steps` at `level`, with a loss of inf in step `overflows`.
Normed trained(std::string_view level, int steps, const AmpOptions& options = {}, int overflows = -1) {
  Normed net = seeded();
  auto optimizer = sgd(net);
  Amp amp(net, optimizer, level, options);
  for (int step = 0; step < steps; ++step) {
    torch::Tensor loss = loss_of(amp.forward(net, inputs(step)), step);
    if (step == overflows) loss = loss * std::numeric_limits<float>::infinity();
    amp.scale(loss).backward();
    CHECK(amp.step() == (step != overflows));
  }
  return net;
}

bool same(const Normed& a, const Normed& b) {
  const auto left = a->parameters(), right = b->parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!torch::equal(left[i], right[i])) return false;
  }
  return true;
}

TEST_CASE("O0 is a plain loop in float32") {
  Normed plain = seeded();
  auto optimizer = sgd(plain);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    loss_of(plain->forward(inputs(step)), step).backward();
    optimizer.step();
  }
  CHECK(same(trained("O0", 5), plain));
}

TEST_CASE("O1 is Autocast and a GradScaler, parameters in float32") {
  Normed plain = seeded();
  auto optimizer = sgd(plain);
  GradScaler scaler;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    torch::Tensor output;
    {
      const Autocast autocast;
      output = plain->forward(inputs(step));
    }
    CHECK(output.scalar_type() == torch::kBFloat16);
    scaler.scale(loss_of(output.to(torch::kFloat32), step)).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  const Normed net = trained("O1", 5);
  CHECK(same(net, plain));
  CHECK_FALSE(same(net, trained("O0", 5)));
}

TEST_CASE("O2 computes in bfloat16 and steps float32 copies, BatchNorm in float32") {
  const Normed net = trained("O2", 5);
  CHECK(net->seen == torch::kBFloat16);
  CHECK(net->in->weight.scalar_type() == torch::kBFloat16);
  CHECK(net->norm->weight.scalar_type() == torch::kFloat32);
  CHECK(net->norm->running_mean.scalar_type() == torch::kFloat32);

  // By hand.
  Normed plain = seeded();
  std::vector<torch::Tensor> masters;
  for (auto& parameter : plain->parameters()) masters.push_back(parameter.detach().clone());
  for (auto module : {plain->in, plain->out}) module->to(torch::kBFloat16);
  torch::optim::SGD optimizer(masters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    const auto parameters = plain->parameters();
    const torch::Tensor output = plain->forward(inputs(step).to(torch::kBFloat16)).to(torch::kFloat32);
    (loss_of(output, step) * 65536).backward();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = parameters[i].grad().to(torch::kFloat32) / 65536;
    optimizer.step();
    for (std::size_t i = 0; i < masters.size(); ++i) {
      torch::Tensor(parameters[i]).copy_(masters[i]);
      torch::Tensor(parameters[i]).mutable_grad() = torch::Tensor();
    }
  }
  CHECK(same(net, plain));
}

TEST_CASE("O2 keeps steps that are too small for bfloat16, O3 loses them") {
  const auto moved = [](std::string_view level) {
    Normed net = seeded();
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1e-5));
    Amp amp(net, optimizer, level);
    const torch::Tensor before = amp.parameters()[0].detach().clone();
    for (int step = 0; step < 3; ++step) {
      amp.scale(loss_of(amp.forward(net, inputs(step)), step)).backward();
      amp.step();
    }
    return amp.parameters()[0].sub(before).abs().gt(0).sum().item<int>();
  };
  CHECK(moved("O2") > 40);
  CHECK(moved("O3") < 24);
}

TEST_CASE("O3 is the whole module in bfloat16, unscaled") {
  const Normed net = trained("O3", 3);
  for (const auto& parameter : net->parameters()) CHECK(parameter.scalar_type() == torch::kBFloat16);
  CHECK(net->norm->running_mean.scalar_type() == torch::kBFloat16);
  CHECK(net->norm->num_batches_tracked.scalar_type() == torch::kLong);
  Normed other = seeded();
  auto optimizer = sgd(other);
  CHECK(Amp(other, optimizer, "O3").get_scale() == 1);
}

TEST_CASE("a level's step with inf is left out, and the scale goes down") {
  const std::string level = GENERATE("O1", "O2");
  Normed net = seeded();
  auto optimizer = sgd(net);
  Amp amp(net, optimizer, level);
  const auto before = net->parameters()[0].detach().clone();
  amp.scale(loss_of(amp.forward(net, inputs(0)), 0) * std::numeric_limits<float>::infinity()).backward();
  CHECK_FALSE(amp.step());
  CHECK(torch::equal(net->parameters()[0], before));
  CHECK(amp.get_scale() == 32768);
  trained(level, 4, {}, 2);
}

TEST_CASE("a level's scale grows to 2^24") {
  Normed net = seeded();
  auto optimizer = sgd(net);
  Amp amp(net, optimizer, "O2",
          {.scaler = {.init_scale = 1 << 22, .growth_interval = 1, .max_scale = 1 << 24}});
  for (int step = 0; step < 4; ++step) {
    amp.scale(loss_of(amp.forward(net, inputs(step)), step)).backward();
    amp.step();
  }
  CHECK(amp.get_scale() == 1 << 24);
  CHECK(AmpOptions().scaler.max_scale == 1 << 24);
}

TEST_CASE("gradients of several backwards add up, and may be clipped unscaled") {
  Normed net = seeded();
  auto optimizer = sgd(net);
  Amp amp(net, optimizer, "O2");
  for (int micro = 0; micro < 2; ++micro)
    amp.scale(loss_of(amp.forward(net, inputs(micro)), micro) * 100).backward();
  amp.unscale();
  CHECK(torch::nn::utils::clip_grad_norm_(amp.parameters(), 0.5) > 1);
  CHECK(torch::nn::utils::clip_grad_norm_(amp.parameters(), 0.5) < 0.51);
  CHECK_THROWS_WITH(amp.unscale(), Catch::Contains("it was called since the last step()"));
  CHECK(amp.step());
  for (const auto& parameter : net->parameters())
    CHECK((!parameter.grad().defined() || !parameter.grad().any().item<bool>()));
}

TEST_CASE("a run that goes on from a checkpoint of a level has the bits of one that never stopped") {
  const std::string level = GENERATE("O0", "O1", "O2", "O3");
  const auto step_once = [](Amp& amp, Normed& net, int step) {
    amp.scale(loss_of(amp.forward(net, inputs(step)), step)).backward();
    amp.step();
  };
  Normed net = seeded();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  Amp amp(net, optimizer, level);
  for (int step = 0; step < 3; ++step) step_once(amp, net, step);
  torch::serialize::OutputArchive out;
  amp.save(out);
  std::stringstream file;
  out.save_to(file);

  Normed resumed;
  torch::optim::SGD other(resumed->parameters(), torch::optim::SGDOptions(0.1));
  Amp again(resumed, other, level);
  torch::serialize::InputArchive in;
  in.load_from(file);
  again.load(in);
  CHECK(again.get_scale() == amp.get_scale());
  for (int step = 3; step < 6; ++step) {
    step_once(amp, net, step);
    step_once(again, resumed, step);
  }
  CHECK(same(net, resumed));

  Normed unlike = seeded();
  torch::optim::SGD third(unlike->parameters(), torch::optim::SGDOptions(0.1));
  Amp at_another(unlike, third, level == "O1" ? "O2" : "O1");
  CHECK_THROWS_WITH(at_another.load(in), Catch::Contains("it was saved at " + level));
}

TEST_CASE("a level over ranks: all leave the same step out, and have the same parameters") {
  const auto said = fork_ddp(2, [](auto group) {
    Normed net = seeded();
    auto optimizer = sgd(net);
    Amp amp(net, optimizer, "O2", {}, group);
    DistributedDataParallel ddp(net, group);
    std::string steps;
    for (int step = 0; step < 4; ++step) {
      torch::Tensor loss = loss_of(amp.forward(ddp, inputs(10 * step + group->rank())), step);
      if (step == 2 && group->rank() == 1) loss = loss * std::numeric_limits<float>::infinity();
      amp.scale(loss).backward();
      steps += amp.step() ? '1' : '0';
    }
    double sum = 0;
    for (const auto& weight : amp.parameters())
      sum += weight.to(torch::kFloat64).sum().template item<double>();
    return steps + " " + std::to_string(sum);
  });
  CHECK(said[0].substr(0, 5) == "1101 ");
  CHECK(said[0] == said[1]);
}

TEST_CASE("ranks that begin with different parameters have the same ones after steps of any level") {
  const std::string level = GENERATE("O0", "O1", "O2", "O3");
  const auto said = fork_ddp(2, [&](auto group) {
    torch::manual_seed(group->rank());
    Normed net;
    auto optimizer = sgd(net);
    Amp amp(net, optimizer, level, {}, group);
    DistributedDataParallel ddp(net, group);
    const auto step = [&](int at) {
      amp.scale(loss_of(amp.forward(ddp, inputs(10 * at + group->rank())), at)).backward();
      amp.step();
    };
    for (int at = 0; at < 3; ++at) step(at);
    {
      const torch::NoGradGuard no_grad;  // as an average over the ranks, or a checkpoint, on one of them
      if (group->rank() == 1) net->out->weight.add_(0);
      net->in->weight.fill_(0.25);
    }
    step(3);
    std::string sums = std::to_string((net->in->weight - 0.25).abs().max().template item<double>() < 0.2);
    for (const auto& weight : amp.parameters())
      sums += " " + std::to_string(weight.to(torch::kFloat64).sum().template item<double>());
    return sums;
  });
  CHECK(said[0].substr(0, 2) == "1 ");
  CHECK(said[0] == said[1]);
}

TEST_CASE("a level goes on in another group") {
  const auto said = fork_ddp(2, [](auto group) {
    Normed net = seeded();
    auto optimizer = sgd(net);
    Amp amp(net, optimizer, "O2", {.scaler = {.init_scale = 1024, .growth_interval = 2}}, group);
    std::shared_ptr<collectives::ProcessGroup> next;
    {
      DistributedDataParallel ddp(net, group);
      amp.scale(loss_of(amp.forward(ddp, inputs(group->rank())), 0)).backward();
      amp.step();
      next = group;  // as good as another
    }
    if (group->rank() == 1) amp.parameters()[0].detach().fill_(3);  // what rank 0 has not
    amp.use(next);
    DistributedDataParallel ddp(net, next);
    amp.scale(loss_of(amp.forward(ddp, inputs(group->rank())), 0)).backward();
    CHECK(amp.step());
    return std::to_string(amp.parameters()[0].sum().template item<double>()) + " " +
           std::to_string(amp.get_scale());
  });
  CHECK(said[0] == said[1]);
  CHECK_THAT(said[0], Catch::Contains(" 2048"));
}

TEST_CASE("a parameter that the optimizer lists twice is unscaled once") {
  const auto moved = [](std::string_view level) {
    torch::manual_seed(1);
    torch::nn::Linear net(3, 1);
    auto twice = net->parameters();
    twice.push_back(net->weight);
    torch::optim::SGD optimizer(twice, torch::optim::SGDOptions(0.125));
    Amp amp(net, optimizer, level);
    const torch::Tensor before = net->weight.detach().to(torch::kFloat32).clone();
    amp.scale(amp.forward(net, torch::ones({2, 3})).sum()).backward();
    amp.step();
    return (amp.parameters()[0].detach() - before).abs().max().item<double>();
  };
  CHECK(moved("O0") == Approx(0.5));
  CHECK(moved("O1") == Approx(0.5));
  CHECK(moved("O2") == Approx(0.5).epsilon(0.01));
}

TEST_CASE("what a level cannot be made of is one clear error") {
  Normed net = seeded();
  auto optimizer = sgd(net);
  CHECK_THROWS_WITH(Amp(net, optimizer, "02"), Catch::Contains("it begins with a zero") &&
                                                   Catch::Contains("write the letter O: \"O2\""));
  CHECK_THROWS_WITH(Amp(net, optimizer, "O4"), Catch::Contains("the levels are O0, O1, O2 and O3"));
  CHECK_THROWS_WITH(Amp(net, optimizer, ""), Catch::Contains("the levels are O0, O1, O2 and O3"));
  CHECK_THROWS_WITH(Amp(net, optimizer, "O1", {.dtype = torch::kFloat64}), Catch::Contains("no autocast to"));
  optimizer.zero_grad();
  net->forward(inputs(0)).sum().backward();
  optimizer.step();
  CHECK_THROWS_WITH(Amp(net, optimizer, "O1"), Catch::Contains("the optimizer has stepped before"));
  std::shared_ptr<NormedImpl> none;
  CHECK_THROWS_WITH(Amp(none, optimizer, "O1"), Catch::Contains("the module is null"));
  Normed wide = seeded();
  wide->to(torch::kFloat64);
  auto of_wide = sgd(wide);
  CHECK_THROWS_WITH(Amp(wide, of_wide, "O2"), Catch::Contains("parameter in.weight is Double"));
}

}  // namespace
}  // namespace troupe::train::testing
