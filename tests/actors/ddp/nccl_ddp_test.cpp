// DistributedDataParallel over groups of GPUs: the same bits as over the native group, and the same errors.
#include <torch/torch.h>

#include <barrier>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "actors/ddp/broadcast_state.hpp"
#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/distributed_optimizer.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/ddp/post_local_sgd.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/nccl_ranks.hpp"
#include "tests/actors/ddp/recording_device.hpp"
#include "tests/collectives/nccl_faults.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {
namespace {

using collectives::testing::NcclDouble;

constexpr int kWidth = 600;  ///< 1.4 MB a weight: two buckets

/// Gradients, parameters and buffers as text: equal where the bits are.
std::string state_text(torch::nn::Module& net) {
  std::string text = gradients_text(net);
  std::ostringstream values;
  values.precision(17);
  for (const auto& value : net.parameters()) values << ' ' << value.to(torch::kFloat64).sum().item<double>();
  for (const auto& value : net.buffers()) values << ' ' << value.to(torch::kFloat64).sum().item<double>();
  return text + values.str();
}

/// What `body` came to over NCCL, on every rank, is what it came to over the native group.
void check_same_bits(int ranks, const DdpBody& body) {
  const auto native = run_by_name("native", ranks, body);
  const auto nccl = run_by_name("nccl", ranks, body);
  check_alike(native);
  check_alike(nccl);
  CHECK(nccl[0] == native[0]);
}

CommHook hook_called(const std::string& name) {
  if (name == "allreduce") return allreduce();
  if (name == "fp16") return fp16_compress();
  if (name == "bf16") return bf16_compress();
  if (name == "power_sgd") return power_sgd({.matrix_approximation_rank = 2, .start_iteration = 2});
  if (name == "own") {
    return [](GradBucket bucket, collectives::ProcessGroup& group) -> std::function<void()> {
      auto work = group.all_reduce(buffer_of(bucket.buffer), collectives::ReduceOp::kMax);
      return [work, bucket]() mutable {
        work->wait();
        bucket.buffer.mul_(0.5);
      };
    };
  }
  return nullptr;
}

Group lone_native() {
  return collectives::make_native_group(std::move(collectives::testing::options_of(1, {})[0]));
}

void train(DistributedDataParallel<Pair>& ddp, int steps) {
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    ddp(input(ddp.group().rank() + 8 * step, kWidth)).square().mean().backward();
    optimizer.step();
  }
}

TEST_CASE("gradients over NCCL have the bits of the native group, with every hook") {
  const int ranks = GENERATE(1, 4);
  const std::string hook = GENERATE("none", "allreduce", "fp16", "bf16", "power_sgd", "own");
  CAPTURE(ranks, hook);
  check_same_bits(ranks, [&](const Group& group) -> std::string {
    Pair net = seeded_pair(kWidth);
    const torch::NoGradGuard no_grad;
    if (group->rank() != 0) net->first->weight.zero_();  // until it is wrapped
    net->steps.fill_(group->rank());
    const torch::AutoGradMode grad(true);
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1});
    if (ddp.buckets().size() != 2) return "it is one bucket";
    if (hook != "none") ddp.register_comm_hook(hook_called(hook));
    train(ddp, 4);
    return state_text(*net);
  });
}

TEST_CASE("a DistributedOptimizer over NCCL has the bits of the native group") {
  const int ranks = GENERATE(1, 4);
  const auto op = GENERATE(GradientOp::kAverage, GradientOp::kAdasum);
  const auto compression = GENERATE(Compression::kNone, Compression::kFp16);
  CAPTURE(ranks, op == GradientOp::kAdasum, compression == Compression::kFp16);
  check_same_bits(ranks, [&](const Group& group) {
    Pair net = seeded_pair(kWidth);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    broadcast_parameters(*net, *group);
    DistributedOptimizer optimizer(sgd, net->named_parameters(), group,
                                   {.compression = compression, .op = op, .fusion_threshold_mb = 1});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net->forward(input(group->rank() + 8 * step, kWidth)).square().mean().backward();
      optimizer.step();
    }
    broadcast_optimizer_state(sgd, *group, group->size() - 1);
    forget_gradients(*net);  // Adasum leaves each rank its own
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = parameter.detach().clone();
    return state_text(*net);
  });
}

