// Ranks that do not run the same forwards and backwards: all of them are told, before a gradient is set.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "actors/ddp/distributed_data_parallel.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

/// Steps of three ranks, in whose second one rank 1 does `instead`; what each rank's steps throw.
std::vector<std::string> one_leaves_out(const DdpOptions& options, CommHook hook,
                                        const std::function<void(DistributedDataParallel<Pair>&)>& instead) {
  return fork_ddp(3, [&](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, options);
    if (hook) ddp.register_comm_hook(hook);
    int step = 0;
    const std::string what = thrown_by([&] {
      for (; step < 5; ++step) {
        if (step == 1 && group->rank() == 1) {
          instead(ddp);
        } else {
          ddp(input(group->rank())).square().mean().backward();
        }
      }
    });
    // The other ranks' second step and what this rank calls next.
    return "step " + std::to_string(step) + ": " + what;
  });
}

TEST_CASE("a rank that leaves a step out and goes on ends the group, with every rank's forward") {
  // A backward that threw before its first gradient, a forward that threw and a loss of no parameter left no
  // trace: from then on gradients of one step were averaged with those of the next, without a word.
  const std::map<std::string, std::function<void(DistributedDataParallel<Pair>&)>> ways{
      {"backward",
       [](auto& ddp) {
         const std::string what = thrown_by([&] { Thrower::apply(ddp(input(1))).sum().backward(); });
         if (what.find("no gradient today") == std::string::npos) throw std::logic_error(what);
       }},
      {"forward",
       [](auto& ddp) {
         if (thrown_by([&] { ddp(torch::ones({4, 5})); }) == "nothing thrown")
           throw std::logic_error("5 fit");
       }},
      {"loss",
       [](auto& ddp) {
         ddp(input(1));
         torch::ones({1}, torch::requires_grad()).sum().backward();
       }},
  };
  const std::string way = GENERATE(as<std::string>(), "backward", "forward", "loss");
  const bool hooked = GENERATE(false, true);
  CAPTURE(way, hooked);
  const auto said =
      one_leaves_out({.broadcast_buffers = false}, hooked ? bf16_compress() : CommHook(), ways.at(way));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK_THAT(said[rank],
               Catch::StartsWith(rank == 1 ? "step 2: CollectiveAborted" : "step 1: CollectiveAborted") &&
                   Catch::Contains("rank 0 and 1 more in forward 2, rank 1 in forward 3"));
  }
  // With buffers a broadcast meets a sum: the group sees that by itself.
  const auto with_buffers = one_leaves_out({}, nullptr, ways.at(way));
  CHECK_THAT(with_buffers[1], Catch::Contains("forward 2 of rank 1 had no backward"));
  for (const std::string& text : with_buffers) {
    CHECK_THAT(text, Catch::Contains("CollectiveAborted") && Catch::Contains("broadcast") &&
                         Catch::Contains("all_reduce"));
  }
}

TEST_CASE("ranks that are a forward apart are found by the broadcast of buffers, too") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    ddp(input(0)).sum().backward();
    // In place of forward 2: what that would have called.
    if (group->rank() == 1) group->broadcast(std::vector<std::uint8_t>(12), 0)->wait();
    return thrown_by([&] {
      for (int i = 0; i < 2; ++i) ddp(input(0));
      group->barrier()->wait();  // the root of a broadcast does not wait for the others
    });
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Contains("rank 0 in forward 3") && Catch::Contains("rank 1 in forward 2"));
}

TEST_CASE("ranks of one module may leave a step out together, and modules of one shape are told apart") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    torch::manual_seed(1);
    Pair a;
    Pair b;
    DistributedDataParallel first(a, group, {.broadcast_buffers = false});
    DistributedDataParallel second(b, group, {.broadcast_buffers = false});
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = step == 1 ? torch::ones({4, 5}) : input(group->rank());
      const std::string what = thrown_by([&] { first(x).sum().backward(); });
      if ((what == "nothing thrown") != (step != 1)) return what;
    }
    const torch::Tensor of_first = first(input(0)).sum();
    const torch::Tensor of_second = second(input(0)).sum();
    return thrown_by([&] {
      if (group->rank() == 0) of_first.backward();
      of_second.backward();
    });
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Contains("rank 0 in forward 4, rank 1 in forward 5"));
}

TEST_CASE("a rank that leaves a step out of a join ends it") {
  const auto apart = fork_ddp(3, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    return thrown_by([&] {
      ddp.join([&] {
        for (int i = 0; i < 2 + 2 * group->rank(); ++i) {
          const torch::Tensor loss = ddp(input(0)).sum();
          if (i != 2 || group->rank() != 1) loss.backward();
        }
      });
    });
  });
  for (const std::string& text : apart)
    CHECK_THAT(text, Catch::Contains("rank 2 in forward 3") && Catch::Contains("rank 1 in forward 4"));
}

TEST_CASE("forwards are counted alike after a join of uneven inputs, and after one that ended early") {
  const bool early = GENERATE(false, true);
  const auto said = fork_ddp(2, [&](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group);
    thrown_by([&] {
      ddp.join(
          [&] {
            for (int i = 0; i < 3 + 2 * group->rank(); ++i) ddp(input(0)).sum().backward();
          },
          {.throw_on_early_termination = early});
    });
    forget_gradients(*net);
    ddp(input(group->rank())).sum().backward();
    return gradients_text(*net);
  });
  check_alike(said);
}

}  // namespace
}  // namespace troupe::train::testing
