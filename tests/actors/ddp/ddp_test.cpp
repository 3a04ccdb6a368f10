#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/post_local_sgd.hpp"
#include "collectives/rendezvous/init.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {
namespace {

TEST_CASE("when backward returns, gradients are the mean over the ranks, with the same bits on each") {
  const bool views = GENERATE(true, false);
  const auto said = fork_ddp(3, [&](const Group& group) -> std::string {
    // What the ranks will do, here alone: g0 + g1 + g2 in that order, divided once.
    torch::manual_seed(0);
    Pair alone(64);
    std::vector<torch::Tensor> means;
    for (int rank = 0; rank < 3; ++rank) {
      forget_gradients(*alone);
      alone->forward(input(rank, 64)).square().mean().backward();
      for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
        const torch::Tensor grad = alone->parameters()[i].grad().clone();
        if (rank == 0) means.push_back(grad);
        if (rank > 0) means[i] += grad;
      }
    }
    torch::manual_seed(group->rank());  // other weights on every rank, until they are wrapped
    Pair net(64);
    DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = views});
    for (int step = 0; step < 3; ++step) {  // placed by autograd from the second on
      forget_gradients(*net);
      ddp(input(group->rank(), 64)).square().mean().backward();
      for (std::size_t i = 0; i < means.size(); ++i) {
        if (!torch::equal(net->parameters()[i].grad(), means[i] / 3)) return "parameter " + std::to_string(i);
      }
    }
    return gradients_text(*net);
  });
  check_alike(said);
}

TEST_CASE("every rank begins with rank 0's parameters and buffers, and takes its buffers before a forward") {
  const auto said = fork_ddp(2, [](const Group& group) {
    torch::manual_seed(group->rank());
    Pair net;
    net->steps.fill_(10 * (group->rank() + 1));
    DistributedDataParallel ddp(net, group);
    std::ostringstream text;
    text << net->first->weight.sum().item<float>() << ' ' << net->steps.item<float>();
    net->steps.fill_(100 * (group->rank() + 1));
    ddp(input(0));
    text << ' ' << net->steps.item<float>();
    return text.str();
  });
  CHECK(said[0] == said[1]);
  CHECK(said[0].find(" 10 101") != std::string::npos);
}

TEST_CASE(
    "gradients add up: zero_grad() that fills, no_sync, two forwards, two backwards, a forward without "
    "grad") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net(64);  // large enough for autograd to write gradients in their place
    DistributedDataParallel ddp(net, group);
    const torch::Tensor x = input(group->rank(), 64);
    const auto grad = [&] { return net->first->weight.grad(); };
    const auto backward = [&](double times) { (times * ddp(x).square().mean()).backward(); };
    backward(1);
    const torch::Tensor once = grad().clone();
    const auto is = [&](double times) { return torch::allclose(grad(), times * once, 1e-5, 1e-7); };

    for (auto& parameter : net->parameters()) parameter.mutable_grad().zero_();
    backward(1);
    if (!is(1)) return "zeroed";
    backward(1);
    if (!is(2)) return "not zeroed";
    forget_gradients(*net);
    {
      const auto guard = ddp.no_sync();
      backward(1);
      backward(2);
    }
    if (is(3)) return "reduced in no_sync";
    backward(4);
    if (!is(7)) return "no_sync";
    forget_gradients(*net);
    const torch::Tensor first = ddp(x).square().mean();
    const torch::Tensor second = ddp(x).square().mean();
    (first + second).backward();
    if (!is(2)) return "two forwards, one backward";
    forget_gradients(*net);
    const torch::Tensor both = ddp(x);
    both.square().mean().backward({}, /*keep_graph=*/true);
    both.square().mean().backward();
    if (!is(2)) return "one forward, two backwards";
    forget_gradients(*net);
    const torch::Tensor loss = ddp(x).square().mean();
    {
      const torch::NoGradGuard no_grad;  // an evaluation in between
      ddp(x);
    }
    loss.backward();
    return is(1) ? "" : "a forward without gradients";
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("a gradient that is kept survives the next backward without gradient_as_bucket_view") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    Pair net;
    DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = false});
    ddp(input(group->rank())).square().mean().backward();
    const torch::Tensor kept = net->first->weight.grad();
    const torch::Tensor copy = kept.clone();
    forget_gradients(*net);
    (3 * ddp(input(group->rank()))).square().mean().backward();
    return torch::equal(kept, copy) && !torch::equal(kept, net->first->weight.grad()) ? "" : "overwritten";
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("buckets are built again in the order in which rank 0's gradients arrived") {
  const auto said = fork_ddp(
      2,
      [](const Group& group) -> std::string {
        torch::manual_seed(3);
        Pair net(600);  // 1.4 MB a weight: a bucket each
        net->swapped = true;
        DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1});
        std::string before;
        for (int step = 0; step < 3; ++step) {
          forget_gradients(*net);
          ddp(input(group->rank(), 600)).square().mean().backward();
          const std::string now = gradients_text(*net);
          if (step == 0) before = now;
          if (now != before) return "the layout changed a bit of a sum";
        }
        std::string names;
        for (const auto& bucket : ddp.buckets()) names += bucket.back() + " ";
        return names;
      },
      32 << 20);
  for (const std::string& text : said) CHECK(text == "first.weight second.weight ");
}

