// DataParallel over replicas on the CPU: what holds for CUDA devices but for copies between them.
#include "actors/ddp/data_parallel.hpp"

#include <torch/torch.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

/// BatchNorm, a plain field, and a parameter that not every forward uses.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(bool with_norm_in = false) : with_norm(with_norm_in) { reset(); }
  void reset() override {
    a = register_module("a", torch::nn::Linear(6, 8));
    b = register_module("b", torch::nn::Linear(8, 3));
    spare = register_parameter("spare", torch::ones({3}));
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(8));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor hidden = a->forward(x);
    if (with_norm) hidden = norm->forward(hidden);
    if (c10::InferenceMode::is_enabled()) inferences().fetch_add(1);
    const torch::Tensor y = b->forward(torch::tanh(hidden));
    return x.size(0) > 3 ? factor * y * spare : factor * y;
  }
  /// Forwards in inference mode.
  static std::atomic<int>& inferences() {
    static std::atomic<int> count = 0;
    return count;
  }
  bool with_norm;
  double factor = 1;
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor spare;
};
TORCH_MODULE(Net);

torch::Tensor batch(std::int64_t samples) {
  return torch::sin(torch::arange(samples * 6, torch::kFloat32)).reshape({samples, 6});
}

std::vector<torch::Tensor> gradients(torch::nn::Module& net) {
  std::vector<torch::Tensor> found;
  for (auto& parameter : net.parameters()) {
    found.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
    parameter.mutable_grad() = torch::Tensor();
  }
  return found;
}

void check_close(const std::vector<torch::Tensor>& one, const std::vector<torch::Tensor>& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CAPTURE(i);
    CHECK((one[i] - other[i]).abs().max().item<double>() < 1e-6);
  }
}

TEST_CASE("outputs and gradients over replicas are those of the module on the whole batch") {
  // 10 samples on 3 devices are 4, 4 and 2; 2 samples on 3 are 1 and 1; the last replica uses no `spare`.
  const std::int64_t samples = GENERATE(9, 10, 2, 1);
  const int replicas = GENERATE(2, 3);
  CAPTURE(samples, replicas);
  torch::manual_seed(1);
  Net net;
  const torch::Tensor x = batch(samples);
  std::vector<torch::Tensor> parts;
  for (const Chunk& chunk : chunks_of(samples, static_cast<std::size_t>(replicas), {}))
    parts.push_back(net->forward(x.narrow(0, chunk.begin, chunk.size)));
  const torch::Tensor alone = torch::cat(parts);
  alone.square().mean().backward();
  const auto expected = gradients(*net);

  DataParallel dp(net, {.replicas = replicas});
  for (int step = 0; step < 2; ++step) {
    const torch::Tensor output = dp->forward(x);
    CHECK(torch::equal(output, alone));
    output.square().mean().backward();
    check_close(gradients(*net), expected);
  }
  // Two forwards and one backward: gradients add up.
  (dp(x).square().mean() + dp(x).square().mean()).backward();
  auto twice = gradients(*net);
  for (torch::Tensor& gradient : twice) gradient /= 2;
  check_close(twice, expected);
}

TEST_CASE("inputs that need a gradient get it, and a frozen parameter none") {
  Net net;
  net->a->weight.set_requires_grad(false);
  DataParallel dp(net, {.replicas = 2});
  const torch::Tensor x = batch(5).requires_grad_();
  dp(x).sum().backward();
  const torch::Tensor through = x.grad().clone();
  x.mutable_grad() = torch::Tensor();
  CHECK_FALSE(net->a->weight.grad().defined());
  torch::cat({net->forward(x.narrow(0, 0, 3)), net->forward(x.narrow(0, 3, 2))}).sum().backward();
  CHECK(torch::allclose(through, x.grad()));
}

