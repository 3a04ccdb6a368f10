#include <ATen/autocast_mode.h>
#include <malloc.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>

#include "actors/ddp/autocast.hpp"
#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/fully_sharded_data_parallel.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/ddp/unit_plan.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"
#include "tests/actors/ddp/tower.hpp"

namespace troupe::train::testing::fsdp {
namespace {

using Strategy = ShardingStrategy;

template <class Wrapped>
double step(Wrapped& net, torch::optim::Optimizer& optimizer, int at) {
  const collectives::ProcessGroup& group = net.group();
  const Batch batch = batch_of(at, group.rank(), group.size());
  optimizer.zero_grad();
  const torch::Tensor loss = torch::nn::functional::cross_entropy(net(batch.x), batch.y);
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

/// No rank threw or complained.
void check_silent(const std::vector<std::string>& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    CAPTURE(rank, said[rank]);
    CHECK(said[rank].empty());
  }
}

// 30: a bit that differs grows from step to step; 100 steps are held to PyTorch's losses below.
TEST_CASE("30 steps have the bits of DistributedDataParallel's", "[fsdp]") {
  const int ranks = GENERATE(1, 2, 4);
  const std::string optimizer = GENERATE(as<std::string>(), "sgd", "adamw");
  const int how = GENERATE(0, 1, 2);
  CAPTURE(ranks, optimizer, how);
  check_silent(fork_ddp(ranks, [&](const Group& group) -> std::string {
    FsdpOptions options{.units = kUnits};
    if (how == 1) options.sharding_strategy = Strategy::kShardGradOp;
    if (how == 2) options = {.min_num_params = 1000, .prefetch = true};
    Tower whole, sharded;
    DistributedDataParallel ddp(whole, group);
    FullyShardedDataParallel wrapped(sharded, group, options);
    const auto theirs = make_optimizer(optimizer, whole->parameters());
    const auto ours = make_optimizer(optimizer, wrapped.parameters());
    for (int i = 0; i < 30; ++i) {
      const double expected = step(ddp, *theirs, i), found = step(wrapped, *ours, i);
      if (expected != found) return "step " + std::to_string(i) + ": " + std::to_string(found - expected);
    }
    const StateDict state = wrapped.full_state_dict();
    if (group->rank() != 0) return state.is_empty() ? "" : "a state on another rank";
    for (const auto& item : whole->named_parameters()) {
      if (!torch::equal(state[item.key()], item.value())) return item.key();
    }
    return "";
  }));
}

/// golden/make_fsdp_golden.py: PyTorch, one process, the whole batch.
TEST_CASE("the losses of 100 steps are those of one process of PyTorch's with the whole batch", "[fsdp]") {
  auto golden = golden_losses(TROUPE_GOLDEN_DIR "/fsdp_golden.txt");
  for (const std::string name : {"sgd", "adamw"}) {
    REQUIRE(golden[name].size() == 100);
    check_silent(fork_ddp(4, [&](const Group& group) -> std::string {
      Tower net;
      FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
      const auto optimizer = make_optimizer(name, wrapped.parameters());
      for (int i = 0; i < 100; ++i) {
        std::vector<double> loss{step(wrapped, *optimizer, i) / group->size()};
        group->all_reduce(loss)->wait();
        const double apart = loss[0] - golden[name][static_cast<std::size_t>(i)];
        if (!(std::abs(apart) < 1e-5)) return "step " + std::to_string(i) + ": " + std::to_string(apart);
      }
      return "";
    }));
  }
}

std::size_t bytes_in_use() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_CASE("what is not used is freed: a rank keeps its shards, and one unit and the root while they work",
          "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    constexpr std::size_t kMebibyte = 1 << 20;
    const std::size_t before = bytes_in_use();
    Tower net(/*blocks=*/4, /*width=*/1024);  // 8 MiB a block: 32
    const std::size_t with_net = bytes_in_use();
    if (with_net < before + 32 * kMebibyte) return "the net is small";
    FullyShardedDataParallel wrapped(net, group, {.units = {"layers.0", "layers.1", "layers.2", "layers.3"}});
    if (bytes_in_use() > before + 18 * kMebibyte)
      return "wrapped: " + std::to_string(bytes_in_use() - before);
    torch::optim::SGD optimizer(wrapped.parameters(), 0.01);
    const torch::Tensor weight =
        net->layers[0]->as<torch::nn::SequentialImpl>()->named_parameters()["1.weight"];
    for (int i = 0; i < 2; ++i) {
      step(wrapped, optimizer, i);
      if (weight.storage().nbytes() != 0 || weight.storage().data_ptr().get() != nullptr) return "there";
      if (wrapped.whole_bytes() != 0) return "whole";
      for (const torch::Tensor& shard : wrapped.parameters()) shard.mutable_grad() = torch::Tensor();
      if (bytes_in_use() > before + 18 * kMebibyte)
        return "stepped: " + std::to_string(bytes_in_use() - before);
    }
    // A block and the root: 8.1 MiB and a few KiB.
    if (wrapped.max_whole_bytes() > 9 * kMebibyte)
      return "at most " + std::to_string(wrapped.max_whole_bytes());
    const torch::NoGradGuard no_grad;
    wrapped(torch::ones({1, 8}));
    return wrapped.whole_bytes() == 0 ? "" : "an evaluation leaves something whole";
  }));
}

