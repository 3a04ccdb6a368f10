#include "actors/ddp/adasum.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::Op;

namespace {

/// Horovod's: a squared norm below it is that of no direction.
const double kSmallest = std::sqrt(std::numeric_limits<double>::min());

struct Products {
  double ab = 0, aa = 0, bb = 0;
};

struct Factors {
  double a = 1, b = 1;
};
Factors factors_of(const Products& p) {
  return {p.aa >= kSmallest ? 1 - p.ab / p.aa / 2 : 1, p.bb >= kSmallest ? 1 - p.ab / p.bb / 2 : 1};
}

/// In eight sums each, which are added at the end: an order of its own, and one that vectorises.
template <class T>
Products products_of(const T* a, const T* b, std::int64_t count) {
  constexpr int kSums = 8;
  std::array<double, kSums> ab{}, aa{}, bb{};
  for (std::int64_t i = 0; i < count; i += kSums) {
    const int n = static_cast<int>(std::min<std::int64_t>(kSums, count - i));
    for (int k = 0; k < n; ++k) {
      const auto x = static_cast<double>(a[i + k]), y = static_cast<double>(b[i + k]);
      ab[static_cast<std::size_t>(k)] += x * y;
      aa[static_cast<std::size_t>(k)] += x * x;
      bb[static_cast<std::size_t>(k)] += y * y;
    }
  }
  Products sum;
  for (std::size_t k = 0; k < kSums; ++k) {
    sum.ab += ab[k];
    sum.aa += aa[k];
    sum.bb += bb[k];
  }
  return sum;
}

template <class T>
T rounded(double value) {
  if constexpr (sizeof(T) < sizeof(float)) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void pair_on_cpu(T* a, const T* b, std::int64_t count) {
  const Factors by = factors_of(products_of(a, b, count));
  for (std::int64_t i = 0; i < count; ++i)
    a[i] = rounded<T>(by.a * static_cast<double>(a[i]) + by.b * static_cast<double>(b[i]));
}

void pair_on_device(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.to(torch::kFloat64), y = b.to(torch::kFloat64);
  const torch::Tensor products = torch::stack({(x * y).sum(), (x * x).sum(), (y * y).sum()}).cpu();
  const auto* p = products.data_ptr<double>();
  const Factors by = factors_of({p[0], p[1], p[2]});
  a.copy_(x * by.a + y * by.b);
}

}  // namespace

void adasum_pair(const torch::Tensor& lower, const torch::Tensor& higher,
                 const std::vector<AdasumPart>& parts) {
  const torch::NoGradGuard no_grad;
  for (const AdasumPart& part : parts) {
    const torch::Tensor a = lower.narrow(0, part.offset, part.count),
                        b = higher.narrow(0, part.offset, part.count);
    if (!a.is_cpu()) {
      pair_on_device(a, b);
      continue;
    }
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "adasum", [&] {
      pair_on_cpu(a.data_ptr<scalar_t>(), b.data_ptr<scalar_t>(), part.count);
    });
  }
}

void check_adasum_ranks(int ranks) {
  if ((ranks & (ranks - 1)) == 0) return;
  throw BadConfig("cannot reduce by Adasum",
                  "it combines ranks two by two, and " + std::to_string(ranks) + " is no power of two",
                  "start 2, 4, 8, ... ranks, or use GradientOp::kAverage");
}

AdasumRound::AdasumRound(collectives::ProcessGroup& group, torch::Tensor flat, std::vector<AdasumPart> parts)
    : group_(group), flat_(std::move(flat)), theirs_(torch::empty_like(flat_)), parts_(std::move(parts)) {
  exchange();
}

void AdasumRound::exchange() {
  const int other = group_.rank() ^ distance_;
  work_ = group_.batch({Op::send(buffer_of(flat_), other), Op::recv(buffer_of(theirs_), other)});
}

void AdasumRound::finish(const std::function<void(collectives::Work&, int)>& wait) {
  for (;;) {
    wait(*work_, group_.rank() ^ distance_);
    // Both compute a from the lower rank and b from the higher, so that they come to the same bits.
    const bool is_lower = (group_.rank() & distance_) == 0;
    adasum_pair(is_lower ? flat_ : theirs_, is_lower ? theirs_ : flat_, parts_);
    if (!is_lower) flat_.copy_(theirs_);
    if ((distance_ *= 2) >= group_.size()) return;
    exchange();
  }
}

}  // namespace troupe::train