TEST_CASE("over NCCL gradients add up, are weighted and left out as over the native group") {
  const std::map<std::string, std::pair<DdpOptions, std::function<void(DistributedDataParallel<Pair>&)>>>
      ways{
          {"no_sync",
           {{.gradient_as_bucket_view = false},
            [](auto& ddp) {
              for (int step = 0; step < 3; ++step) {
                const auto guard = ddp.no_sync();
                ddp(input(ddp.group().rank() + step)).square().mean().backward();
              }
              ddp(input(ddp.group().rank())).square().mean().backward();
            }}},
          {"unused",
           {{.find_unused_parameters = true},
            [](auto& ddp) {
              ddp.module()->with_second = ddp.group().rank() == 0;
              for (int step = 0; step < 2; ++step) ddp(input(ddp.group().rank())).square().mean().backward();
              ddp.module()->with_second = false;
              ddp(input(ddp.group().rank())).square().mean().backward();
            }}},
          {"static graph",
           {{.static_graph = true},
            [](auto& ddp) {
              ddp.module()->with_second = false;
              for (int step = 0; step < 3; ++step) ddp(input(ddp.group().rank())).square().mean().backward();
            }}},
          {"weights",
           {{},
            [](auto& ddp) {
              const int rank = ddp.group().rank();
              ddp.backward(ddp(input(rank)).square().sum(), 3 + rank);
            }}},
          {"join",
           {{},
            [](auto& ddp) {
              ddp.join([&] {
                for (int step = 0; step < 1 + ddp.group().rank(); ++step)
                  ddp(input(step)).square().mean().backward();
              });
              forget_gradients(*ddp.module());
              ddp(input(ddp.group().rank())).square().mean().backward();
            }}},
          {"averaged now and then",
           {{.broadcast_buffers = false},
            [](auto& ddp) {
              ddp.register_comm_hook(post_local_sgd({.start_iteration = 1}));
              const Group group(&ddp.group(), [](auto*) {});
              PeriodicModelAverager averager(group, {.period = 1});
              torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
              for (int step = 0; step < 3; ++step) {
                optimizer.zero_grad();
                ddp(input(group->rank())).square().mean().backward();
                optimizer.step();
                averager.average_parameters(ddp.parameters());
              }
              forget_gradients(*ddp.module());  // which are each rank's own
              const torch::NoGradGuard no_grad;
              ddp.module()->steps.zero_();
            }}},
      };
  const std::string way =
      GENERATE("no_sync", "unused", "static graph", "weights", "join", "averaged now and then");
  CAPTURE(way);
  check_same_bits(3, [&](const Group& group) {
    Pair net = seeded_pair(8);
    DistributedDataParallel ddp(net, group, ways.at(way).first);
    ways.at(way).second(ddp);
    return state_text(*net);
  });
}

TEST_CASE("over NCCL a rank that leaves a step out is an error on all, before a gradient is set") {
  const bool hooked = GENERATE(false, true);
  const bool buffers = GENERATE(false, true);
  CAPTURE(hooked, buffers);
  const auto said = run_by_name("nccl", 3, [&](const Group& group) {
    Pair net = seeded_pair(8);
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = buffers});
    if (hooked) ddp.register_comm_hook(bf16_compress());
    ddp(input(group->rank())).square().mean().backward();
    forget_gradients(*net);
    const std::string what = thrown_by([&] {
      for (int step = 1; step < 4; ++step) {
        const torch::Tensor loss = ddp(input(group->rank())).square().mean();
        if (step != 1 || group->rank() != 1) loss.backward();
      }
    });
    const bool set = net->first->weight.grad().defined();
    return what + (set && group->rank() == 1 ? " and a gradient was set" : "");
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") && !Catch::Contains("a gradient was set"));
    // Where buffers are broadcast, that meets what tells the forward.
    if (!buffers) CHECK_THAT(text, Catch::Contains("rank 0 and 1 more in forward 2, rank 1 in forward 3"));
    if (buffers) CHECK_THAT(text, Catch::Contains("broadcast") && Catch::Contains("all_gather"));
  }
}