TEST_CASE("ZeRO-2 keeps parameters whole from the forward to the end of the backward", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    Tower net;
    FullyShardedDataParallel wrapped(net, group,
                                     {.units = kUnits, .sharding_strategy = Strategy::kShardGradOp});
    const torch::Tensor loss = wrapped(torch::ones({2, 8})).square().mean();
    std::size_t all = 0;
    for (const torch::Tensor& shard : wrapped.parameters()) all += shard.nbytes() * 2;
    if (wrapped.whole_bytes() != all) return "not whole after the forward";
    loss.backward();
    return wrapped.whole_bytes() == 0 ? "" : "whole after the backward";
  }));
}

/// Operators that take parameters of two units, and lists of parameters.
struct CrossedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h =
        torch::linear(x, a->weight * b->weight, torch::cat({a->bias, b->bias}).narrow(0, 4, 8));
    return std::get<0>(lstm(h.unsqueeze(1))).sum() + (a->weight.t().matmul(b->weight)).square().sum();
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(8, 8));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(8, 8));
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(8, 16));
};
TORCH_MODULE(Crossed);

TEST_CASE("an operator may take parameters of several units, and lists of them", "[fsdp]") {
  const bool prefetch = GENERATE(false, true);
  check_silent(fork_ddp(2, [&](const Group& group) -> std::string {
    torch::manual_seed(3);
    Crossed whole, sharded;
    FullyShardedDataParallel wrapped(sharded, group, {.units = {"a", "b", "lstm"}, .prefetch = prefetch});
    wrapped.load_full_state_dict(whole->named_parameters());
    DistributedDataParallel ddp(whole, group);
    torch::optim::AdamW theirs(whole->parameters(), 0.01), ours(wrapped.parameters(), 0.01);
    for (int i = 0; i < 5; ++i) {
      const torch::Tensor x = batch_of(i, group->rank(), 2).x;
      theirs.zero_grad();
      ours.zero_grad();
      const torch::Tensor expected = ddp(x), found = wrapped(x);
      if (!torch::equal(expected, found)) return "step " + std::to_string(i);
      expected.backward();
      found.backward();
      theirs.step();
      ours.step();
    }
    return "";
  }));
}

/// Gradients of a whole module on one rank against those in the shards, by way of one step of plain SGD.
std::string compare(Tower& whole, FullyShardedDataParallel<Tower>& wrapped, double tolerance) {
  torch::optim::SGD theirs(whole->parameters(), 1.0), ours(wrapped.parameters(), 1.0);
  theirs.step();
  ours.step();
  const StateDict state = wrapped.full_state_dict();
  if (state.is_empty()) return "";
  for (const auto& item : whole->named_parameters()) {
    if (!torch::allclose(state[item.key()], item.value(), tolerance, tolerance)) return item.key();
  }
  return "";
}