TEST_CASE("batches are cut up as torch::chunk does, or by chunk_sizes") {
  const auto sizes = [](std::int64_t samples, std::size_t devices, std::vector<std::int64_t> given = {}) {
    std::vector<std::int64_t> found;
    std::int64_t begin = 0;
    for (const Chunk& chunk : chunks_of(samples, devices, given)) {
      CHECK(chunk.begin == begin);
      begin += chunk.size;
      found.push_back(chunk.size);
    }
    CHECK(begin == samples);
    return found;
  };
  for (std::int64_t samples = 1; samples < 12; ++samples) {
    for (std::size_t devices = 1; devices < 6; ++devices) {
      std::vector<std::int64_t> expected;
      for (const torch::Tensor& part : torch::arange(samples).chunk(static_cast<std::int64_t>(devices)))
        expected.push_back(part.size(0));
      CHECK(sizes(samples, devices) == expected);
    }
  }
  CHECK(sizes(0, 3) == std::vector<std::int64_t>{0});
  CHECK(sizes(10, 3, {7, 1, 2}) == std::vector<std::int64_t>{7, 1, 2});
  CHECK_THROWS_WITH(chunks_of(9, 2, {7, 1}), Catch::Contains("a batch of 9 samples") &&
                                                 Catch::Contains("the chunk_sizes sum up to 8"));
  Net net;
  DataParallel dp(net, {.replicas = 2, .chunk_sizes = {2, 5}});
  CHECK(dp(batch(7)).size(0) == 7);
  CHECK_THAT(thrown_by([&] { dp(batch(6)); }), Catch::StartsWith("BadInput"));
}

/// Takes and returns containers, of samples in dimension 1.
struct BoxesImpl : torch::nn::Cloneable<BoxesImpl> {
  using Named = std::map<std::string, torch::Tensor>;
  BoxesImpl() { reset(); }
  void reset() override { scale = register_parameter("scale", torch::full({1}, 2.0)); }
  std::tuple<Named, std::vector<torch::Tensor>, std::optional<torch::Tensor>, double> forward(
      const Named& named, const std::pair<torch::Tensor, torch::Tensor>& two, double times,
      const std::string& note) {
    const torch::Tensor x = named.at("x") * scale * times;
    if (odd_keys && two.first[0][0].item<float>() == 0) return {{{"z", x}}, {}, std::nullopt, 0};
    return {
        {{"x", x}, {"sum", x.sum()}}, {two.first, two.second}, two.second, static_cast<double>(note.size())};
  }
  torch::Tensor scale;
  bool odd_keys = false;
};
TORCH_MODULE(Boxes);

TEST_CASE("containers are cut up and put together, scalars become a vector, and the rest goes to all") {
  Boxes net;
  DataParallel dp(net, {.replicas = 2, .dim = 1});
  const torch::Tensor x = torch::arange(10, torch::kFloat32).reshape({2, 5});
  auto [named, list, maybe, size] =
      dp(BoxesImpl::Named{{"x", x}}, std::pair(x, x + 1), 3.0, std::string("four"));
  CHECK(torch::equal(named.at("x"), x * 6));
  CHECK(torch::equal(named.at("sum"),
                     torch::stack({x.narrow(1, 0, 3).sum() * 6, x.narrow(1, 3, 2).sum() * 6})));
  CHECK(torch::equal(list.at(1), x + 1));
  CHECK(torch::equal(maybe.value(), x + 1));
  CHECK(size == 4);
  named.at("sum").sum().backward();
  CHECK(net->scale.grad().item<float>() == 3 * x.sum().item<float>());

  CHECK_THAT(thrown_by([&] {
               dp(BoxesImpl::Named{{"x", x}}, std::pair(x, x.narrow(1, 0, 4)), 1.0, std::string());
             }),
             Catch::StartsWith("BadInput") && Catch::Contains("[2, 4] has 4 samples in dimension 1") &&
                 Catch::Contains("one before it 5"));
  CHECK_THAT(thrown_by([&] {
               dp(BoxesImpl::Named{{"x", x[0]}}, std::pair(x, x), 1.0, std::string());
             }),
             Catch::Contains("has no dimension 1"));
  net->odd_keys = true;
  CHECK_THAT(thrown_by([&] {
               dp(BoxesImpl::Named{{"x", x}}, std::pair(x, x), 1.0, std::string());
             }),
             Catch::StartsWith("BadInput") && Catch::Contains("the keys of a map differ"));
}