TEST_CASE("unused parameters are an error that names them, on the other ranks, too") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    net->with_second = group->rank() == 0;
    return thrown_by([&] { ddp(input(0)).sum().backward(); });
  });
  CHECK_THAT(said[1], Catch::StartsWith("BadConfig") && Catch::Contains("second.weight, second.bias") &&
                          Catch::Contains("set find_unused_parameters"));
  CHECK_THAT(said[0], Catch::StartsWith("CollectiveAborted") && Catch::Contains("rank 1") &&
                          Catch::Contains("second.weight, second.bias"));
}

TEST_CASE("with find_unused_parameters what some rank used is averaged, and what none used stays as it was") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const auto& spare = net->second->weight;
    net->with_second = group->rank() == 0;
    ddp(input(0)).sum().backward();
    if (!spare.grad().defined() || spare.grad().abs().sum().item<float>() == 0) return "half is lost";
    const torch::Tensor before = spare.grad().clone();
    net->with_second = false;
    ddp(input(0)).sum().backward();
    if (!torch::equal(before, spare.grad())) return "it did not stay";
    forget_gradients(*net);
    ddp(input(0)).sum().backward();
    return spare.grad().defined() ? "it got one" : "";
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("a static graph learns in its first backward what is unused, and says so when that changes") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    net->with_second = false;
    for (int step = 0; step < 3; ++step) ddp(input(0)).sum().backward();
    if (net->second->weight.grad().defined()) return "the unused one got a gradient";
    net->with_second = true;
    return thrown_by([&] { ddp(input(0)).sum().backward(); });
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("second.") && Catch::Contains("static_graph"));
  }
}

TEST_CASE("ranks whose modules differ are told the first difference, and the group stays good") {
  const auto said = fork_ddp(3, [](const Group& group) {
    Pair net;
    if (group->rank() == 2) net->second = net->replace_module("second", torch::nn::Linear(8, 5));
    std::string what = thrown_by([&] { DistributedDataParallel ddp(net, group); });
    what += "; " + thrown_by([&] {
              DistributedDataParallel ddp(net->first, group, {.static_graph = group->rank() == 1});
            });
    what += "; " + thrown_by([&] {
              DistributedDataParallel ddp(net->first, group, {.gradient_as_bucket_view = group->rank() == 0});
            });
    DistributedDataParallel good(net->first, group);
    return what;
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("BadConfig") && Catch::Contains("parameter second.weight") &&
                         Catch::Contains("Float [8, 8] on rank 0 and Float [5, 8] on rank 2") &&
                         Catch::Contains("option static_graph") &&
                         Catch::Contains("option gradient_as_bucket_view"));
  }
}

/// What one rank alone has wrong.
template <class Body>
std::string refused(Body&& body) {
  const Group group = collectives::make_native_group(
      std::move(collectives::testing::options_of(1, {.data_bytes = 1 << 20})[0]));
  return thrown_by([&] { body(group); });
}