TEST_CASE(
    "gradients add up: no_sync, two forwards before a backward, two backwards, and steps that are not "
    "zeroed",
    "[fsdp]") {
  const int how = GENERATE(0, 1, 2, 3);
  CAPTURE(how);
  check_silent(fork_ddp(2, [&](const Group& group) -> std::string {
    Tower whole, sharded;
    DistributedDataParallel ddp(whole, group);
    FullyShardedDataParallel wrapped(sharded, group, {.units = kUnits});
    const auto backward = [&](auto& net) {
      const auto loss = [&](int at) { return net(batch_of(at, group->rank(), 2).x).square().mean(); };
      if (how == 0) {
        {
          const auto guard = net.no_sync();
          loss(0).backward();
          loss(1).backward();
        }
        loss(2).backward();
      } else if (how == 1) {
        const torch::Tensor first = loss(0), second = loss(1);
        (first + second).backward();
      } else if (how == 2) {
        const torch::Tensor once = loss(0);
        once.backward({}, /*keep_graph=*/true);
        once.backward();
      } else {
        loss(0).backward();
        loss(1).backward();
      }
    };
    backward(ddp);
    backward(wrapped);
    return compare(whole, wrapped, 1e-6);
  }));
}

TEST_CASE("a unit that nobody used has gradients of zeros", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    Tower whole, sharded;
    DistributedDataParallel ddp(whole, group, {.find_unused_parameters = true});
    FullyShardedDataParallel wrapped(sharded, group, {.units = kUnits});
    whole->order = sharded->order = {2, 0};
    const torch::Tensor x = batch_of(0, group->rank(), 2).x;
    ddp(x).square().mean().backward();
    wrapped(x).square().mean().backward();
    for (std::size_t i = 0; i < wrapped.units().size(); ++i) {
      const torch::Tensor gradient = wrapped.parameters()[i].grad();
      if (!gradient.defined()) return wrapped.units()[i] + " has none";
      if (wrapped.units()[i] == "layers.1" && gradient.abs().max().item<float>() != 0) return "not zeros";
    }
    return compare(whole, wrapped, 1e-6);
  }));
}

/// The evaluation's no_sync was taken for the forward's, and nothing was reduced.
TEST_CASE("an evaluation between a forward and its backward changes nothing", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    Tower whole, sharded;
    DistributedDataParallel ddp(whole, group);
    FullyShardedDataParallel wrapped(sharded, group, {.units = kUnits});
    const torch::Tensor x = batch_of(0, group->rank(), 2).x;
    ddp(x).square().mean().backward();
    const torch::Tensor loss = wrapped(x).square().mean();
    {
      const auto guard = wrapped.no_sync();
      const torch::NoGradGuard no_grad;
      wrapped(batch_of(1, group->rank(), 2).x);
    }
    loss.backward();
    for (const torch::Tensor& shard : wrapped.parameters()) {
      if (!shard.grad().defined()) return "a shard has no gradient";
    }
    return compare(whole, wrapped, 1e-6);
  }));
}

/// Identity whose backward runs another one, of a parameter whose unit is reduced by then.
struct Again : torch::autograd::Function<Again> {
  static inline TowerImpl* net = nullptr;
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_graph(true);
    net->inlet->weight.sum().backward();
    return gradients;
  }
};

/// It was added to the next step's.
TEST_CASE("a gradient that comes again when its unit was reduced is refused", "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    Again::net = net.get();
    const torch::Tensor x = Again::apply(torch::ones({1, 8}).requires_grad_());
    return thrown_by([&] { wrapped(x).sum().backward(); });
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Contains("the gradient of inlet.weight cannot be reduced"));
}

/// Identity whose backward gives nothing.
struct Silent : torch::autograd::Function<Silent> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {torch::Tensor()};
  }
};
struct HalfImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return (x * used * Silent::apply(silent)).sum(); }
  torch::Tensor used = register_parameter("used", torch::ones({8}));
  torch::Tensor silent = register_parameter("silent", torch::ones({8}));
};
TORCH_MODULE(Half);

/// The group was aborted: the hook was told of a gradient that is not there.
TEST_CASE("a parameter whose backward gives no gradient has one of zeros", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    Half net;
    FullyShardedDataParallel wrapped(net, group);
    torch::optim::SGD optimizer(wrapped.parameters(), 1.0);
    wrapped(torch::ones({8})).backward();
    optimizer.step();
    const StateDict state = wrapped.full_state_dict();
    if (state.is_empty()) return "";
    if (!torch::equal(state["used"], torch::zeros({8}))) return "used";
    return torch::equal(state["silent"], torch::ones({8})) ? "" : "silent";
  }));
}