TEST_CASE("over NCCL a step with inf on one rank is left out on every rank") {
  const auto said = run_by_name("nccl", 3, [](const Group& group) -> std::string {
    Pair net = seeded_pair(8);
    DistributedDataParallel ddp(net, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    GradScaler scaler({.init_scale = 8}, group);
    std::string steps;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      scaler.scale(ddp(input(group->rank())).square().mean()).backward();
      if (step == 1 && group->rank() == 2)  // as clipping by a rank of its own may
        net->first->bias.mutable_grad()[1] = std::numeric_limits<float>::infinity();
      steps += scaler.step(optimizer) ? "1" : "0";
      scaler.update();
    }
    return steps + " " + std::to_string(static_cast<int>(scaler.get_scale())) + " " + state_text(*net);
  });
  for (const std::string& text : said) CHECK_THAT(text, Catch::StartsWith("101 4 "));
}

TEST_CASE("a backward whose reduction fails throws, and survivors go on with the same bits") {
  // How rank 1 fails in step 2: NCCL reports an error, though its kernel looks done, its kernel hangs until
  // somebody hears that its process is gone, a call of NCCL returns an error, or its backward throws. Only of
  // the first may rank 0 hear too late: its own reduction was good, and it is a step ahead.
  const std::string how = GENERATE("error", "hang", "call", "throws");
  const bool hooked = GENERATE(false, true);
  CAPTURE(how, hooked);
  const auto steps = [](DistributedDataParallel<Pair>& ddp, torch::optim::SGD& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer.zero_grad();
      ddp(input(ddp.group().rank() + 8 * step)).square().mean().backward();
      optimizer.step();
    }
  };
  const auto undisturbed = run_by_name("native", 2, [&](const Group& group) {
    Pair net = seeded_pair(8);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    if (hooked) ddp.register_comm_hook(bf16_compress());
    steps(ddp, optimizer, 0, 4);
    return state_text(*net).substr(0, state_text(*net).rfind(' '));
  });
  NcclDouble library;
  std::barrier both(2);  // not the group's: a rank may hear of the failure before it is through with that
  const auto said = run_by_name("nccl", 2, library, [&](Group group) -> std::string {
    Pair net = seeded_pair(8);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    std::int32_t step = 0;
    {
      DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
      if (hooked) ddp.register_comm_hook(bf16_compress());
      steps(ddp, optimizer, 0, 2);
      const std::vector<torch::Tensor> before = [&] {
        std::vector<torch::Tensor> values;
        for (const auto& value : net->parameters()) values.push_back(value.detach().clone());
        return values;
      }();
      std::jthread node;
      both.arrive_and_wait();
      if (group->rank() == 1) node = collectives::testing::fail_rank_1(library, how, group);
      const std::string what = thrown_by([&] {
        const bool throws = how == "throws" && group->rank() == 1;  // when the second layer's are in
        if (throws) {
          net->first->weight.register_hook(
              [](const torch::Tensor&) { throw std::runtime_error("no gradient today"); });
        }
        steps(ddp, optimizer, 2, 3);
      });
      if (how == "throws" && group->rank() == 1) net->first->weight.remove_hook(0);
      node = {};
      const bool ahead = what == "nothing thrown";
      if (ahead && !(how == "error" && group->rank() == 0)) return "nothing was thrown";
      step = ahead ? 3 : 2;
      for (std::size_t i = 0; i < before.size() && !ahead; ++i) {
        if (!torch::equal(before[i], net->parameters()[i])) return "a failed step was applied: " + what;
      }
      if (!ahead && group->host_group().abort_reason().empty()) return "the host's group is good: " + what;
      if (how == "hang" && what.find("the process of rank 1 is gone") == std::string::npos) return what;
    }
    group = group->rebuild();
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false});
    if (hooked) ddp.register_comm_hook(bf16_compress());
    group->host_group().broadcast(std::span(&step, 1), 0)->wait();  // as the parameters are rank 0's
    steps(ddp, optimizer, step, 4);
    const std::string text = state_text(*net).substr(0, state_text(*net).rfind(' '));
    group->barrier()->wait();
    return text;
  });
  CHECK(said[0] == undisturbed[0]);
  CHECK(said[1] == undisturbed[1]);
  CHECK(library.misuse() == std::vector<std::string>{});
}

