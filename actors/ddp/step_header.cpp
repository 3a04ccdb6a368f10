#include "actors/ddp/step_header.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "runtime/core/assert.hpp"

namespace troupe::train {

using collectives::DType;

namespace {

constexpr std::size_t kLine_bytes = 64;
/// Codes are 1 to this: bfloat16, whose 8 bits are the fewest, still tells them apart after a division and a
/// multiplication by the number of ranks.
constexpr std::int64_t kCodes = 120;

std::int64_t code_of(ForwardNumber number) {
  return number == 0 ? 0 : 1 + static_cast<std::int64_t>(number % kCodes);
}

/// The number next to `mine` that has this code.
ForwardNumber number_of(std::int64_t code, ForwardNumber mine) {
  if (code <= 0) return 0;
  std::int64_t apart = (code - 1 - static_cast<std::int64_t>(mine % kCodes)) % kCodes;
  if (apart > kCodes / 2) apart -= kCodes;
  if (apart < -kCodes / 2) apart += kCodes;
  const std::int64_t number = static_cast<std::int64_t>(mine) + apart;
  return static_cast<ForwardNumber>(number > 0 ? number : number + kCodes);
}

/// Calls f with a value of the dtype's type.
template <class F>
auto with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(double{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat16:
      return f(c10::Half{});
    default:
      TROUPE_ASSERT(dtype == DType::kBFloat16, "gradients are of these four types");
      return f(c10::BFloat16{});
  }
}

}  // namespace

std::size_t StepHeader::elements(DType dtype, int ranks) {
  if (ranks == 1) return 0;
  const std::size_t a_line = kLine_bytes / collectives::element_size(dtype);
  return (static_cast<std::size_t>(ranks) + a_line - 1) / a_line * a_line;
}

void StepHeader::write(ForwardNumber number) const {
  if (ranks_ == 1) return;
  std::memset(at_, 0, elements(dtype_, ranks_) * collectives::element_size(dtype_));
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    const T code = static_cast<T>(static_cast<float>(code_of(number)));
    std::memcpy(at_ + static_cast<std::size_t>(rank_) * sizeof(T), &code, sizeof(T));
  });
}

std::vector<ForwardNumber> StepHeader::read(ForwardNumber mine, int divisor) const {
  std::vector<ForwardNumber> numbers(static_cast<std::size_t>(ranks_), mine);
  if (ranks_ == 1) return numbers;
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
      T value;
      std::memcpy(&value, at_ + rank * sizeof(T), sizeof(T));
      numbers[rank] = number_of(std::llround(static_cast<double>(value) * divisor), mine);
    }
  });
  return numbers;
}

std::string steps_apart(std::span<const ForwardNumber> by_rank) {
  // As a rule all are in one.
  const auto some = std::find_if(by_rank.begin(), by_rank.end(), [](ForwardNumber n) { return n != 0; });
  if (std::all_of(by_rank.begin(), by_rank.end(), [&](ForwardNumber n) { return n == 0 || n == *some; }))
    return "";
  struct Seen {
    std::size_t first = 0;
    std::size_t ranks = 0;
  };
  std::map<ForwardNumber, Seen> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] != 0 && seen[by_rank[rank]].ranks++ == 0) seen[by_rank[rank]].first = rank;
  }
  std::string text;
  for (const auto& [number, of] : seen) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(of.first);
    if (of.ranks > 1) text += " and " + std::to_string(of.ranks - 1) + " more";
    text += " in forward " + std::to_string(number);
  }
  return text;
}

CollectiveAborted out_of_step(collectives::ProcessGroup& group, const std::string& apart) {
  const ErrorInfo info{ErrorCode::kAborted, "the ranks are not in the same step", apart,
                       "one of them left a backward out: its exception was caught, or its loss depends on no "
                       "parameter; let that end the rank, or leave the step out on every rank"};
  group.abort(info.what + ": " + info.why);  // a reason has few bytes
  return CollectiveAborted(info);
}

}  // namespace troupe::train