TEST_CASE("what cannot be wrapped is refused by name") {
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               // A device that every machine has beside the CPU.
               net->second->weight = net->second->register_parameter("other", torch::ones({8}, torch::kMeta));
               DistributedDataParallel ddp(net, group);
             }),
             Catch::Contains("parameter first.weight is on the CPU, parameter second.other is on meta") &&
                 Catch::Contains("keep the whole module on the CPU"));
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
               DistributedDataParallel ddp(net, group);
             }),
             Catch::Contains("none of its parameters requires a gradient"));
  CHECK_THAT(refused([](const Group& group) { DistributedDataParallel ddp(Pair(nullptr), group); }),
             Catch::Contains("it is null"));
  CHECK_THAT(refused([](const Group&) { DistributedDataParallel ddp(Pair(4), Group()); }),
             Catch::Contains("there is no group"));
  collectives::testing::Layout layout;
  layout.leaves = {{0, 2}};
  const Group leaves =
      collectives::make_native_group(std::move(collectives::testing::options_of(1, layout)[0]));
  CHECK_THAT(thrown_by([&] { DistributedDataParallel ddp(Pair(4), leaves); }),
             Catch::Contains("the group has logical ranks"));
}

TEST_CASE("a parameter that is added, replaced or unfrozen after wrapping is refused by name") {
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               DistributedDataParallel ddp(net, group);
               net->register_parameter("late", torch::ones({3}));
               ddp(input(0));
             }),
             Catch::Contains("parameter late is not reduced"));
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               DistributedDataParallel ddp(net, group);
               net->second = net->replace_module("second", torch::nn::Linear(8, 8));
               ddp(input(0));
             }),
             Catch::Contains("parameter second.weight is not reduced"));
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               net->second->weight.requires_grad_(false);
               DistributedDataParallel ddp(net, group);
               ddp(input(0)).sum().backward();
               net->second->weight.requires_grad_(true);
               ddp(input(0));
             }),
             Catch::Contains("second.weight") && Catch::Contains("did not require a gradient"));
  // Both replace a parameter's data, and with it what tells of its gradient.
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               DistributedDataParallel ddp(net, group);
               ddp(input(0)).sum().backward();
               std::stringstream saved;
               torch::save(net, saved);
               torch::load(net, saved);
               ddp(input(0));
             }),
             Catch::Contains("is not reduced") && Catch::Contains("torch::load"));
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               DistributedDataParallel ddp(net, group);
               net->to(torch::kFloat64);
               ddp(input(0).to(torch::kFloat64));
             }),
             Catch::Contains("is not reduced") && Catch::Contains("to()"));
}

TEST_CASE("a buffer that is added after wrapping is refused by name, where buffers are broadcast") {
  const bool broadcast = GENERATE(true, false);
  const std::string what = refused([&](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = broadcast});
    ddp(input(0));
    net->second->register_buffer("late", torch::ones({3}));
    ddp(input(0));
  });
  if (broadcast) CHECK_THAT(what, Catch::Contains("buffer second.late is not broadcast"));
  if (!broadcast) CHECK(what == "nothing thrown");
}

TEST_CASE("a second wrapper of a parameter is refused by name while the first lives") {
  // Both reduced every gradient, the second one the mean that the first had made.
  CHECK_THAT(refused([](const Group& group) {
               Pair net;
               {
                 DistributedDataParallel ddp(net, group);
                 const std::string what =
                     thrown_by([&] { DistributedDataParallel part(net->second, group); });
                 if (what.find("parameter weight is wrapped already") == std::string::npos)
                   throw std::runtime_error(what);
                 ddp(input(0)).sum().backward();
               }
               DistributedDataParallel again(net, group);
               again(input(0)).sum().backward();
               throw std::runtime_error("and again");
             }),
             Catch::Contains("and again"));
}