TEST_CASE("survivors rebuild a group of GPUs without the rank that died, and wrap again") {
  const auto train_on = [](const std::string& backend) {
    std::barrier all(3);
    return run_by_name(backend, 3, [&](Group group) -> std::string {
      Pair net = seeded_pair(kWidth);
      {
        DistributedDataParallel ddp(net, group);
        train(ddp, 2);
        all.arrive_and_wait();
        if (group->rank() == 2) {
          group->abort("the process of rank 2 is gone");
          return "first.weight";
        }
        const std::string what = thrown_by([&] { train(ddp, 1); });
        if (what.find("the process of rank 2 is gone") == std::string::npos) return what;
      }
      group = group->rebuild();
      if (group->size() != 2) return "they are " + std::to_string(group->size());
      net->steps.fill_(group->rank());  // a forward may have begun
      DistributedDataParallel ddp(net, group);
      train(ddp, 2);
      return state_text(*net);
    });
  };
  const auto nccl = train_on("nccl");
  CHECK_THAT(nccl[0], Catch::StartsWith("first.weight "));
  CHECK(nccl[1] == nccl[0]);
  CHECK(train_on("native") == nccl);
}

TEST_CASE("a module that is not where its group's buffers are is refused, with where both are") {
  NcclDouble library;
  Pair net(8);
  collectives::NcclGroupOptions options{.rank = 0, .size = 1, .generation = {1, 1}};
  options.host = lone_native();
  const Group group = collectives::make_nccl_group(options, library.api(0));
  CHECK_THAT(thrown_by([&] { DistributedDataParallel ddp(net, group); }),
             Catch::StartsWith("BadConfig") && Catch::Contains("parameter first.weight is on the CPU") &&
                 Catch::Contains("backend nccl, is of GPUs: this rank's is cuda:0") &&
                 Catch::Contains("net->to(torch::Device(\"cuda:0\"))") &&
                 Catch::Contains("init_process_group(\"native\", ...)"));
  // A device that every machine has beside the CPU stands for a GPU.
  struct AwayImpl : torch::nn::Module {
    explicit AwayImpl(bool buffer) {
      weight = register_parameter("weight", torch::ones({4}, torch::kMeta));
      if (buffer) register_buffer("steps", torch::zeros({1}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
    torch::Tensor weight;
  };
  CHECK_THAT(
      thrown_by([&] { DistributedDataParallel ddp(std::make_shared<AwayImpl>(true), lone_native()); }),
      Catch::StartsWith("BadConfig") &&
          Catch::Contains("several devices: buffer steps is on the CPU, parameter weight is on meta") &&
          Catch::Contains("keep the whole module on the CPU"));
  CHECK_THAT(
      thrown_by([&] { DistributedDataParallel ddp(std::make_shared<AwayImpl>(false), lone_native()); }),
      Catch::StartsWith("BadConfig") && Catch::Contains("parameter weight is on meta") &&
          Catch::Contains("backend native, is of CPUs") &&
          Catch::Contains("net->to(torch::Device(\"cpu\"))"));
}

TEST_CASE(
    "what reduces on a device runs on its default stream, behind the gradients, and what comes next behind "
    "it") {
  RecordingDevice& device = RecordingDevice::anew();
  NcclDouble library;
  collectives::NcclGroupOptions options{.rank = 0, .size = 1, .generation = {1, 1}};
  options.host = lone_native();
  const Group group = on_host(collectives::make_nccl_group(options, library.api(0)));
  torch::nn::Linear net(torch::nn::LinearOptions(2, 2).bias(false));
  BucketReducer reducer({{"weight", net->weight}}, group, {.streams = RecordingDevice::device()});
  reducer.set_hook([&](GradBucket, collectives::ProcessGroup&) -> std::function<void()> {
    device.note("reduce");
    return [&] { device.note("mean"); };
  });
  const auto backward = [&] {
    reducer.begin_forward({1, 0});
    net->forward(torch::ones({1, 2})).sum().backward();
  };
  backward();
  CHECK(device.log == std::vector<std::string>{"reduce", "mean", "host waits for s0"});
  RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  streams.aside(backward);
  const std::vector<std::string> expected{
      "now s1",   "e0 on s1",        "s0 waits for e0",  // the gradient
      "e1 on s1", "s0 waits for e1", "now s0",          "reduce",          "now s1",
      "e2 on s0", "s1 waits for e2", "e3 on s1",        "s0 waits for e3", "now s0",
      "mean",     "now s1",          "e4 on s0",        "s1 waits for e4", "host waits for s1",
      "now s0",   "e5 on s1"};
  CHECK(device.log == expected);
}

}  // namespace
}  // namespace troupe::train::testing
