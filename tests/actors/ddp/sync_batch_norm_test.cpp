// SyncBatchNorm against BatchNorm on the batches of all ranks, one behind the other.
#include "actors/ddp/sync_batch_norm.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "actors/ddp/distributed_data_parallel.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

constexpr int kChannels = 3;

/// Rank r has 2, 5, 1, ... samples: [n, 3], [n, 3, 4], [n, 3, 4, 2] or [n, 3, 4, 2, 2].
torch::Tensor samples_of(int rank, int dimensions, bool one_has_none = false) {
  constexpr int kSizes[] = {2, 5, 3};
  std::vector<std::int64_t> shape{one_has_none && rank == 1 ? 0 : kSizes[rank], kChannels, 4, 2, 2};
  shape.resize(static_cast<std::size_t>(dimensions));
  torch::manual_seed(10 + rank);
  return torch::randn(shape) * (rank + 1) + 3 * rank;
}

/// A norm, and something behind it that makes gradients differ.
struct ChannelNetImpl : torch::nn::Module {
  explicit ChannelNetImpl(const torch::nn::BatchNormOptions& options, int dimensions) {
    torch::manual_seed(1);
    if (dimensions <= 3) one = register_module("norm", torch::nn::BatchNorm1d(options));
    if (dimensions == 4) two = register_module("norm", torch::nn::BatchNorm2d(options));
    if (dimensions == 5) three = register_module("norm", torch::nn::BatchNorm3d(options));
    for (auto& parameter : parameters()) torch::nn::init::uniform_(parameter, 0.5, 1.5);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (one) return one(x);
    return two ? two(x) : three(x);
  }
  torch::nn::BatchNorm1d one{nullptr};
  torch::nn::BatchNorm2d two{nullptr};
  torch::nn::BatchNorm3d three{nullptr};
};
TORCH_MODULE(ChannelNet);

torch::Tensor loss_of(const torch::Tensor& y) {
  return (y * y * y + y.sin()).sum();
}

std::string compare(const std::string& what, const torch::Tensor& ours, const torch::Tensor& golden) {
  if (ours.sizes() == golden.sizes() && torch::allclose(ours, golden, 1e-5, 1e-5)) return {};
  std::ostringstream text;
  text << what << ": " << ours << " but should be " << golden << "\n";
  return text.str();
}

/// Three steps and an evaluation on this rank's samples, against the golden on everybody's.
std::string difference_of(const Group& group, const torch::nn::BatchNormOptions& options, int dimensions,
                          bool one_has_none = false) {
  ChannelNet golden(options, dimensions);
  ChannelNet ours = convert_sync_batchnorm(ChannelNet(options, dimensions), group);
  std::string wrong;
  for (int step = 0; step < 3; ++step) {
    std::vector<torch::Tensor> all;
    std::int64_t before = 0;
    for (int rank = 0; rank < group->size(); ++rank) {
      all.push_back(samples_of(rank, dimensions, one_has_none) + step);
      if (rank < group->rank()) before += all.back().size(0);
    }
    const auto part = [&](const torch::Tensor& whole) {
      return whole.slice(0, before, before + all[static_cast<std::size_t>(group->rank())].size(0));
    };
    const torch::Tensor whole = torch::cat(all).set_requires_grad(true);
    const torch::Tensor mine = all[static_cast<std::size_t>(group->rank())].clone().set_requires_grad(true);
    const torch::Tensor expected = golden->forward(whole);
    loss_of(expected).backward();
    const torch::Tensor y = ours->forward(mine);
    loss_of(y).backward();
    wrong += compare("output", y, part(expected));
    wrong += compare("gradient of the input", mine.grad(), part(whole.grad()));
    const auto theirs = golden->parameters();
    const auto parameters = ours->parameters();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      torch::Tensor sum = parameters[i].grad().clone();
      group->all_reduce(std::span<float>(sum.data_ptr<float>(), static_cast<std::size_t>(sum.numel())))
          ->wait();
      wrong += compare("summed gradient of parameter", sum, theirs[i].grad());
    }
    golden->zero_grad();
    ours->zero_grad();
  }
  const auto buffers = ours->named_buffers();
  for (const auto& item : golden->named_buffers())
    wrong += compare(item.key(), buffers[item.key()].to(torch::kFloat), item.value().to(torch::kFloat));
  golden->eval();
  ours->eval();
  const torch::Tensor x = samples_of(0, dimensions);
  return wrong + compare("evaluation", ours->forward(x), golden->forward(x));
}