TEST_CASE("a type whose tensors would be lost is none that a module may return") {
  // Of a struct, and of what has one in it, the first replica's part was all that came back. DataParallel's
  // forward asserts this at compile time.
  struct Own {
    torch::Tensor logits;
  };
  STATIC_REQUIRE_FALSE(can_gather<Own>());
  STATIC_REQUIRE_FALSE(can_gather<std::vector<Own>>());
  STATIC_REQUIRE_FALSE(can_gather<std::tuple<torch::Tensor, std::map<std::string, Own>>>());
  STATIC_REQUIRE_FALSE(can_gather<std::optional<Own>>());
  STATIC_REQUIRE_FALSE(can_gather<std::shared_ptr<torch::Tensor>>());
  STATIC_REQUIRE_FALSE(can_gather<torch::nn::ASMoutput>());
  STATIC_REQUIRE_FALSE(can_gather<torch::OrderedDict<std::string, torch::Tensor>>());
  enum class Kind { kOne };
  STATIC_REQUIRE(can_gather<torch::Tensor>());
  STATIC_REQUIRE(can_gather<std::tuple<torch::Tensor, std::tuple<torch::Tensor, torch::Tensor>>>());
  STATIC_REQUIRE(can_gather<std::pair<std::array<torch::Tensor, 2>, std::optional<torch::Tensor>>>());
  STATIC_REQUIRE(can_gather<std::map<std::string, std::vector<std::vector<torch::Tensor>>>>());
  STATIC_REQUIRE(can_gather<std::tuple<double, bool, Kind, std::string, std::vector<std::int64_t>>>());
}

TEST_CASE("one device calls the module as it is") {
  Net net;
  DataParallel dp(net, {.replicas = 1});
  CHECK(torch::equal(dp(batch(3)), net->forward(batch(3))));
  struct LossImpl : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return x.sum(); }
  };
  // Without a clone(), and a scalar stays one.
  CHECK(DataParallel(std::make_shared<LossImpl>(), {.replicas = 1})(batch(3)).dim() == 0);
}

TEST_CASE("the module's fields and mode are those of every replica, and its random numbers stay its own") {
  torch::manual_seed(5);
  const torch::Tensor next = torch::rand({3});
  torch::manual_seed(5);
  Net net(true);
  torch::manual_seed(5);
  DataParallel dp(net, {.replicas = 3});
  dp(batch(6));
  CHECK(torch::equal(torch::rand({3}), next));
  dp.eval();
  net->factor = 3;
  const torch::Tensor expected = net->forward(batch(6));
  CHECK(torch::allclose(dp(batch(6)), expected / 1, 1e-6, 1e-6));
  CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 1);
  {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(dp(batch(6)).requires_grad());
  }
  CHECK(dp(batch(6)).requires_grad());
}

TEST_CASE("buffers take the changes of the first replica alone, as in PyTorch") {
  torch::manual_seed(1);
  Net net(true);
  DataParallel dp(net, {.replicas = 2});
  auto alone = std::dynamic_pointer_cast<NetImpl>(net->clone());
  dp(batch(10));
  alone->forward(batch(10).narrow(0, 0, 5));
  CHECK(torch::equal(net->norm->running_mean, alone->norm->running_mean));
  CHECK(torch::equal(net->norm->running_var, alone->norm->running_var));
  CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 1);
}

/// Throws for a chunk that begins with a 0.
struct PickyImpl : torch::nn::Cloneable<PickyImpl> {
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls();
    if (x[0].item<float>() == 0) throw std::out_of_range("no zero here");
    TORCH_CHECK(x[0].item<float>() != 1, "and no one");
    return x;
  }
  static std::atomic<int>& calls() {
    static std::atomic<int> count = 0;
    return count;
  }
};
TORCH_MODULE(Picky);