TEST_CASE("a module that is used twice in a forward, tied weights and mixed dtypes are averaged") {
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      register_module("layer", layer);
      tied = register_parameter("tied", layer->weight);
      wide = register_parameter("wide", torch::ones({8}, torch::kFloat64));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      const torch::Tensor y = layer->forward(torch::tanh(layer->forward(x)));
      return torch::matmul(y, tied).to(torch::kFloat64) * wide;
    }
    torch::nn::Linear layer{8, 8};
    torch::Tensor tied, wide;
  };
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    auto alone = std::make_shared<OddImpl>();
    for (int rank = 0; rank < 2; ++rank) alone->forward(input(rank)).sum().backward();
    auto net = std::make_shared<OddImpl>();
    {
      const torch::NoGradGuard no_grad;
      net->layer->weight.copy_(alone->layer->weight);
      net->layer->bias.copy_(alone->layer->bias);
    }
    DistributedDataParallel ddp(net, group);
    if (ddp.buckets().size() != 2) return "a bucket a dtype";
    ddp(input(group->rank())).sum().backward();
    const bool same = torch::allclose(net->layer->weight.grad(), alone->layer->weight.grad() / 2) &&
                      torch::allclose(net->wide.grad(), alone->wide.grad() / 2);
    return same ? "" : "not the mean";
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("several modules train in turns over one group, and wrapping again takes no more of its memory") {
  const auto said = fork_ddp(
      2,
      [](const Group& group) -> std::string {
        torch::manual_seed(1);
        Pair a(64);
        Pair b(64);
        for (int i = 0; i < 60; ++i) {  // 60 x 2 x 33 KB of the 200 KB that there are
          DistributedDataParallel first(a, group);
          DistributedDataParallel second(b, group);
          forget_gradients(*a);
          forget_gradients(*b);
          second(first(input(group->rank(), 64))).sum().backward();
        }
        // What is left takes two more of these, but not three.
        group->allocate<float>(8 << 10);
        return gradients_text(*a) + gradients_text(*b);
      },
      200 << 10);
  check_alike(said);
}

TEST_CASE("a group without room for the gradients still reduces them") {
  const auto said = fork_ddp(
      2,
      [](const Group& group) {
        torch::manual_seed(1);
        Pair net(64);
        DistributedDataParallel ddp(net, group);
        ddp(input(group->rank(), 64)).sum().backward();
        return gradients_text(*net);
      },
      4 << 10);
  check_alike(said);
}

TEST_CASE("a backward that throws aborts the group, and the others hear of it") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    torch::Tensor x = input(0).requires_grad_(true);
    // Behind the parameters in the backward, so that a reduction is under way.
    const torch::Tensor y = group->rank() == 0 ? Thrower::apply(x) : x;
    std::string what = thrown_by([&] { ddp(torch::tanh(y)).sum().backward(); });
    if (what == "nothing thrown") what = thrown_by([&] { ddp(input(0)).sum().backward(); });
    return what;
  });
  CHECK_THAT(said[0], Catch::Contains("no gradient today"));
  CHECK_THAT(said[1], Catch::StartsWith("CollectiveAborted") &&
                          Catch::Contains("rank 0: a backward ended with an exception"));
}

TEST_CASE("a backward through the bare module stays local, also between two of the wrapper") {
  // It was reduced as any other: a rank that ran one by itself hung the others, or trained on their step.
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group);
    ddp(input(group->rank())).sum().backward();
    forget_gradients(*net);
    if (group->rank() == 1) {
      net->forward(input(3)).sum().backward();
      const torch::Tensor local = net->first->weight.grad().clone();
      forget_gradients(*net);
      net->forward(input(3)).sum().backward();
      if (!torch::equal(local, net->first->weight.grad())) return "it was reduced";
    }
    forget_gradients(*net);
    ddp(input(group->rank())).sum().backward();
    return gradients_text(*net);
  });
  check_alike(said);
}

TEST_CASE("every backward through what a forward returned is reduced, whatever type that has") {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() { register_module("layer", layer); }
    std::map<std::string, std::vector<torch::Tensor>> forward(const torch::Tensor& x) {
      const torch::Tensor y = layer->forward(x);
      return {{"sums", {y.sum(), y.square().sum()}}};
    }
    torch::nn::Linear layer{8, 8};
  };
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    auto net = std::make_shared<TwoImpl>();
    DistributedDataParallel ddp(net, group);
    auto sums = ddp(input(group->rank())).at("sums");
    sums[0].backward({}, /*keep_graph=*/true);
    sums[1].backward();
    return "first.weight" + gradients_text(*net);
  });
  check_alike(said);
}

TEST_CASE("a NaN of one rank is on all after a backward") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    const double factor = group->rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
    (ddp(input(0)).sum() * factor).backward();
    return std::to_string(net->first->weight.grad().isnan().all().item<bool>());
  });
  for (const std::string& text : said) CHECK(text == "1");
}

