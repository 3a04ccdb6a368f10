/// The hook power_sgd: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, step for step.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using collectives::ProcessGroup;
using collectives::ReduceOp;

/// Gram-Schmidt on the columns, in place.
void orthogonalize(torch::Tensor matrix, double epsilon) {
  if (matrix.size(2) > 2) {
    matrix.copy_(std::get<0>(torch::linalg_qr(matrix)));
    return;
  }
  const std::int64_t columns = matrix.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    torch::Tensor column = matrix.narrow(2, i, 1);
    torch::Tensor norm = torch::norm(column, 2, {1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    if (i + 1 == columns) continue;
    torch::Tensor rest = matrix.narrow(2, i + 1, columns - i - 1);
    rest.sub_(torch::sum(column * rest, {1}, /*keepdim=*/true) * column);
  }
}

/// numpy's RandomState(seed).randint(10^9), from which PyTorch seeds the first Qs.
std::uint64_t draw_seed(std::mt19937& random) {
  constexpr std::uint32_t kMask = (1U << 30) - 1;
  constexpr std::uint32_t kMost = 999'999'999;
  std::uint32_t drawn = random() & kMask;
  while (drawn > kMost) drawn = random() & kMask;
  return drawn;
}

/// One gradient that is compressed.
struct Low {
  torch::Tensor gradient;  ///< in the bucket
  torch::Tensor matrix;    ///< [1, n, m]: the same memory, or a copy of it
  torch::Tensor p, q;      ///< [1, n, rank] and [1, m, rank], in the bucket's Ps and Qs
};

/// What stays from step to step.
struct Carried {
  torch::Tensor error, ps, qs;
};

class PowerSgd {
 public:
  explicit PowerSgd(PowerSgdOptions options) : options_(options), random_(options.random_seed) {}

  std::function<void()> reduce(const GradBucket& bucket, ProcessGroup& group);

 private:
  /// A bucket on its way.
  struct Pass {
    GradBucket bucket;
    torch::Tensor sent;  ///< with the error added, as it was before compression
    std::vector<torch::Tensor> whole;
    torch::Tensor whole_memory;
    std::vector<Low> low;
    std::shared_ptr<collectives::Work> work;
  };
  bool pays(std::int64_t n, std::int64_t m, std::int64_t rank) const {
    return static_cast<double>((n + m) * rank) * options_.min_compression_rate < static_cast<double>(n * m);
  }
  std::int64_t rank_of(std::int64_t n, std::int64_t m) const {
    return std::min({n, m, static_cast<std::int64_t>(options_.matrix_approximation_rank)});
  }
  void split(Pass& pass) const;
  void lay_out(Pass& pass, Carried& kept);
  void finish(Pass& pass, ProcessGroup& group);
  void count(const GradBucket& bucket) { iteration_ += bucket.is_last ? 1 : 0; }

  PowerSgdOptions options_;
  std::mt19937 random_;
  int iteration_ = 0;
  std::map<std::size_t, Carried> kept_;  ///< by bucket
};

std::function<void()> PowerSgd::reduce(const GradBucket& bucket, ProcessGroup& group) {
  if (iteration_ < options_.start_iteration) {
    count(bucket);
    return allreduce()(bucket, group);
  }
  auto pass = std::make_shared<Pass>();
  pass->bucket = bucket;
  Carried& kept = kept_[bucket.index];
  if (options_.use_error_feedback) {
    if (kept.error.defined()) {
      pass->bucket.buffer.add_(kept.error);
    } else {
      kept.error = torch::zeros_like(bucket.buffer);
    }
    pass->sent = bucket.buffer.clone();
  }
  split(*pass);
  lay_out(*pass, kept);
  for (const Low& low : pass->low) {
    torch::Tensor p = low.p;
    torch::bmm_out(p, low.matrix, low.q);
  }
  pass->work = group.all_reduce(buffer_of(pass->whole_memory), ReduceOp::kSum);
  return [this, pass, &group] { finish(*pass, group); };
}

/// Which gradients are compressed: those of one shape one after another, as PyTorch has them.
void PowerSgd::split(Pass& pass) const {
  std::vector<std::pair<std::vector<std::int64_t>, std::vector<Low>>> shapes;
  std::vector<torch::Tensor> flat{torch::empty({0}, pass.bucket.buffer.options())};
  for (const torch::Tensor& gradient : pass.bucket.gradients) {
    const std::int64_t n = gradient.dim() == 0 ? 1 : gradient.size(0);
    const std::int64_t m = n == 0 ? 0 : gradient.numel() / n;
    if (!pays(n, m, rank_of(n, m))) {
      pass.whole.push_back(gradient);
      flat.push_back(gradient.reshape({-1}));
      continue;
    }
    const std::vector<std::int64_t> shape{n, m};
    auto same =
        std::find_if(shapes.begin(), shapes.end(), [&](const auto& one) { return one.first == shape; });
    if (same == shapes.end()) same = shapes.insert(shapes.end(), {shape, {}});
    same->second.push_back({gradient, gradient.reshape({1, n, m}), {}, {}});
  }
  pass.whole_memory = torch::cat(flat);
  for (auto& [shape, lows] : shapes) {
    for (Low& low : lows) pass.low.push_back(std::move(low));
  }
}

/// Ps and Qs; the Qs of the first step are random, later ones those of the step before.
void PowerSgd::lay_out(Pass& pass, Carried& kept) {
  std::int64_t p_size = 0;
  std::int64_t q_size = 0;
  const auto rank = [&](const Low& low) { return rank_of(low.matrix.size(1), low.matrix.size(2)); };
  for (const Low& low : pass.low) {
    p_size += low.matrix.size(1) * rank(low);
    q_size += low.matrix.size(2) * rank(low);
  }
  const bool fresh = !options_.warm_start || !kept.ps.defined();
  if (fresh) {
    kept.ps = torch::empty({p_size}, pass.bucket.buffer.options());
    kept.qs = torch::empty({q_size}, pass.bucket.buffer.options());
  }
  at::Generator generator;
  if (fresh) generator = at::detail::createCPUGenerator(draw_seed(random_));
  p_size = q_size = 0;
  for (Low& low : pass.low) {
    const std::int64_t n = low.matrix.size(1);
    const std::int64_t m = low.matrix.size(2);
    const std::int64_t r = rank(low);
    low.p = kept.ps.narrow(0, p_size, n * r).view({1, n, r});
    low.q = kept.qs.narrow(0, q_size, m * r).view({1, m, r});
    p_size += n * r;
    q_size += m * r;
    if (fresh) {
      low.q.copy_(torch::randn({1, m, r}, generator, torch::TensorOptions(pass.bucket.buffer.scalar_type())));
    }
    orthogonalize(low.q, options_.orthogonalization_epsilon);
  }
}

void PowerSgd::finish(Pass& pass, ProcessGroup& group) {
  Carried& kept = kept_[pass.bucket.index];
  pass.work->wait();
  pass.whole_memory.div_(group.size());
  std::int64_t at = 0;
  for (torch::Tensor& gradient : pass.whole) {
    gradient.copy_(pass.whole_memory.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
  }
  group.all_reduce(buffer_of(kept.ps), ReduceOp::kSum)->wait();
  for (Low& low : pass.low) {
    orthogonalize(low.p, options_.orthogonalization_epsilon);
    torch::bmm_out(low.q, low.matrix.transpose(1, 2), low.p);
  }
  group.all_reduce(buffer_of(kept.qs), ReduceOp::kSum)->wait();
  kept.qs.div_(group.size());
  for (Low& low : pass.low) {
    low.gradient.copy_(torch::bmm(low.p, low.q.transpose(1, 2)).view(low.gradient.sizes()));
  }
  if (options_.use_error_feedback) kept.error = pass.sent - pass.bucket.buffer;
  if (!options_.warm_start) kept.ps = kept.qs = torch::Tensor();
  count(pass.bucket);
}

}  // namespace

CommHook power_sgd(PowerSgdOptions options) {
  const auto refuse = [](const std::string& why, const char* todo) {
    throw BadConfig("cannot make the hook power_sgd", why, todo);
  };
  if (options.matrix_approximation_rank < 1) refuse("matrix_approximation_rank is below 1", "give 1, 2 or 4");
  if ((options.use_error_feedback || options.warm_start) && options.start_iteration < 2) {
    refuse("start_iteration is " + std::to_string(options.start_iteration) +
               ", and buckets are built again after the first step",
           "give 2 or more, or switch use_error_feedback and warm_start off");
  }
  auto state = std::make_shared<PowerSgd>(options);
  return for_one_module(
      "power_sgd", [state](GradBucket bucket, ProcessGroup& group) { return state->reduce(bucket, group); });
}

}  // namespace troupe::train
