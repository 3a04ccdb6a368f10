// DistributedOptimizer against what one process computes that plays all ranks: Horovod's formulas, written
// down here a second time.
#include "actors/ddp/distributed_optimizer.hpp"

#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <sstream>

#include "actors/ddp/adasum.hpp"
#include "actors/ddp/distributed_data_parallel.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

using Options = DistributedOptimizerOptions;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

struct Setting {
  std::string name;
  int ranks = 2;
  Options options{};
  bool adam = false;
};

Optimizer optimizer_of(const Setting& setting, torch::nn::Module& net) {
  if (setting.adam)
    return std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.01));
  return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.02).momentum(0.5));
}

/// Of one pass of one step of one rank.
torch::Tensor loss_of(Pair& net, int step, int pass, int rank) {
  const torch::Tensor x =
      torch::sin(torch::arange(32) * (1.0 + 0.3 * rank) + 1.7 * step + 0.6 * pass).reshape({4, 8});
  return (net->forward(x) - torch::cos(x)).square().mean();
}

torch::Tensor adasum_of(const torch::Tensor& a, const torch::Tensor& b) {
  const double ab = (a * b).sum().item<double>();
  const double aa = (a * a).sum().item<double>(), bb = (b * b).sum().item<double>();
  return a * (aa > 0 ? 1 - ab / aa * 0.5 : 1) + b * (bb > 0 ? 1 - ab / bb * 0.5 : 1);
}

/// Plays all ranks in float64, where it combines what they have.
class Reference {
 public:
  explicit Reference(const Setting& setting) : setting_(setting) {
    for (int rank = 0; rank < setting.ranks; ++rank) {
      torch::manual_seed(3);
      nets_.emplace_back();
      optimizers_.push_back(optimizer_of(setting, *nets_.back()));
    }
  }

  void step(int step) {
    const bool adasum = setting_.options.op == GradientOp::kAdasum;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      Pair& net = nets_[static_cast<std::size_t>(rank)];
      forget_gradients(*net);
      for (int pass = 0; pass < setting_.options.backward_passes_per_step; ++pass)
        loss_of(net, step, pass, rank).backward();
    }
    const torch::NoGradGuard no_grad;
    const auto starts = values([](torch::Tensor& p) { return p.detach().clone(); });
    if (!adasum) combine([](torch::Tensor& p) { return p.mutable_grad(); }, {});
    for (auto& optimizer : optimizers_) optimizer->step();
    if (adasum) combine([](torch::Tensor& p) { return p; }, starts[0]);
  }

  std::vector<torch::Tensor> parameters() { return nets_[0]->parameters(); }

 private:
  template <class Get>
  std::vector<std::vector<torch::Tensor>> values(Get get) {
    std::vector<std::vector<torch::Tensor>> all;
    for (Pair& net : nets_) {
      all.emplace_back();
      for (torch::Tensor& parameter : net->parameters()) all.back().push_back(get(parameter));
    }
    return all;
  }

  template <class Get>
  void combine(Get get, const std::vector<torch::Tensor>& starts) {
    auto all = values(get);
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      std::vector<torch::Tensor> of;
      for (auto& of_rank : all) {
        torch::Tensor value = starts.empty() ? of_rank[i] : of_rank[i] - starts[i];
        if (setting_.options.compression == Compression::kFp16) value = value.to(torch::kFloat16);
        of.push_back(value.to(torch::kFloat64));
      }
      const bool half = setting_.options.compression == Compression::kFp16;
      const auto rounded = [&](const torch::Tensor& value) {
        return half ? value.to(torch::kFloat16).to(torch::kFloat64) : value;
      };
      while (of.size() > 1) {  // as a tree
        std::vector<torch::Tensor> next;
        for (std::size_t k = 0; k < of.size(); k += 2) {
          if (k + 1 == of.size()) {
            next.push_back(of[k]);
          } else if (setting_.options.op == GradientOp::kAdasum) {
            next.push_back(adasum_of(of[k], of[k + 1]));
          } else {
            next.push_back(rounded(of[k] + of[k + 1]));
          }
        }
        of = next;
      }
      if (setting_.options.op == GradientOp::kAverage) of[0] = rounded(of[0] / setting_.ranks);
      for (auto& of_rank : all)
        of_rank[i].copy_(starts.empty() ? of[0] : starts[i].to(torch::kFloat64) + of[0]);
    }
  }

  Setting setting_;
  std::vector<Pair> nets_;
  std::vector<Optimizer> optimizers_;
};