TEST_CASE("a hook of one's own replaces reduction and mean, once") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group);
    std::size_t gradients_seen = 0;
    ddp.register_comm_hook([&](GradBucket bucket, collectives::ProcessGroup& g) -> std::function<void()> {
      gradients_seen += bucket.gradients.size();
      auto work = g.all_reduce(buffer_of(bucket.buffer), collectives::ReduceOp::kMax);
      return [work, bucket]() mutable {
        work->wait();
        bucket.buffer.mul_(2);
      };
    });
    const std::string again = thrown_by([&] { ddp.register_comm_hook(bf16_compress()); });
    if (again.find("there is one already") == std::string::npos) return again;
    (ddp(input(0)).sum() * (group->rank() + 1.0)).backward();
    if (gradients_seen != 4) return "not every gradient came by";
    return std::to_string(net->second->bias.grad()[0].item<float>());
  });
  for (const std::string& text : said) CHECK(text == "16.000000");  // 4 samples, twice, by the larger factor
  CHECK_THAT(thrown_by([] { power_sgd({.start_iteration = 1}); }), Catch::Contains("start_iteration is 1"));
}

TEST_CASE("what cannot be a comm hook is refused") {
  const auto registered = [](CommHook hook, bool late) {
    return refused([&](const Group& group) {
      Pair net;
      DistributedDataParallel ddp(net, group);
      if (late) ddp(input(0));
      ddp.register_comm_hook(hook);
      ddp(input(0)).sum().backward();
    });
  };
  CHECK_THAT(registered(nullptr, false), Catch::StartsWith("BadConfig") && Catch::Contains("it is null"));
  CHECK_THAT(registered(allreduce(), true), Catch::Contains("a forward began already"));
  CHECK_THAT(
      registered([](GradBucket, collectives::ProcessGroup&) { return std::function<void()>(); }, false),
      Catch::StartsWith("BadConfig") && Catch::Contains("returned an empty function for bucket 0"));
  for (const bool power : {true, false}) {
    const CommHook hook = power ? power_sgd({}) : post_local_sgd({});
    CHECK(registered(hook, false) == "nothing thrown");
    CHECK_THAT(registered(hook, false), Catch::StartsWith("BadConfig") &&
                                            Catch::Contains(power ? "power_sgd" : "post_local_sgd") &&
                                            Catch::Contains("another module has it"));
  }
}

TEST_CASE("a compressing hook casts, divides and adds in the small dtype") {
  const torch::ScalarType type = GENERATE(torch::kFloat16, torch::kBFloat16);
  const auto said = fork_ddp(2, [&](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net;
    torch::Tensor small;
    for (int rank = 0; rank < 2; ++rank) {
      forget_gradients(*net);
      net->forward(input(rank)).square().mean().backward();
      const torch::Tensor half = net->first->weight.grad().to(type).div_(2);
      small = rank == 0 ? half : small + half;
    }
    DistributedDataParallel ddp(net, group);
    ddp.register_comm_hook(type == torch::kFloat16 ? fp16_compress() : bf16_compress());
    forget_gradients(*net);
    ddp(input(group->rank())).square().mean().backward();
    return torch::equal(net->first->weight.grad(), small.to(torch::kFloat32)) ? "" : "other bits";
  });
  for (const std::string& text : said) CHECK(text.empty());
}

TEST_CASE("a weighted backward divides the sum over ranks and micro-batches by the sum of weights") {
  // Scenario 8: ranks hold different numbers of tokens, one of them none in a micro-batch.
  const bool joins = GENERATE(false, true);
  const auto said = fork_ddp(3, [&](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair net(64);
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = !joins});
    const double tokens[3][2] = {{3, 1}, {0, 2}, {4, 4}};
    const auto loss = [&](int rank, int batch, bool wrapped) {
      const torch::Tensor x = input(rank + 3 * batch, 64);
      const torch::Tensor y = wrapped ? ddp(x) : net->forward(x);
      return y.narrow(0, 0, static_cast<std::int64_t>(tokens[rank][batch])).square().sum();
    };
    torch::Tensor sum;
    for (int rank = 0; rank < 3; ++rank) {
      forget_gradients(*net);
      for (int batch = 0; batch < (joins && rank == 2 ? 0 : 2); ++batch) loss(rank, batch, false).backward();
      if (!net->first->weight.grad().defined()) continue;
      const torch::Tensor grad = net->first->weight.grad().clone();
      sum = rank == 0 ? grad : sum + grad;
    }
    forget_gradients(*net);
    const auto step = [&] {
      {
        const auto guard = ddp.no_sync();
        ddp.backward(loss(group->rank(), 0, true), tokens[group->rank()][0]);
      }
      ddp.backward(loss(group->rank(), 1, true), tokens[group->rank()][1]);
    };
    if (joins) {
      ddp.join([&] {
        if (group->rank() != 2) step();
        if (group->rank() != 2 && !torch::equal(net->first->weight.grad(), sum / 6))
          throw std::logic_error("6");
      });
      return "first.weight";
    }
    step();
    return torch::equal(net->first->weight.grad(), sum / 14) ? gradients_text(*net) : "other bits";
  });
  check_alike(said);
}