TEST_CASE("what a replica throws comes with its device, once all are through") {
  DataParallel dp(Picky(), {.replicas = 3});
  PickyImpl::calls() = 0;
  const std::string what = thrown_by([&] { dp(torch::tensor({5.0, 0.0, 1.0})); });
  CHECK_THAT(what,
             Catch::StartsWith(
                 "TaskFailed: the forward of replica 1 failed on cpu with 1 of 3 samples: no zero here"));
  CHECK(PickyImpl::calls() == 3);
  CHECK_THAT(thrown_by([&] {
               dp(torch::tensor({5.0, 1.0}));
             }),
             Catch::Contains("replica 1 failed on cpu with 1 of 2 samples: and no one"));
  try {
    dp(torch::tensor({0.0, 5.0}));
    FAIL("nothing thrown");
  } catch (const TaskFailed& error) {
    CHECK(error.exception_type() == "std::out_of_range");
    CHECK_THROWS_AS(error.rethrow(), std::out_of_range);
  }
  CHECK(dp(torch::tensor({5.0, 6.0})).size(0) == 2);
}

/// Throws what is no std::exception, or one of its own, for a chunk that begins with a 0.
struct OddThrowerImpl : torch::nn::Cloneable<OddThrowerImpl> {
  struct Mine : std::runtime_error {
    Mine() : std::runtime_error("mine") {}
    int number = 7;
  };
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& x) {
    if (x[0].item<float>() != 0) return x;
    if (own) throw Mine();
    throw 42;
  }
  bool own = false;
};
TORCH_MODULE(OddThrower);

TEST_CASE("what a replica throws keeps its type, whatever that is, and which replica it was") {
  // 42 came through as it was, without the replica; one's own type was lost.
  OddThrower net;
  DataParallel dp(net, {.replicas = 2});
  const torch::Tensor x = torch::tensor({5.0, 0.0});
  try {
    dp(x);
    FAIL("nothing thrown");
  } catch (const TaskFailed& error) {
    CHECK_THAT(error.what(), Catch::StartsWith("the forward of replica 1 failed on cpu") &&
                                 Catch::Contains("it threw int, which is no std::exception"));
    CHECK(error.exception_type() == "int");
    CHECK_THROWS_AS(error.rethrow(), int);
  } catch (int) {
    FAIL("it came without its replica");
  }
  net->own = true;
  try {
    dp(x);
    FAIL("nothing thrown");
  } catch (const TaskFailed& error) {
    CHECK(error.exception_message() == "mine");
    try {
      error.rethrow();
    } catch (const OddThrowerImpl::Mine& mine) {
      CHECK(mine.number == 7);
    } catch (const std::exception& other) {
      FAIL(other.what());
    }
    CHECK_THROWS_AS(std::rethrow_if_nested(error), OddThrowerImpl::Mine);
  }
}

TEST_CASE("a chunk of one sample that BatchNorm refuses is named, with what to do") {
  Net net(true);
  DataParallel dp(net, {.replicas = 3});
  const std::string what = thrown_by([&] { dp(batch(7)); });  // 3, 3 and 1
  CHECK_THAT(what,
             Catch::StartsWith("TaskFailed: the forward of replica 2 failed on cpu with 1 of 7 samples: "
                               "Expected more than 1 value per channel") &&
                 Catch::Contains("leave out the small last batch") && Catch::Contains("fewer devices"));
}

TEST_CASE("inference mode is that of every replica") {
  // It failed in the clone: "Setting requires_grad=True on inference tensor".
  const bool with_norm = GENERATE(false, true);
  Net net(with_norm);
  DataParallel dp(net, {.replicas = 2});
  if (with_norm) dp.eval();
  const torch::Tensor expected = net->forward(batch(6));
  {
    const c10::InferenceMode inference;
    NetImpl::inferences() = 0;
    const torch::Tensor output = dp(batch(6));
    CHECK(NetImpl::inferences() == 2);
    CHECK(output.is_inference());
    CHECK(torch::equal(output, expected));
    dp.train();
    CHECK(dp(batch(6)).is_inference());  // changes buffers
  }
  dp(batch(6)).sum().backward();
  CHECK(net->a->weight.grad().defined());

  // A module that was made in it, whose replicas have copies.
  const c10::InferenceMode inference;
  Net other(with_norm);
  DataParallel of_other(other, {.replicas = 2});
  of_other.eval();
  CHECK(torch::equal(of_other(batch(6)), other->forward(batch(6))));
}