TEST_CASE("SyncBatchNorm is BatchNorm on the batches of all ranks, which may be of unlike sizes") {
  const int ranks = GENERATE(2, 3);
  const auto said = fork_ddp(ranks, [](const Group& group) -> std::string {
    std::string wrong;
    for (int dimensions = 2; dimensions <= 5; ++dimensions)
      wrong += difference_of(group, torch::nn::BatchNormOptions(kChannels), dimensions);
    using Options = torch::nn::BatchNormOptions;
    auto cumulative = Options(kChannels).eps(0.1);
    cumulative.momentum().reset();
    wrong += difference_of(group, cumulative, 4);
    wrong += difference_of(group, Options(kChannels).affine(false), 4);
    wrong += difference_of(group, Options(kChannels).momentum(0.5).track_running_stats(false), 2);
    wrong += difference_of(group, Options(kChannels), 4, /*one_has_none=*/true);
    return wrong;
  });
  for (const auto& wrong : said) CHECK(wrong == "");
}

TEST_CASE("converting keeps names, tensors and the mode, and a clone is plain") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    ChannelNet net(torch::nn::BatchNormOptions(kChannels), 2);
    net->eval();
    const auto before = net->named_parameters();
    const ChannelNet same = convert_sync_batchnorm(net, group);
    if (same.get() != net.get() || net->is_training() || !has_sync_batchnorm(net.ptr())) return "another net";
    for (const auto& item : before) {
      if (!item.value().is_same(net->named_parameters()[item.key()])) return item.key();
    }
    const torch::Tensor x = samples_of(group->rank(), 2);
    if (!torch::equal(net->forward(x), ChannelNet(torch::nn::BatchNormOptions(kChannels), 2)->forward(x)) &&
        !net->one->running_mean.equal(torch::zeros({kChannels})))
      return "evaluation";
    const auto clone = net->clone();
    clone->train();
    if (has_sync_batchnorm(clone)) return "the clone";
    clone->as<ChannelNetImpl>()->forward(x);  // of this rank alone: it would wait for the other one
    // Through DistributedDataParallel, in half the precision, and in double.
    net->train();
    DistributedDataParallel ddp(net, group);
    loss_of(ddp(x)).backward();
    ChannelNet wide = convert_sync_batchnorm(ChannelNet(torch::nn::BatchNormOptions(kChannels), 2), group);
    const torch::Tensor y = wide->forward(x.to(torch::kBFloat16));
    if (y.scalar_type() != torch::kBFloat16) return "bfloat16";
    wide->to(torch::kDouble);
    return wide->forward(x.to(torch::kDouble)).scalar_type() == torch::kDouble ? gradients_text(*net)
                                                                               : "double";
  });
  CHECK(said[0] == said[1]);
  CHECK(said[0].size() > 20);
}

TEST_CASE("what SyncBatchNorm cannot do is an error on every rank, and the group stays good") {
  const auto said = fork_ddp(2, [](const Group& group) -> std::string {
    std::string text = thrown_by([&] {  // one value a channel over both ranks
      sync_batch_norm(torch::ones({group->rank() == 0 ? 1 : 0, kChannels}), {}, group);
    });
    // Two of them are enough; the function takes what has no tensors, too.
    const torch::Tensor x = torch::full({1, kChannels}, static_cast<float>(group->rank())).requires_grad_();
    const torch::Tensor y = sync_batch_norm(x, {.eps = 0}, group);
    text += "\n" + std::to_string(std::lround(y[0][0].item<float>() * (group->rank() == 0 ? -1 : 1)));
    text += "\n" + thrown_by([&] { torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true); });
    text +=
        "\n" + thrown_by([&] {
          convert_sync_batchnorm(
              ChannelNet(torch::nn::BatchNormOptions(kChannels).affine(false).track_running_stats(false), 2),
              group);
        });
    // A module with one sample a rank: LibTorch's, on every rank, before anybody waits.
    ChannelNet alone = convert_sync_batchnorm(ChannelNet(torch::nn::BatchNormOptions(kChannels), 2), group);
    text += "\n" + thrown_by([&] { alone->forward(x); });
    if (alone->forward(torch::cat({x, x + 1})).isnan().any().item<bool>()) text += "NaN";
    ChannelNet net(torch::nn::BatchNormOptions(kChannels), 2);
    {
      const Group gone(group.get(), [](auto*) {});  // owns nothing
      convert_sync_batchnorm(net, gone);
    }
    text += "\n" + thrown_by([&] { net->forward(torch::ones({4, kChannels})); });
    return text;
  });
  for (const auto& text : said) {
    INFO(text);
    CHECK(text.find("Expected more than 1 value per channel when training, got input size [") !=
          std::string::npos);
    CHECK(text.find("\n1\n") != std::string::npos);
    CHECK(text.find("more than 1 value per channel when training, got input size [1, 3]") !=
          std::string::npos);
    CHECK(text.find("NaN") == std::string::npos);
    CHECK(text.find("no second derivative") != std::string::npos);
    CHECK(text.find("cannot convert 'norm' to SyncBatchNorm") != std::string::npos);
    CHECK(text.find("no process group any more") != std::string::npos);
  }
}

}  // namespace
}  // namespace troupe::train::testing
