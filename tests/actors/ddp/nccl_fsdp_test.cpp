// FullyShardedDataParallel over groups of GPUs: the same bits as over the native group, and the same errors.
#include <torch/torch.h>

#include <barrier>
#include <catch2/catch.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "actors/ddp/fully_sharded_data_parallel.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "tests/actors/ddp/nccl_ranks.hpp"
#include "tests/actors/ddp/recording_device.hpp"
#include "tests/collectives/nccl_faults.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {
namespace {

using collectives::testing::NcclDouble;

const std::vector<std::string> kBoth{"first", "second"};

std::string text_of(const StateDict& state) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& item : state)
    text << item.key() << ' ' << item.value().to(torch::kFloat64).square().sum().item<double>() << '\n';
  return text.str();
}

torch::optim::SGD sgd_over(FullyShardedDataParallel<Pair>& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

void steps(FullyShardedDataParallel<Pair>& net, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net(input(net.group().rank() + 8 * step)).square().mean().backward();
    optimizer.step();
  }
}

void check_none_threw(const std::vector<std::string>& said) {
  for (const std::string& text : said) CHECK_THAT(text, !Catch::StartsWith("threw"));
}

TEST_CASE("shards over NCCL have the bits of the native group: steps, norms, states, evaluations", "[fsdp]") {
  const int ranks = GENERATE(1, 2, 4);
  const int how = GENERATE(0, 1, 2);
  CAPTURE(ranks, how);
  const DdpBody body = [&](const Group& group) {
    FsdpOptions options{.units = kBoth, .prefetch = how == 2};
    if (how == 1) options.sharding_strategy = ShardingStrategy::kShardGradOp;
    Pair net = seeded_pair(8);
    FullyShardedDataParallel wrapped(net, group, options);
    auto optimizer = sgd_over(wrapped);
    steps(wrapped, optimizer, 0, 3);
    std::ostringstream text;
    text.precision(17);
    text << wrapped.clip_grad_norm_(0.01) << '\n'
         << text_of(wrapped.full_state_dict()) << text_of(wrapped.full_optimizer_state_dict(optimizer));
    {
      const torch::NoGradGuard no_grad;
      text << wrapped(input(0)).square().sum().item<double>() << '\n';
    }
    Pair other = seeded_pair(8);
    FullyShardedDataParallel again(other, group);
    auto resumed = sgd_over(again);
    again.load_full_state_dict(wrapped.full_state_dict(group->size() - 1), group->size() - 1);
    again.load_full_optimizer_state_dict(resumed, wrapped.full_optimizer_state_dict(optimizer));
    steps(again, resumed, 3, 5);
    text << text_of(again.full_state_dict()) << text_of(again.local_state_dict());
    again.load_local_state_dict(again.local_state_dict());
    return text.str();
  };
  const auto native = run_by_name("native", ranks, body), nccl = run_by_name("nccl", ranks, body);
  check_none_threw(native);
  CHECK(nccl == native);
}

TEST_CASE("a sharded backward whose reduction fails throws, no shard takes it, and survivors go on",
          "[fsdp]") {
  // How rank 1 fails in step 2: see nccl_ddp_test.cpp.
  const std::string how = GENERATE("error", "hang", "call", "throws");
  CAPTURE(how);
  const auto undisturbed = run_by_name("native", 2, [&](const Group& group) {
    Pair net = seeded_pair(8);
    FullyShardedDataParallel wrapped(net, group, {.units = kBoth});
    auto optimizer = sgd_over(wrapped);
    steps(wrapped, optimizer, 0, 4);
    return text_of(wrapped.full_state_dict());
  });
  NcclDouble library;
  std::barrier both(2);  // not the group's: a rank may hear of the failure before it is through with that
  const auto said = run_by_name("nccl", 2, library, [&](Group group) -> std::string {
    StateDict weights, kept;
    {
      Pair net = seeded_pair(8);
      FullyShardedDataParallel wrapped(net, group, {.units = kBoth});
      auto optimizer = sgd_over(wrapped);
      steps(wrapped, optimizer, 0, 2);
      weights = wrapped.full_state_dict();
      kept = wrapped.full_optimizer_state_dict(optimizer);
      std::vector<torch::Tensor> before;
      for (const torch::Tensor& shard : wrapped.parameters()) before.push_back(shard.detach().clone());
      std::jthread node;
      both.arrive_and_wait();
      if (group->rank() == 1) node = collectives::testing::fail_rank_1(library, how, group);
      const std::string what = thrown_by([&] {
        if (how != "throws") return steps(wrapped, optimizer, 2, 3);
        optimizer.zero_grad();
        // On both: a backward to the input uses weights that another does not.
        torch::Tensor x = input(group->rank()).requires_grad_();
        wrapped(group->rank() == 1 ? Thrower::apply(x) : x).square().mean().backward();
      });
      node = {};
      const bool ahead = what == "nothing thrown";
      if (ahead && !(how == "error" && group->rank() == 0)) return "nothing was thrown";
      for (std::size_t i = 0; i < before.size() && !ahead; ++i) {
        if (!torch::equal(before[i], wrapped.parameters()[i])) return "a failed step was applied: " + what;
      }
      if (!ahead && wrapped.whole_bytes() != 0) return "a unit is whole: " + what;
      if (!ahead && group->host_group().abort_reason().empty()) return "the host's group is good: " + what;
      const char* wanted = group->rank() == 0 ? "a backward ended with an exception" : "no gradient today";
      if (how == "throws" && what.find(wanted) == std::string::npos) return what;
    }
    group = group->rebuild();
    Pair net = seeded_pair(8);
    FullyShardedDataParallel wrapped(net, group, {.units = kBoth});
    auto optimizer = sgd_over(wrapped);
    wrapped.load_full_state_dict(weights);
    wrapped.load_full_optimizer_state_dict(optimizer, kept);
    steps(wrapped, optimizer, 2, 4);
    return text_of(wrapped.full_state_dict());
  });
  const std::string steps_line = "steps ";  // a forward may have begun
  CHECK(said[0].substr(0, said[0].rfind(steps_line)) ==
        undisturbed[0].substr(0, undisturbed[0].rfind(steps_line)));
  CHECK(said[1].empty());
  CHECK(library.misuse() == std::vector<std::string>{});
}