TEST_CASE("weights that make no sense are refused") {
  const auto with = [](double weight, bool hooked, bool plain_after) {
    return refused([&](const Group& group) {
      Pair net;
      DistributedDataParallel ddp(net, group);
      if (hooked) ddp.register_comm_hook(allreduce());
      {
        const auto guard = ddp.no_sync();
        ddp.backward(ddp(input(0)).sum(), weight);
      }
      plain_after ? ddp(input(0)).sum().backward() : ddp.backward(ddp(input(0)).sum(), 0);
    });
  };
  CHECK_THAT(with(-1, false, false), Catch::StartsWith("BadConfig") && Catch::Contains("it is -1"));
  CHECK_THAT(with(std::numeric_limits<double>::infinity(), false, false), Catch::Contains("it is inf"));
  CHECK_THAT(with(0, false, false), Catch::Contains("sum of weights") && Catch::Contains("0 over all ranks"));
  CHECK_THAT(with(1, true, false), Catch::Contains("there is a comm hook"));
  CHECK_THAT(with(1, false, true), Catch::Contains("it has no weight"));
  CHECK(with(1, false, false) == "nothing thrown");
}

TEST_CASE("a weighted backward that is not reduced is refused, and leaves no weight behind") {
  // Its weight counted in the next reduction, whose gradients were half of what they should be.
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    Pair net;
    DistributedDataParallel ddp(net, group);
    std::string thrown = "nothing thrown";
    try {
      ddp.backward(torch::ones({1}, torch::requires_grad()).sum(), 8);
    } catch (const BadConfig& error) {
      thrown = error.what();
    }
    ddp.backward(ddp(input(0)).sum(), 8);
    const torch::Tensor weighted = net->first->weight.grad().clone();
    net->zero_grad();
    ddp(input(0)).sum().backward();
    return torch::equal(weighted * 8, net->first->weight.grad()) ? thrown : "another mean: " + thrown;
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("a weighted backward was not reduced"));
}