std::string parameters_text(Pair& net) {
  std::ostringstream text;
  text.precision(9);
  for (const torch::Tensor& parameter : net->parameters()) {
    const torch::Tensor flat = parameter.detach().contiguous().flatten();
    for (std::int64_t i = 0; i < flat.numel(); ++i) text << flat.data_ptr<float>()[i] << ' ';
  }
  return text.str();
}

TEST_CASE("100 steps agree with Horovod's formulas to 1e-5, and ranks with each other to the bit") {
  torch::set_num_threads(1);
  const auto setting = GENERATE(
      Setting{"average", 3, {}}, Setting{"sum", 2, {.op = GradientOp::kSum}},
      Setting{"average of Adam", 2, {}, true}, Setting{"3 passes", 2, {.backward_passes_per_step = 3}},
      Setting{"fp16", 2, {.compression = Compression::kFp16}},
      Setting{"predivide", 2, {.gradient_predivide_factor = 4}},
      Setting{"predivide of one rank", 1, {.gradient_predivide_factor = 4}},
      Setting{"adasum", 2, {.op = GradientOp::kAdasum}},
      Setting{"adasum of 4", 4, {.op = GradientOp::kAdasum}},
      Setting{
          "adasum of Adam, 2 passes", 4, {.backward_passes_per_step = 2, .op = GradientOp::kAdasum}, true});
  CAPTURE(setting.name);
  const auto said = fork_ddp(setting.ranks, [&](const Group& group) -> std::string {
    torch::manual_seed(3);
    Pair net;
    const Optimizer inner = optimizer_of(setting, *net);
    DistributedOptimizer optimizer(*inner, net->named_parameters(), group, setting.options);
    Reference reference(setting);
    for (int step = 0; step < 100; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < setting.options.backward_passes_per_step; ++pass)
        loss_of(net, step, pass, group->rank()).backward();
      optimizer.step();
      reference.step(step);
    }
    double worst = 0;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      worst = std::max(worst, (net->parameters()[i] - reference.parameters()[i]).abs().max().item<double>());
    }
    return worst < 1e-5 ? parameters_text(net) : "the largest difference is " + std::to_string(worst);
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, !Catch::Contains("threw") && !Catch::Contains("difference"));
    CHECK(text == said[0]);
  }
}

TEST_CASE(
    "the mean has the bits of DistributedDataParallel's, and clipping is between synchronize() and step()") {
  const auto said = fork_ddp(3, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net(64);
    const torch::Tensor x = input(group->rank(), 64);
    std::string wanted;
    {
      DistributedDataParallel ddp(net, group);
      ddp(x).square().mean().backward();
      wanted = gradients_text(*net);
    }
    forget_gradients(*net);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
    net->forward(x).square().mean().backward();
    optimizer.synchronize();
    if (gradients_text(*net) != wanted) return "the bits differ";
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1e-3);
    const torch::Tensor before = net->first->weight.detach().clone();
    {
      const auto skip = optimizer.skip_synchronize();
      optimizer.step();
    }
    const double moved = (net->first->weight - before).norm().item<double>();
    return moved > 0 && moved < 1.1e-3 ? "" : "moved by " + std::to_string(moved);
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("backwards of several losses, a closure, and what some or all ranks do not use are reduced once") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net, other;
    const int rank = group->rank();
    std::vector<torch::Tensor> all = net->parameters();
    for (const torch::Tensor& parameter : other->parameters()) all.push_back(parameter);
    torch::optim::SGD sgd(all, 0.5);
    DistributedOptimizer optimizer(sgd, group, {.op = GradientOp::kSum});

    // Two losses of different parameters, as of a generator and a discriminator.
    net->forward(input(rank)).sum().backward();
    other->forward(input(rank)).sum().backward();
    optimizer.synchronize();
    const torch::Tensor bias = net->second->bias.grad();
    if (!torch::equal(bias, torch::full({8}, 8.0))) return "two losses";
    optimizer.step();  // does not reduce again
    if (!torch::equal(bias, torch::full({8}, 8.0))) return "reduced twice";

    // Rank 1 uses nothing of `other`, nobody its second layer.
    optimizer.zero_grad();
    for (torch::Tensor& parameter : all) parameter.mutable_grad() = torch::Tensor();
    other->with_second = false;
    torch::Tensor loss = net->forward(input(rank)).sum();
    if (rank == 0) loss = loss + other->forward(input(0)).sum();
    loss.backward();
    const torch::Tensor before = other->second->weight.detach().clone();
    optimizer.step();
    if (!torch::equal(other->second->weight, before)) return "unused";
    if (other->second->weight.grad().abs().sum().item<double>() != 0) return "unused and not zeros";
    if (other->first->weight.grad().abs().sum().item<double>() == 0) return "used by one rank";

    int calls = 0;
    optimizer.step([&] {
      ++calls;
      optimizer.zero_grad();
      torch::Tensor value = net->forward(input(rank)).sum() + other->forward(input(rank)).sum();
      value.backward();
      return value;
    });
    if (calls != 1 || !torch::equal(net->second->bias.grad(), torch::full({8}, 8.0))) return "a closure";
    return "";
  });
  for (const std::string& text : said) CHECK(text == "");
}