TEST_CASE("over NCCL ranks that use units of one size in different orders are told before a gradient is set",
          "[fsdp]") {
  const auto said = run_by_name("nccl", 2, [](const Group& group) {
    Pair net = seeded_pair(8);
    FullyShardedDataParallel wrapped(net, group, {.units = kBoth});
    net->swapped = group->rank() == 1;
    const std::string text = thrown_by([&] { wrapped(input(0)).sum().backward(); });
    return text + (wrapped.parameters()[0].grad().defined() ? " set" : " unset");
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") && Catch::EndsWith(" unset") &&
                         Catch::Contains("rank 0 used unit first and rank 1 used unit second"));
  }
}

TEST_CASE("a module to be sharded that is not where its group's buffers are is refused, with where both are",
          "[fsdp]") {
  NcclDouble library;
  Pair net(8);
  collectives::NcclGroupOptions options{.rank = 0, .size = 1, .generation = {1, 1}};
  options.host = collectives::make_native_group(std::move(collectives::testing::options_of(1, {})[0]));
  const Group group = collectives::make_nccl_group(options, library.api(0));
  CHECK_THAT(thrown_by([&] { FullyShardedDataParallel wrapped(net, group); }),
             Catch::StartsWith("BadConfig") && Catch::Contains("parameter first.weight is on the CPU") &&
                 Catch::Contains("net->to(torch::Device(\"cuda:0\"))"));
}

TEST_CASE(
    "what moves shards on a device runs on its default stream, behind what computes and before what follows",
    "[fsdp]") {
  RecordingDevice& device = RecordingDevice::anew();
  NcclDouble library;
  collectives::NcclGroupOptions options{.rank = 0, .size = 1, .generation = {1, 1}};
  options.host = collectives::make_native_group(std::move(collectives::testing::options_of(1, {})[0]));
  const Group group = on_host(collectives::make_nccl_group(options, library.api(0)));
  auto net = torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false));
  FsdpCore core(net.ptr(), group, {}, RecordingDevice::device());
  const auto step = [&] {
    core.before_forward();
    const torch::Tensor output = net->forward(torch::ones({1, 2}));
    core.after_forward();
    core.watch(output);
    device.note("backward");
    output.sum().backward();
  };
  RecordingDevice::anew();
  step();
  CHECK(device.log == std::vector<std::string>{"backward", "host waits for s0"});
  RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  streams.aside(step);
  const std::vector<std::string> by_default{"s0 waits for", "now s0", "now s1", "s1 waits for"};
  // Gather and its wait; the gradient, the reduction and its wait.
  std::string log;
  for (const std::string& line : device.log) log += line + "\n";
  CAPTURE(log);
  std::vector<std::string> kinds;
  for (const std::string& line : device.log) {
    if (line.find(" on s") == std::string::npos) kinds.push_back(line.substr(0, line.find(" e")));
  }
  std::vector<std::string> expected{"now s1"};
  const auto add = [&](const std::vector<std::string>& lines) {
    expected.insert(expected.end(), lines.begin(), lines.end());
  };
  add(by_default);
  add(by_default);
  add({"backward"});
  add({"s0 waits for"});  // the gradient
  add(by_default);
  add(by_default);
  add({"host waits for s1", "now s0"});
  CHECK(kinds == expected);
}

}  // namespace
}  // namespace troupe::train::testing