TEST_CASE("clip_grad_norm_ takes the norm over all ranks and units", "[fsdp]") {
  const double type = GENERATE(2.0, 1.0, double(INFINITY));
  CAPTURE(type);
  check_silent(fork_ddp(2, [&](const Group& group) -> std::string {
    Tower whole, sharded;
    DistributedDataParallel ddp(whole, group);
    FullyShardedDataParallel wrapped(sharded, group, {.units = kUnits});
    const torch::Tensor x = batch_of(0, group->rank(), 2).x;
    ddp(x).square().mean().backward();
    wrapped(x).square().mean().backward();
    const double expected = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.01, type);
    const double found = wrapped.clip_grad_norm_(0.01, type);
    if (std::abs(found - expected) > 1e-5 * expected) return std::to_string(found - expected);
    if (wrapped.clip_grad_norm_(1000, type) > 0.0101) return "not clipped";
    return compare(whole, wrapped, 1e-6);
  }));
}

TEST_CASE("a GradScaler of the group leaves a step out on every rank, under autocast", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    Pair net;  // the CPU has no LayerNorm of bfloat16 with float weights
    FullyShardedDataParallel wrapped(net, group, {.units = {"first", "second"}});
    torch::optim::SGD optimizer(wrapped.parameters(), 0.1);
    GradScaler scaler({.init_scale = 8}, group);
    for (int i = 0; i < 3; ++i) {
      std::vector<torch::Tensor> before;
      for (const torch::Tensor& shard : wrapped.parameters()) before.push_back(shard.detach().clone());
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const Autocast autocast(torch::kCPU, torch::kBFloat16);
        loss = wrapped(batch_of(i, group->rank(), 2).x).to(torch::kFloat).square().mean();
      }
      if (i == 1 && group->rank() == 1) loss = loss * INFINITY;
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      for (std::size_t u = 0; u < before.size(); ++u) {
        if (torch::equal(before[u], wrapped.parameters()[u]) != (i == 1))
          return "step " + std::to_string(i) + ", unit " + wrapped.units()[u];
      }
    }
    return scaler.get_scale() == 4 ? "" : "scale " + std::to_string(scaler.get_scale());
  }));
}

std::string saved(const StateDict& state) {
  c10::Dict<std::string, torch::Tensor> values;
  for (const auto& item : state) values.insert(item.key(), item.value());
  const std::vector<char> bytes = torch::pickle_save(values);
  return {bytes.begin(), bytes.end()};
}
StateDict loaded(const std::string& bytes) {
  StateDict state;
  if (bytes.empty()) return state;
  const auto values = torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  for (const auto& item : values) state.insert(item.key().toStringRef(), item.value().toTensor());
  return state;
}

TEST_CASE("a full state goes on with other ranks and units, the optimizer's too, and into a bare module",
          "[fsdp]") {
  const std::string name = GENERATE(as<std::string>(), "sgd", "adamw");
  // "rank 0's state, its optimizer's, and the losses after it" of 2 ranks.
  constexpr std::size_t kSplit = 12;
  const auto numbers = [](std::size_t a, std::size_t b) {
    std::ostringstream text;
    text << std::setw(kSplit) << a << std::setw(kSplit) << b;
    return text.str();
  };
  const auto losses = [](auto& wrapped, torch::optim::Optimizer& optimizer) {
    std::vector<double> found;
    for (int i = 10; i < 15; ++i) found.push_back(step(wrapped, optimizer, i) / wrapped.group().size());
    wrapped.group().all_reduce(found)->wait();
    return found;
  };
  std::vector<std::string> said = fork_ddp(2, [&](const Group& group) -> std::string {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    const auto optimizer = make_optimizer(name, wrapped.parameters());
    for (int i = 0; i < 10; ++i) step(wrapped, *optimizer, i);
    const std::string state = saved(wrapped.full_state_dict());
    const std::string kept = saved(wrapped.full_optimizer_state_dict(*optimizer));
    const std::vector<double> after = losses(wrapped, *optimizer);
    const std::string last(reinterpret_cast<const char*>(after.data()), after.size() * sizeof(double));
    return numbers(state.size(), kept.size()) + state + kept + last;
  });
  const std::string& first = said[0];
  REQUIRE(first.rfind("threw", 0) != 0);
  const std::size_t state_size = std::stoul(first.substr(0, kSplit));
  const std::size_t kept_size = std::stoul(first.substr(kSplit, kSplit));
  const std::string state = first.substr(2 * kSplit, state_size);
  const std::string kept = first.substr(2 * kSplit + state_size, kept_size);
  std::vector<double> expected(5);
  std::memcpy(expected.data(), first.data() + 2 * kSplit + state_size + kept_size, 5 * sizeof(double));

  // As it is, or as a wrapper of PyTorch's saves it.
  const std::string prefix = GENERATE(as<std::string>(), "", "module.");
  check_silent(fork_ddp(4, [&](const Group& group) -> std::string {
    Tower net;
    for (auto& parameter : net->parameters()) parameter.detach().zero_();
    FullyShardedDataParallel wrapped(net, group, {.min_num_params = 1000});
    const auto optimizer = make_optimizer(name, wrapped.parameters());
    const bool is_root = group->rank() == 3;
    StateDict given;
    if (is_root) {
      for (const auto& item : loaded(state)) given.insert(prefix + item.key(), item.value());
    }
    wrapped.load_full_state_dict(given, 3);
    wrapped.load_full_optimizer_state_dict(*optimizer, is_root ? loaded(kept) : StateDict(), 3);
    const StateDict again = wrapped.full_state_dict(),
                    kept_again = wrapped.full_optimizer_state_dict(*optimizer);
    if (group->rank() == 0) {
      for (const auto& item : loaded(state)) {
        if (!torch::equal(item.value(), again[item.key()])) return item.key();
      }
      for (const auto& item : loaded(kept)) {
        if (!torch::equal(item.value(), kept_again[item.key()])) return item.key();
      }
      if (kept_again.size() != loaded(kept).size()) return "fields";
      Tower bare;
      const torch::NoGradGuard no_grad;
      for (auto& item : bare->named_parameters()) item.value().copy_(again[item.key()]);
    }
    const std::vector<double> found = losses(wrapped, *optimizer);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!(std::abs(found[i] - expected[i]) < 1e-5)) return "loss " + std::to_string(found[i] - expected[i]);
    }
    return "";
  }));
}