TEST_CASE("a tensor without dimensions goes to all replicas, and one device takes everything as it is") {
  struct ScaleImpl : torch::nn::Cloneable<ScaleImpl> {
    void reset() override {}
    torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& factor) {
      return (x * factor).sum(-1, /*keepdim=*/true);
    }
  };
  const int replicas = GENERATE(1, 2);
  DataParallel dp(std::make_shared<ScaleImpl>(), {.replicas = replicas});
  const torch::Tensor factor = torch::tensor(3.0, torch::requires_grad());
  const torch::Tensor output = dp(batch(4), factor);
  CHECK(torch::allclose(output, (batch(4) * 3).sum(-1, true)));
  output.sum().backward();
  CHECK(torch::allclose(factor.grad(), batch(4).sum()));
  // Of two numbers of samples.
  if (replicas == 1) CHECK(dp(batch(4), torch::ones({1, 6})).size(0) == 4);
  if (replicas == 2) {
    CHECK_THAT(thrown_by([&] { dp(batch(4), torch::ones({1, 6})); }), Catch::Contains("has 1 samples"));
    CHECK(dp(torch::tensor(2.0).expand({1, 1}), factor).numel() == 1);
  }
}

TEST_CASE("devices need not begin at 0, and one that does not exist is refused by name") {
  const auto names = [](const DataParallelOptions& options, int there) {
    std::string text;
    for (const torch::Device& device : devices_of(options, there)) text += device.str() + " ";
    return text;
  };
  CHECK(names({.device_ids = {2, 3}}, 4) == "cuda:2 cuda:3 ");
  CHECK(names({.device_ids = {3, 1}}, 4) == "cuda:3 cuda:1 ");
  CHECK(names({}, 3) == "cuda:0 cuda:1 cuda:2 ");
  CHECK(names({.devices = {torch::kCPU, torch::kCPU}}, 0) == "cpu cpu ");
  CHECK(names({.devices = {{torch::kCPU, 0}, torch::kCPU}}, 0) == "cpu cpu ");  // one device, by both names
  CHECK_THAT(thrown_by([&] { names({.devices = {torch::Device("cpu:3")}}, 0); }),
             Catch::Contains("cpu:3 does not exist") && Catch::Contains("the CPU is one device, cpu") &&
                 Catch::Contains("replicas = 2"));
  CHECK_THAT(thrown_by([&] { names({.devices = {torch::kMeta}}, 0); }),
             Catch::Contains("nothing runs on meta") && Catch::Contains("give CUDA devices, or cpu"));
  CHECK_THAT(thrown_by([&] { names({.replicas = 2, .output_device = torch::Device(torch::kMeta)}, 0); }),
             Catch::Contains("nothing runs on meta"));
  CHECK_THAT(thrown_by([&] { names({.devices = {torch::kCUDA}}, 2); }),
             Catch::Contains("cuda has no index") && Catch::Contains("cuda:0 to cuda:1"));
  CHECK_THAT(thrown_by([&] {
               names({.device_ids = {2, 4}}, 4);
             }),
             Catch::StartsWith("BadConfig") && Catch::Contains("cuda:4 does not exist") &&
                 Catch::Contains("cuda:0 to cuda:3"));
  CHECK_THAT(thrown_by([&] { names({.device_ids = {300}}, 4); }), Catch::Contains("cuda:300 does not exist"));
  CHECK_THAT(thrown_by([&] { names({.device_ids = {-1}}, 4); }), Catch::Contains("cuda:-1 does not exist"));
  CHECK_THAT(thrown_by([&] { names({.device_ids = {0}}, 0); }), Catch::Contains("no CUDA device here"));
  CHECK_THAT(thrown_by([&] { names({}, 0); }), Catch::Contains("give replicas = 2"));
  CHECK_THAT(thrown_by([&] { names({.devices = {torch::kCPU}, .replicas = 2}, 0); }),
             Catch::Contains("exclude each other"));
  CHECK_THAT(thrown_by([&] { names({.replicas = -1}, 0); }), Catch::Contains("replicas is -1"));
  CHECK_THAT(thrown_by([&] {
               names({.devices = {torch::kCPU, {torch::kCUDA, 0}}}, 1);
             }),
             Catch::Contains("of two kinds"));
  CHECK_THAT(thrown_by([&] { names({.replicas = 2, .output_device = torch::Device(torch::kCUDA, 5)}, 2); }),
             Catch::Contains("cuda:5 does not exist"));
  CHECK_THAT(thrown_by([&] { names({.replicas = 2, .chunk_sizes = {1}}, 0); }),
             Catch::Contains("1 chunk_sizes for 2 devices"));
  CHECK_THAT(thrown_by([&] {
               names({.replicas = 2, .chunk_sizes = {1, 0}}, 0);
             }),
             Catch::Contains("a chunk has 0 samples"));
}