TEST_CASE("a sparse gradient is made dense on demand") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    torch::optim::SGD sgd(table->parameters(), 1.0);
    DistributedOptimizer optimizer(sgd, table->named_parameters(), group,
                                   {.op = GradientOp::kSum, .sparse_as_dense = true});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      if (group->rank() == 0 || step == 1)  // a rank may look nothing up
        table->forward(torch::tensor({group->rank(), 4})).sum().backward();
      optimizer.synchronize();
      const torch::Tensor rows = table->weight.grad().sum(1);
      const torch::Tensor wanted = step == 0 ? torch::tensor({3.0F, 0.0F, 0.0F, 0.0F, 3.0F})
                                             : torch::tensor({3.0F, 3.0F, 0.0F, 0.0F, 6.0F});
      if (!torch::equal(rows, wanted)) return "step " + std::to_string(step);
      optimizer.step();
    }
    return "";
  });
  for (const std::string& text : said) CHECK(text == "");
}

TEST_CASE("gradients travel in buckets of fusion_threshold_mb") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::nn::Sequential net(torch::nn::Linear(1024, 300), torch::nn::Linear(300, 1024),
                              torch::nn::Linear(1024, 300));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    {
      DistributedOptimizer wide(sgd, net->named_parameters(), group);
      if (wide.buckets().size() != 2) return "wide";
    }
    DistributedOptimizer narrow(sgd, net->named_parameters(), group, {.fusion_threshold_mb = 1});
    return narrow.buckets().size() == 3 && narrow.buckets()[0].front() == "2.bias" ? "" : "narrow";
  });
  for (const std::string& text : said) CHECK(text == "");
}

TEST_CASE("Adasum: what points the same way is averaged, what does not is added, each tensor by itself") {
  const auto pair = [](torch::Tensor a, const torch::Tensor& b) {
    adasum_pair(a, b, {{0, 2}, {2, 2}});
    return a;
  };
  const torch::Tensor a = torch::tensor({1.0F, 0.0F, 2.0F, 2.0F}),
                      b = torch::tensor({0.0F, 3.0F, 2.0F, 2.0F});
  CHECK(torch::equal(pair(a.clone(), b), torch::tensor({1.0F, 3.0F, 2.0F, 2.0F})));
  CHECK(torch::equal(pair(torch::zeros({4}), b), b));
  // Squared norms below 1e-8 were those of zeros: the small changes of a late step were added, twice as
  // large.
  const torch::Tensor small = torch::full({4}, std::ldexp(1.0F, -30));
  CHECK(torch::equal(pair(small.clone(), small), small));
  CHECK(torch::equal(pair(a.to(torch::kFloat16), b.to(torch::kFloat16)),
                     torch::tensor({1.0F, 3.0F, 2.0F, 2.0F}).to(torch::kFloat16)));
}

/// What each rank of `ranks` said of `body`'s error.
std::string error_of(int ranks,
                     const std::function<void(const Group&, Pair&, torch::optim::Optimizer&)>& body) {
  const auto said = fork_ddp(ranks, [&](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    return thrown_by([&] { body(group, net, sgd); });
  });
  for (const std::string& text : said) CHECK(text == said[0]);
  return said[0];
}