TEST_CASE("an optimizer that was made before the wrap, and a parameter outside of it, are errors", "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Tower net;
    torch::optim::SGD before(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    torch::optim::AdamW after(net->parameters(), 0.1);
    std::string text = "1 " + thrown_by([&] { net->forward(torch::ones({1, 8})); });
    text += "\n2 " + thrown_by([&] { net->norm->weight.sum(); });
    wrapped(torch::ones({1, 8})).sum().backward();
    text += "\n3 " + thrown_by([&] { before.step(); });
    text += "\n4 " + thrown_by([&] { after.step(); });
    text += "\n5 " + thrown_by([&] { net->zero_grad(); });
    text += "\n6 " + thrown_by([&] { wrapped.full_optimizer_state_dict(before); });
    wrapped(torch::ones({1, 8})).sum().backward();  // and it goes on
    torch::optim::LBFGS unknown(wrapped.parameters());
    text += "\n7 " + thrown_by([&] { wrapped.full_optimizer_state_dict(unknown); });
    return text + "\n8 " + thrown_by([&] {
             Tower other(net);
             FullyShardedDataParallel twice(other, group);
           });
  });
  for (const std::string& text : said) {
    CAPTURE(text);
    std::istringstream lines(text);
    std::vector<std::string> line(9);
    for (std::size_t i = 1; i < line.size(); ++i) std::getline(lines, line[i]);
    CHECK_THAT(line[1], Catch::Contains("BadConfig: parameter inlet.weight of unit inlet is not there") &&
                            Catch::Contains("outside of the wrapper's forward"));
    CHECK_THAT(line[2], Catch::Contains("parameter norm.weight of the root is not there"));
    for (const std::size_t i : {3, 4, 5}) {
      if (i == 5 && TORCH_VERSION_MAJOR >= 2) continue;  // which drops gradients, and does not look at them
      CHECK_THAT(line[i], Catch::Contains("parameter inlet.weight of unit inlet is not there") &&
                              Catch::Contains("make the optimizer after wrapping, over fsdp.parameters()"));
    }
    CHECK_THAT(line[3], Catch::Contains("BadConfig: the .grad of parameter inlet.weight"));
    CHECK_THAT(line[6], Catch::Contains("is no shard of this wrapper") &&
                            Catch::Contains("make it after wrapping, over fsdp.parameters()"));
    CHECK_THAT(line[7], Catch::Contains("is none of SGD, Adam, AdamW, RMSprop and Adagrad"));
    CHECK_THAT(line[8], Catch::Contains("parameter inlet.weight is wrapped already"));
  }
}

