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
  CHECK_THAT(with_buffers[1], Catch::Contains("in the backward of forward 2, rank 1 ran none"));
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
    if (group->rank() == 1) group->broadcast(std::vector<std::uint8_t>(4 + 24), 0)->wait();
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

TEST_CASE("a rank that is alone in no_sync for a step ends the group, and is named") {
  // Its next reduction was another step than the others', which no number told: gradients of two steps were
  // averaged without a word.
  const bool buffers = GENERATE(false, true);
  const bool hooked = GENERATE(false, true);
  const int step_alone = GENERATE(0, 1);
  CAPTURE(buffers, hooked, step_alone);
  const auto said = fork_ddp(3, [&](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = buffers});
    if (hooked) ddp.register_comm_hook(bf16_compress());
    const auto step = [&] { ddp(input(group->rank())).square().mean().backward(); };
    return thrown_by([&] {
      for (int i = 0; i < 4; ++i) {
        if (i == step_alone && group->rank() == 1) {
          const auto alone = ddp.no_sync();
          step();
        } else {
          step();
        }
      }
    });
  });
  const std::string first = std::to_string(step_alone + 1);
  const std::string second = std::to_string(step_alone + 2);
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") &&
                         Catch::Contains("rank 0 and 1 more in forward " + first + " (0 in no_sync)") &&
                         Catch::Contains("rank 1 in forward " + second + " (1 in no_sync)"));
  }
  // Who sees it first says what to do, and the others why.
  CHECK_THAT(said[0] + said[1] + said[2], Catch::Contains("enter no_sync on every rank"));
}

TEST_CASE("no_sync on all ranks alike is none's fault, in a join of uneven inputs, too") {
  const auto said = fork_ddp(2, [](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group);
    const auto step = [&] {
      {
        const auto guard = ddp.no_sync();
        for (int i = 0; i < 2; ++i) ddp(input(group->rank())).sum().backward();
      }
      ddp(input(group->rank())).sum().backward();
    };
    step();
    ddp.join([&] {
      for (int i = 0; i < 2 + group->rank(); ++i) step();
    });
    forget_gradients(*net);
    step();
    return gradients_text(*net);
  });
  check_alike(said);
}

TEST_CASE("forwards that differ by a multiple of 120 are found") {
  // As an evaluation with gradients of one rank alone: the header had the number modulo 120.
  const auto said = fork_ddp(2, [](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    return thrown_by([&] {
      for (int step = 0; step < 3; ++step) {
        if (step == 1 && group->rank() == 1) {
          for (int i = 0; i < 120; ++i) ddp(input(0));
        }
        ddp(input(group->rank())).sum().backward();
      }
    });
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Contains("rank 0 in forward 2, rank 1 in forward 122"));
}

TEST_CASE("an evaluation of one rank alone is named as that, and not as a backward that was left out") {
  const int alone = GENERATE(0, 1);
  const auto said = fork_ddp(2, [&](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    return thrown_by([&] {
      for (int step = 0; step < 3; ++step) {
        ddp(input(0)).sum().backward();
        if (step == 1 && group->rank() == alone) {
          const torch::NoGradGuard no_grad;
          ddp(input(0));
        }
      }
      group->barrier()->wait();
    });
  });
  const std::string one = std::to_string(alone);
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("rank " + one + " in a forward without gradients after forward 2"));
    CHECK_THAT(text, Catch::Contains("rank " + std::to_string(1 - alone) + " in forward 3"));
    CHECK_THAT(text, !Catch::Contains("left a backward out"));
  }
  CHECK_THAT(said[1], Catch::Contains("evaluate with the bare module"));
}

TEST_CASE("a broadcast of buffers that meets another call blames a backward only if it met one") {
  // All ranks ran a forward with gradients and no backward, which is no error; then rank 0 calls a barrier,
  // and rank 1 waits for its buffers.
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net;
    DistributedDataParallel ddp(net, group);
    return thrown_by([&] {
      ddp(input(0));
      if (group->rank() == 0) group->barrier()->wait();
      ddp(input(0));
      group->barrier()->wait();
    });
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") && Catch::Contains("barrier") &&
                         !Catch::Contains("had no backward before this one"));
  }
  CHECK_THAT(said[1], Catch::Contains("if the others are in the backward of forward 1, rank 1 ran none"));
}

TEST_CASE("after an abort a user of DDP is told what to do, in words that he knows") {
  const auto said = fork_ddp(2, [](const Group& group) {
    return thrown_by([&] {
      Pair net;
      DistributedDataParallel ddp(net, group);
      group->abort("enough");
      ddp(input(0)).sum().backward();
    });
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") && Catch::Contains("enough") &&
                         Catch::Contains("rebuild()") && Catch::Contains("wrap"));
    CHECK_THAT(text, !Catch::Contains("next generation"));
  }
}

}  // namespace
}  // namespace troupe::train::testing