TEST_CASE("a DistributedOptimizer refuses what makes no sense, with one clear error") {
  const auto made_with = [](int ranks, const Options& options) {
    return error_of(ranks, [&](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
      DistributedOptimizer(sgd, net->named_parameters(), group, options);
    });
  };
  using Catch::Contains;
  CHECK_THAT(made_with(3, {.op = GradientOp::kAdasum}),
             Contains("BadConfig") && Contains("3 is no power of two"));
  CHECK_THAT(made_with(1, {.backward_passes_per_step = 0}), Contains("backward_passes_per_step is 0"));
  CHECK_THAT(made_with(1, {.op = GradientOp::kSum, .gradient_predivide_factor = 2}),
             Contains("is for averages"));
  CHECK_THAT(made_with(1, {.gradient_predivide_factor = -1}), Contains("give a positive number"));
  CHECK_THAT(made_with(1, {.fusion_threshold_mb = 0}), Contains("give at least 1 MiB"));
  CHECK_THAT(made_with(1, {.stall_warning = Duration(-1)}), Contains("stall_warning is negative"));

  CHECK_THAT(error_of(1,
                      [](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
                        DistributedOptimizer(sgd, net->first->named_parameters(), group);
                      }),
             Contains("the optimizer's group 0, parameter 2 is not among the named parameters"));
  CHECK_THAT(error_of(1,
                      [](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
                        sgd.add_param_group(torch::optim::OptimizerParamGroup(net->first->parameters()));
                        DistributedOptimizer(sgd, net->named_parameters(), group);
                      }),
             Contains("BadConfig") && Contains("first.weight is in the optimizer twice"));
  CHECK_THAT(error_of(1,
                      [](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
                        DistributedDataParallel ddp(net, group);
                        DistributedOptimizer(sgd, net->named_parameters(), group);
                      }),
             Contains("first.weight is wrapped already"));
  CHECK_THAT(error_of(1,
                      [](const Group&, Pair& net, torch::optim::Optimizer& sgd) {
                        DistributedOptimizer(sgd, net->named_parameters(), nullptr);
                      }),
             Contains("there is no group"));
  CHECK_THAT(error_of(2,
                      [](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
                        DistributedOptimizer(sgd, net->named_parameters(), group,
                                             {.backward_passes_per_step = 1 + group->rank()});
                      }),
             Contains("option backward_passes_per_step") && Contains("1 on rank 0 and 2 on rank 1"));
}

TEST_CASE("calls of a DistributedOptimizer in the wrong order are errors, and the group stays good") {
  // What each of two ranks is told by `wrong`, behind a backward and before the step.
  const auto told = [](const Options& options,
                       const std::function<void(DistributedOptimizer&, Pair&)>& wrong) {
    const auto said = fork_ddp(2, [&](const Group& group) {
      Pair net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      DistributedOptimizer optimizer(sgd, net->named_parameters(), group, options);
      net->forward(input(group->rank())).sum().backward();
      std::string text = thrown_by([&] { wrong(optimizer, net); });
      optimizer.step();
      optimizer.zero_grad();
      return text;
    });
    CHECK(said[0] == said[1]);
    return said[0];
  };
  using Catch::Contains;
  CHECK_THAT(told({}, [](auto& optimizer, Pair&) { optimizer.zero_grad(); }),
             Contains("BadConfig: cannot zero gradients") && Contains("call step() or synchronize()"));
  CHECK_THAT(told({},
                  [](auto& optimizer, Pair&) {
                    const auto skip = optimizer.skip_synchronize();
                    optimizer.step();
                  }),
             Contains("gradients are on their way"));
  CHECK_THAT(told({}, [](auto& optimizer, Pair&) { optimizer.set_backward_passes_per_step(2); }),
             Contains("a backward ran since the last step"));
  CHECK_THAT(told({}, [](auto& optimizer, Pair&) { optimizer.set_backward_passes_per_step(0); }),
             Contains("a step needs a backward"));
  CHECK_THAT(
      told({.op = GradientOp::kAdasum}, [](auto& optimizer, Pair&) { (void)optimizer.skip_synchronize(); }),
      Contains("cannot skip the synchronisation"));
}

TEST_CASE("a DistributedOptimizer that has launched nothing ends without the group") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    {
      DistributedOptimizer optimizer(sgd, net->named_parameters(), group, {.backward_passes_per_step = 2});
      net->forward(input(0)).sum().backward();
    }
    group->barrier()->wait();  // both have ended theirs
    return std::string();
  });
  for (const std::string& text : said) CHECK(text == "");
}