/// A change in place went with the unit's memory, without a word: embeddings' max_norm, and weights that a
/// module clamps itself.
struct ChangingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::NoGradGuard no_grad;
    if (renorms) return torch::embedding_renorm_(table, x.to(torch::kInt64), 0.5, 2);
    if (views) return table.t().clamp_(-1, 1);
    free.mul_(2);
    return x * table.sum() * free;
  }
  torch::Tensor table = register_parameter("table", torch::ones({4, 3}));
  torch::Tensor free = register_parameter("free", torch::ones({1}), /*requires_grad=*/false);
  bool renorms = false, views = false;
};
TORCH_MODULE(Changing);

TEST_CASE(
    "a parameter that is changed in place in a forward is an error that names it; one kept whole is not",
    "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Changing net;
    FullyShardedDataParallel wrapped(net, group);
    net->renorms = true;
    std::string text = thrown_by([&] { wrapped(torch::ones({2})); });
    net->renorms = false;
    net->views = true;
    text += "\n" + thrown_by([&] { wrapped(torch::ones({2})); });
    net->views = false;
    const torch::NoGradGuard no_grad;
    wrapped(torch::ones({2}));
    const bool changed = wrapped(torch::ones({2})).sum().item<float>() == 2 * 12 * 4;
    return text + (changed ? "\nchanged" : "");
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("BadConfig: parameter table of the root cannot be changed in place: "
                                       "aten::embedding_renorm_ writes") &&
                         Catch::Contains("max_norm") && Catch::EndsWith("\nchanged"));
    CHECK_THAT(text, Catch::Contains("aten::clamp_ writes"));
  }
}

/// LibTorch's own Linear multiplies by a view of its weight, whose casts autocast does not keep.
struct SquareImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
  torch::Tensor weight = register_parameter("weight", torch::ones({1024, 1024}));  // 4 MiB
};
TORCH_MODULE(Square);

/// Autocast kept the casts of all units until its end.
TEST_CASE("a forward without gradients under autocast leaves nothing of a unit", "[fsdp]") {
  check_silent(fork_ddp(2, [](const Group& group) -> std::string {
    constexpr std::size_t kMebibyte = 1 << 20;
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = torch::ones({1, 1024});
    const Autocast autocast(torch::kCPU, torch::kBFloat16);
    const std::size_t before = bytes_in_use();
    for (int i = 0; i < 2; ++i) {
      Square net;
      FullyShardedDataParallel wrapped(net, group);
      if (wrapped(x).scalar_type() != torch::kBFloat16) return "not cast";
    }
    if (bytes_in_use() > before + kMebibyte) return std::to_string(bytes_in_use() - before) + " bytes";
    return at::autocast::is_autocast_cache_enabled() ? "" : "the cache stays off";
  }));
}

TEST_CASE("a module outlives its wrapper without its weights, and says so; its parameters stay what they are",
          "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Tower net;
    std::string text;
    {
      FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
      text = "1 " + thrown_by([&] { net->head->weight.set_data(torch::ones({5, 24})); });
      net->inlet->bias.set_requires_grad(false);
      text += "\n2 " + thrown_by([&] { wrapped(torch::ones({1, 8})); });
      net->inlet->bias.set_requires_grad(true);
      net->head->register_parameter("late", torch::ones({1}));
      text += "\n3 " + thrown_by([&] { wrapped(torch::ones({1, 8})); });
    }
    return text + "\n4 " + thrown_by([&] { net->head->weight.sum(); });
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("1 BadConfig: parameter head.weight of the root is not there"));
    CHECK_THAT(text,
               Catch::Contains("2 BadConfig: parameter inlet.bias is not sharded: it was removed or frozen"));
    CHECK_THAT(text, Catch::Contains("3 BadConfig: parameter head.late is not sharded: it was added"));
    CHECK_THAT(text, Catch::Contains("4 BadConfig: a sharded parameter is not there: its "
                                     "FullyShardedDataParallel has ended"));
  }
}