TEST_CASE("a module that cannot be replicated, is null or is elsewhere is refused by name") {
  struct PlainImpl : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return x; }
  };
  CHECK_THAT(thrown_by([] { DataParallel dp(std::make_shared<PlainImpl>(), {.replicas = 2}); }),
             Catch::StartsWith("BadConfig: cannot replicate") && Catch::Contains("PlainImpl") &&
                 Catch::Contains("torch::nn::Cloneable"));
  CHECK_THAT(thrown_by([] { DataParallel dp(Net(nullptr), {.replicas = 2}); }),
             Catch::Contains("the module is null"));
  CHECK_THAT(thrown_by([] {
               Net net;
               DataParallel dp(net, {.replicas = 1});
               net->spare = net->register_parameter("elsewhere", torch::ones({1}, torch::kMeta));
               dp(batch(2));
             }),
             Catch::Contains("parameter elsewhere is on meta") && Catch::Contains("it has no values") &&
                 Catch::Contains("make the module on cpu"));
}

TEST_CASE("a model is wrapped, trained on batches that do not divide, saved, and loaded into a bare one") {
  torch::manual_seed(1);
  Net net(true);
  DataParallel dp(net, {.replicas = 3});
  torch::optim::SGD optimizer(dp.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  const torch::Tensor x = torch::randn({44, 6});
  const torch::Tensor y = x.narrow(1, 0, 3).argmax(1);
  double first = 0;
  double last = 0;
  for (int epoch = 0; epoch < 40; ++epoch) {
    for (const torch::Tensor& part : torch::arange(44).split(16)) {  // 16, 16 and 12
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::nn::functional::cross_entropy(dp->forward(x.index_select(0, part)), y.index_select(0, part));
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      if (first == 0) first = last;
    }
  }
  CHECK(first > 0.9);
  CHECK(last < 0.3);

  std::stringstream saved;
  torch::save(dp, saved);
  Net bare(true);
  torch::load(bare, saved);
  dp.eval();
  bare->eval();
  const torch::Tensor expected = dp(x);
  CHECK(torch::allclose(bare->forward(x), expected));

  // As saved from a module that has the net as its `module`.
  struct HolderImpl : torch::nn::Module {
    explicit HolderImpl(const Net& net) { register_module("module", net); }
  };
  for (const bool prefixed : {false, true}) {
    std::stringstream file;
    if (prefixed) torch::save(std::make_shared<HolderImpl>(net), file);
    if (!prefixed) torch::save(net, file);
    Net other(true);
    DataParallel loaded(other, {.replicas = 2});
    torch::load(loaded, file);
    loaded.eval();
    CHECK(torch::allclose(loaded(x), expected));
  }
}

}  // namespace
}  // namespace troupe::train::testing