TEST_CASE("post-local SGD averages all gradients, then those of a subgroup, and parameters now and then") {
  const bool with_subgroups = GENERATE(false, true);
  constexpr int kStart = 2;
  constexpr int kPeriod = 3;
  const std::string url = "file://" +
                          (std::filesystem::temp_directory_path() / "troupe_post_local_").string() +
                          std::to_string(::getpid()) + (with_subgroups ? "b" : "a");
  const auto said = fork_ddp(4, [&](const Group& ranks) -> std::string {
    // One that makes new groups.
    const Group group = collectives::init_process_group(
        "native", url + "?rank=" + std::to_string(ranks->rank()) + "&world_size=4");
    torch::manual_seed(1);
    // All four ranks in one, in plain LibTorch.
    std::vector<Pair> nets;
    std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
    for (int rank = 0; rank < 5; ++rank) {  // the last one is this rank's
      nets.emplace_back(8);
      optimizers.push_back(std::make_unique<torch::optim::SGD>(nets.back()->parameters(), 0.1));
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < nets[0]->parameters().size(); ++i)
        nets.back()->parameters()[i].copy_(nets[0]->parameters()[i]);
    }
    const auto mean = [&](std::size_t parameter, int begin, int end, bool grad) {
      const auto of = [&](int rank) {
        const torch::Tensor tensor = nets[static_cast<std::size_t>(rank)]->parameters()[parameter];
        return grad ? tensor.grad() : tensor.detach();
      };
      torch::Tensor sum = of(begin).clone();
      // The tree of ranks: (0 + 1) + (2 + 3).
      if (end - begin == 2) sum = sum + of(begin + 1);
      if (end - begin == 4) sum = (sum + of(1)) + (of(2) + of(3));
      return sum / (end - begin);
    };
    Group half;
    if (with_subgroups) {
      const Group low = group->new_group({0, 1});
      const Group high = group->new_group({2, 3});
      half = low ? low : high;
    }
    Pair& net = nets[4];
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    ddp.register_comm_hook(post_local_sgd({.start_iteration = kStart, .subgroup = half}));
    PeriodicModelAverager averager(group, {.period = kPeriod, .warmup_steps = kStart});
    for (int step = 0; step < 10; ++step) {
      std::vector<std::vector<torch::Tensor>> means(4);
      for (int rank = 0; rank < 4; ++rank) {
        optimizers[static_cast<std::size_t>(rank)]->zero_grad();
        nets[static_cast<std::size_t>(rank)]->forward(input(rank + step)).square().mean().backward();
      }
      const int width = step < kStart ? 4 : with_subgroups ? 2 : 1;
      const torch::NoGradGuard no_grad;
      for (int rank = 0; rank < 4; ++rank) {
        for (std::size_t i = 0; i < net->parameters().size(); ++i)
          means[static_cast<std::size_t>(rank)].push_back(
              mean(i, rank / width * width, rank / width * width + width, true));
      }
      for (std::size_t rank = 0; rank < 4; ++rank) {
        for (std::size_t i = 0; i < net->parameters().size(); ++i)
          nets[rank]->parameters()[i].mutable_grad() = means[rank][i];
        optimizers[rank]->step();
      }
      if (step >= kStart && (step - kStart) % kPeriod == 0) {
        for (std::size_t i = 0; i < net->parameters().size(); ++i) {
          const torch::Tensor value = mean(i, 0, 4, false);
          for (std::size_t rank = 0; rank < 4; ++rank) nets[rank]->parameters()[i].copy_(value);
        }
      }
      {
        const torch::AutoGradMode grad(true);
        optimizers[4]->zero_grad();
        ddp(input(group->rank() + step)).square().mean().backward();
      }
      optimizers[4]->step();
      const bool averaged = averager.average_parameters(net->parameters());
      if (averaged != (step >= kStart && (step - kStart) % kPeriod == 0)) return "averaged at other steps";
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        if (!torch::equal(net->parameters()[i],
                          nets[static_cast<std::size_t>(group->rank())]->parameters()[i]))
          return "step " + std::to_string(step) + ", parameter " + std::to_string(i);
      }
    }
    return "";
  });
  for (const std::string& text : said) CHECK(text.empty());
  CHECK_THROWS_WITH(post_local_sgd({.start_iteration = -1}), Catch::Contains("start_iteration is -1"));
  CHECK_THROWS_WITH(PeriodicModelAverager(nullptr, {}), Catch::Contains("there is no group"));
}

TEST_CASE("a join that ends early throws on every rank, and leaves the group good") {
  const auto said = fork_ddp(3, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    std::string what = thrown_by([&] {
      ddp.join(
          [&] {
            for (int i = 0; i < 3 + group->rank(); ++i) ddp(input(0)).sum().backward();
          },
          {.throw_on_early_termination = true});
    });
    group->barrier()->wait();
    return what;
  });
  for (const std::string& text : said) CHECK_THAT(text, Catch::Contains("2 of 3 ranks have some"));
}

TEST_CASE("a join takes uneven inputs of ranks in any order, one without any, and other modules after it") {
  const bool divide_by_all = GENERATE(true, false);
  const auto said = fork_ddp(3, [&](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    const int batches[] = {0, 5, 2};
    ddp.join(
        [&] {
          for (int i = 0; i < batches[group->rank()]; ++i) {
            optimizer.zero_grad();
            ddp(input(group->rank() + i)).square().mean().backward();
            optimizer.step();
          }
        },
        {.divide_by_initial_world_size = divide_by_all});
    std::ostringstream text;
    text.precision(9);
    text << net->first->weight.sum().item<float>() << ' ' << net->steps.item<float>() << ' ';
    forget_gradients(*net);
    ddp(input(group->rank())).sum().backward();
    return text.str() + gradients_text(*net);
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, !Catch::StartsWith("threw") && Catch::Contains(" 5 "));
    CHECK(text == said[0]);
  }
}

}  // namespace
}  // namespace troupe::train::testing