TEST_CASE("states of another module, layout, rank or number of ranks are refused, with both", "[fsdp]") {
  const auto locals = fork_ddp(2, [](const Group& group) {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    return saved(wrapped.local_state_dict());
  });
  const auto said = fork_ddp(2, [&](const Group& group) {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    const auto mine = static_cast<std::size_t>(group->rank());
    std::string text = thrown_by([&] { wrapped.load_local_state_dict(loaded(locals[mine])); });
    text += '\n' + thrown_by([&] { wrapped.load_local_state_dict(loaded(locals[1 - mine])); });
    StateDict cut = loaded(locals[mine]);  // within its last line end: it was compared forever
    cut["layout"] = cut["layout"].narrow(0, 0, cut["layout"].numel() - 1);
    text += '\n' + thrown_by([&] { wrapped.load_local_state_dict(cut); });
    Tower wide(3, 40);
    FullyShardedDataParallel other(wide, group, {.units = kUnits});
    text += '\n' + thrown_by([&] { other.load_local_state_dict(loaded(locals[mine])); });
    const StateDict full = wrapped.full_state_dict();
    text += '\n' + thrown_by([&] { other.load_full_state_dict(full); });
    StateDict less = full;
    if (less.contains("norm.bias")) less.erase("norm.bias");
    text += '\n' + thrown_by([&] { wrapped.load_full_state_dict(less); });
    Tower third;
    FullyShardedDataParallel units(third, group, {.units = {"layers"}});
    return text + '\n' + thrown_by([&] { units.load_local_state_dict(loaded(locals[mine])); });
  });
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    const std::string other = std::to_string(1 - rank), mine = std::to_string(rank);
    CAPTURE(said[rank]);
    CHECK_THAT(said[rank], Catch::StartsWith("nothing thrown\n"));
    CHECK_THAT(said[rank], Catch::Contains("the state has 'nothing more' where this wrapper has"));
    CHECK_THAT(said[rank], Catch::Contains("the state has 'rank " + other +
                                           " of 2' where this wrapper has 'rank " + mine + " of 2'"));
    CHECK_THAT(
        said[rank],
        Catch::Contains("'inlet.weight Float [24, 8]' where this wrapper has 'inlet.weight Float [40, 8]'"));
    CHECK_THAT(said[rank],
               Catch::Contains("inlet.weight is Float [40, 8] here and Float [24, 8] in the state"));
    CHECK_THAT(said[rank], Catch::Contains("norm.bias is Float [24] here and is not in the state"));
    CHECK_THAT(said[rank], Catch::Contains("'unit inlet has' where this wrapper has 'the root has'"));
  }
  const auto of_four = fork_ddp(4, [&](const Group& group) {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    return thrown_by([&] { wrapped.load_local_state_dict(loaded(locals[0])); });
  });
  CHECK_THAT(of_four[1], Catch::Contains("'rank 0 of 2' where this wrapper has 'rank 1 of 4'"));
}

/// Nothing compared forwards without gradients: rank 1 computed with another unit's weights.
TEST_CASE(
    "ranks that use units of one size in different orders are told before a gradient is set, or a result "
    "is returned",
    "[fsdp]") {
  const bool trains = GENERATE(true, false);
  const auto said = fork_ddp(2, [&](const Group& group) {
    const torch::AutoGradMode mode(trains);
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    if (group->rank() == 0) {
      net->order = {0, 1, 2};
    } else {
      net->order = {1, 0, 2};
    }
    const std::string text = thrown_by([&] {
      const torch::Tensor sum = wrapped(torch::ones({1, 8})).sum();
      if (trains) sum.backward();
    });
    return text + (wrapped.parameters()[0].grad().defined() ? " set" : " unset");
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::StartsWith("CollectiveAborted") && Catch::EndsWith(" unset"));
    CHECK_THAT(text, Catch::Contains(
                         "in use 2 since they were last compared, rank 0 used unit layers.0 and rank 1 used "
                         "unit layers.1"));
  }
}

TEST_CASE("a backward that throws aborts the group, and what was whole is freed", "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Tower net;
    FullyShardedDataParallel wrapped(net, group, {.units = kUnits});
    torch::Tensor x = torch::ones({1, 8}).requires_grad_();
    if (group->rank() == 1) x = Thrower::apply(x);
    const std::string text = thrown_by([&] { wrapped(x).sum().backward(); });
    return text + (wrapped.whole_bytes() == 0 ? "" : " left");
  });
  CHECK_THAT(said[0], Catch::StartsWith("CollectiveAborted") && Catch::Contains("rank 1: a backward ended"));
  CHECK_THAT(said[1], Catch::Contains("no gradient today") && !Catch::EndsWith("left"));
}