TEST_CASE("parameters whose data were replaced are named") {
  CHECK_THAT(error_of(1,
                      [](const Group& group, Pair& net, torch::optim::Optimizer& sgd) {
                        DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
                        net->to(torch::kFloat64);
                        optimizer.step();
                      }),
             Catch::Contains("BadConfig: parameter first.weight is not reduced"));
  // On one rank alone: the others do not wait for it.
  const auto op = GENERATE(GradientOp::kAverage, GradientOp::kAdasum);
  const auto said = fork_ddp(2, [&](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group, {.op = op});
    net->forward(input(0)).sum().backward();
    if (group->rank() == 1) net->to(torch::kFloat64);
    return thrown_by([&] {
      optimizer.step();
      optimizer.zero_grad();
      optimizer.step();
    });
  });
  CHECK_THAT(
      said[0],  // in its steps, or in its backward already
      Catch::Contains("the process group was aborted: ") && Catch::Contains("first.weight is not reduced"));
  CHECK_THAT(said[1], Catch::Contains("BadConfig: parameter first.weight is not reduced"));
}

TEST_CASE("one backward too many, one after synchronize(), or a sparse gradient is said and ends the group") {
  using Catch::Contains;
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group, {.backward_passes_per_step = 2});
    return thrown_by([&] {
      for (int pass = 0; pass < (group->rank() == 1 ? 3 : 2); ++pass) net->forward(input(0)).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      if (group->rank() == 0) optimizer.synchronize();  // rank 1 never comes to it
    });
  });
  // In its step, or, where the other was fast, in its backward already, through LibTorch's engine.
  CHECK_THAT(said[0],
             Contains("the process group was aborted: rank 1: ") && Contains("came once more before a step"));
  CHECK_THAT(said[1], Contains("BadConfig") && Contains("second.bias came once more before a step") &&
                          Contains("backward_passes_per_step is 2"));
  const auto late = fork_ddp(2, [](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
    return thrown_by([&] {
      net->forward(input(0)).sum().backward();
      optimizer.synchronize();
      if (group->rank() == 1) net->forward(input(0)).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      optimizer.synchronize();  // rank 1 never comes to it
    });
  });
  CHECK_THAT(late[0], Contains("CollectiveAborted") && Contains("came after synchronize()"));
  CHECK_THAT(late[1], Contains("BadConfig") && Contains("second.bias came after synchronize()"));
  const auto sparse = fork_ddp(2, [](const Group& group) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    torch::optim::SGD sgd(table->parameters(), 1.0);
    DistributedOptimizer optimizer(sgd, table->named_parameters(), group);
    return thrown_by([&] { table->forward(torch::tensor({1})).sum().backward(); });
  });
  CHECK_THAT(sparse[0], Contains("set sparse_as_dense"));
}

// Was: its second step met the others' next one, and from there on gradients of different steps were added.
TEST_CASE("a step too many on one rank is an error on all ranks") {
  using Catch::Contains;
  const auto op = GENERATE(GradientOp::kAverage, GradientOp::kSum, GradientOp::kAdasum);
  const auto said = fork_ddp(2, [&](const Group& group) {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group, {.op = op});
    return thrown_by([&] {
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        net->forward(input(0)).sum().backward();
        optimizer.step();
        if (step == 1 && group->rank() == 1) optimizer.step();
      }
    });
  });
  CHECK_THAT(said[0], Contains("the process group was aborted: ") && Contains("cannot step a second time"));
  CHECK_THAT(said[1], Contains("BadConfig: cannot step a second time") && Contains("since reduction 2"));
}

TEST_CASE("a rank that waits names those that are missing") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const bool adasum = GENERATE(false, true);
  const auto said = fork_ddp(4, [&](const Group& group) -> std::string {
    Pair net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    bool told = false;
    Options options{.stall_warning = std::chrono::milliseconds(20)};
    if (adasum) options.op = GradientOp::kAdasum;
    options.on_stall = [&](const std::string& text) {
      if (group->rank() != 0 || text.find("for rank 1 in reduction 1") == std::string::npos) return;
      if (!std::exchange(told, true)) (void)!::write(pipe[1], "!", 1);
    };
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group, options);
    char byte = 0;
    if (group->rank() == 1 && ::read(pipe[0], &byte, 1) != 1) return "no warning";  // until rank 0 has told
    net->forward(input(0)).sum().backward();
    optimizer.step();
    return told == (group->rank() == 0) ? "" : "told by another";
  });
  for (const std::string& text : said) CHECK(text == "");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace troupe::train::testing