/// MPI wrote into memory that had been given to somebody else.
TEST_CASE("what an operation is at that never ends stays", "[fsdp]") {
  const bool is_quiet = GENERATE(true, false);
  const auto said = fork_ddp(2, [&](const Group& group) -> std::string {
    FlatUnit unit("", {{"weight", torch::ones({1 << 20}).requires_grad_()}}, group,
                  DeviceStreams(torch::kCPU));
    group->barrier()->wait();
    if (group->rank() != 0) return "";
    unit.begin_gather();
    const std::size_t before = bytes_in_use();
    group->abort("enough");
    group->await_quiet();
    unit.abandon(is_quiet);
    if (unit.has_memory()) return "whole";
    return bytes_in_use() + (3 << 20) < before ? "freed" : "kept";
  });
  CHECK(said[0] == (is_quiet ? "freed" : "kept"));
}

TEST_CASE("a parameter that modules share is of one unit, under all its names", "[fsdp]") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Tower net;
    net->head->register_parameter("tied", net->inlet->weight);
    const std::string text = thrown_by([&] { FullyShardedDataParallel(net, group, {.units = kUnits}); });
    const std::string apart = thrown_by([&] {
      FullyShardedDataParallel(net, group, {.units = {group->rank() == 0 ? "layers.0" : "layers.1"}});
    });
    FullyShardedDataParallel wrapped(net, group, {.units = {"layers.0"}});
    wrapped(torch::ones({1, 8})).sum().backward();
    const StateDict state = wrapped.full_state_dict();
    wrapped.load_full_state_dict(state);
    if (!state.is_empty() && !torch::equal(state["inlet.weight"], state["head.tied"]))
      return std::string("differ");
    return text + " " + apart;
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("the ranks' modules differ"));
    CHECK_THAT(text, Catch::Contains(
                         "parameter inlet.weight of unit inlet is parameter head.tied of the root, too"));
  }
}

std::string refused(const std::vector<PlannedParameter>& parameters, const FsdpOptions& options) {
  return thrown_by([&] { plan_units({"a", "b", "a.in"}, {}, parameters, options); });
}

TEST_CASE("units: the innermost named or large enough module has a parameter", "[fsdp]") {
  const std::vector<PlannedParameter> parameters{
      {{"top"}, 1, "Float"}, {{"a.w"}, 10, "Float"}, {{"a.in.w"}, 20, "Float"}, {{"b.w"}, 5, "Float"}};
  const auto text_of = [&](const FsdpOptions& options, const std::vector<std::string>& containers = {}) {
    std::string text;
    for (const PlannedUnit& unit : plan_units({"a", "b", "a.in"}, containers, parameters, options)) {
      text += unit.name + ":";
      for (const std::size_t i : unit.members) text += std::to_string(i);
      text += " ";
    }
    return text;
  };
  CHECK(text_of({}) == ":0123 ");
  CHECK(text_of({.units = {"a"}}) == ":03 a:12 ");
  CHECK(text_of({.units = {"a", "a.in"}}) == ":03 a:1 a.in:2 ");
  CHECK(text_of({.min_num_params = 20}) == ":013 a.in:2 ");
  CHECK(text_of({.min_num_params = 30}) == ":03 a:12 ");
  CHECK(text_of({.min_num_params = 31}) == ":0123 ");
  CHECK(text_of({.min_num_params = 10}) == ":03 a:1 a.in:2 ");
  CHECK(text_of({.min_num_params = 10}, {"a"}) == ":013 a.in:2 ");

  CHECK_THAT(refused(parameters, {.units = {"c"}}),
             Catch::Contains("unit 'c' is no module of it") && Catch::Contains("name some of a, b, a.in"));
  CHECK_THAT(refused(parameters, {.units = {"a", "a"}}), Catch::Contains("unit a is there twice"));
  CHECK_THAT(refused({{{"b.w"}, 1, "Float"}}, {.units = {"a"}}), Catch::Contains("unit a has no parameter"));
  CHECK_THAT(refused({{{"a.w", "b.w"}, 1, "Float"}}, {.units = {"a"}}),
             Catch::Contains("parameter a.w of unit a is parameter b.w of the root, too"));
  CHECK(refused({{{"a.w", "b.w"}, 1, "Float"}}, {}) == "nothing thrown");
  CHECK_THAT(refused({{{"a.w"}, 1, "Float"}, {{"a.v"}, 1, "Half"}}, {.units = {"a"}}),
             Catch::Contains("unit a has parameters of several types: a.w is Float, a.v is Half"));
}

}  // namespace
}  // namespace troupe::train::testing::fsdp
