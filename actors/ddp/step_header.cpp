#include "actors/ddp/step_header.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {

using collectives::DType;

namespace {

constexpr std::size_t kLine_bytes = 64;
/// A digit's codes are 1 to this: bfloat16, whose 8 bits are the fewest, still tells them apart after a
/// division and a multiplication by the number of ranks. 0: a rank that is in no forward.
constexpr std::uint64_t kBase = 120;
constexpr std::uint64_t kModulus = kBase * kBase;
constexpr std::size_t kElements_per_rank = 4;  ///< two digits of each count

using Codes = std::array<std::int64_t, kElements_per_rank>;

Codes codes_of(const ForwardCount& count) {
  if (count.begun == 0) return {};
  const auto digit = [](std::uint64_t of) { return 1 + static_cast<std::int64_t>(of % kBase); };
  return {digit(count.begun), digit(count.begun / kBase), digit(count.in_no_sync),
          digit(count.in_no_sync / kBase)};
}

/// The count next to `mine`, and no less than `least`, with these codes.
std::uint64_t count_of(std::int64_t low, std::int64_t high, std::uint64_t mine, std::int64_t least) {
  constexpr auto kRange = static_cast<std::int64_t>(kModulus);
  const std::int64_t told = low - 1 + (high - 1) * static_cast<std::int64_t>(kBase);
  std::int64_t apart = (told - static_cast<std::int64_t>(mine % kModulus)) % kRange;
  if (apart > kRange / 2) apart -= kRange;
  if (apart < -kRange / 2) apart += kRange;
  const std::int64_t count = static_cast<std::int64_t>(mine) + apart;
  return static_cast<std::uint64_t>(count >= least ? count : count + kRange);
}

ForwardCount counts_of(const Codes& codes, const ForwardCount& mine) {
  if (codes[0] <= 0) return {};
  return {count_of(codes[0], codes[1], mine.begun, 1), count_of(codes[2], codes[3], mine.in_no_sync, 0)};
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

/// Of ranks that are in a forward.
bool no_sync_differs(std::span<const ForwardCount> by_rank) {
  const ForwardCount* first = nullptr;
  for (const ForwardCount& count : by_rank) {
    if (count.begun == 0) continue;
    if (first == nullptr) first = &count;
    if (count.in_no_sync != first->in_no_sync) return true;
  }
  return false;
}

}  // namespace

std::size_t StepHeader::elements(DType dtype, int ranks) {
  if (ranks == 1) return 0;
  const std::size_t a_line = kLine_bytes / collectives::element_size(dtype);
  return (kElements_per_rank * static_cast<std::size_t>(ranks) + a_line - 1) / a_line * a_line;
}

void StepHeader::write(const ForwardCount& count) const {
  if (ranks_ == 1) return;
  std::memset(at_, 0, elements(dtype_, ranks_) * collectives::element_size(dtype_));
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    std::byte* at = at_ + static_cast<std::size_t>(rank_) * kElements_per_rank * sizeof(T);
    for (const std::int64_t code : codes_of(count)) {
      const T value = static_cast<T>(static_cast<float>(code));
      std::memcpy(at, &value, sizeof(T));
      at += sizeof(T);
    }
  });
}

std::vector<ForwardCount> StepHeader::read(const ForwardCount& mine, int divisor) const {
  std::vector<ForwardCount> counts(static_cast<std::size_t>(ranks_), mine);
  if (ranks_ == 1) return counts;
  with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    const std::byte* at = at_;
    for (ForwardCount& count : counts) {
      Codes codes;
      for (std::int64_t& code : codes) {
        T value;
        std::memcpy(&value, at, sizeof(T));
        code = std::llround(static_cast<double>(value) * divisor);
        at += sizeof(T);
      }
      count = counts_of(codes, mine);
    }
  });
  return counts;
}

std::string steps_apart(std::span<const ForwardCount> by_rank) {
  struct Seen {
    std::size_t first = 0;
    std::size_t ranks = 0;
  };
  // As a rule all are in one.
  std::map<ForwardCount, Seen> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].begun != 0 && seen[by_rank[rank]].ranks++ == 0) seen[by_rank[rank]].first = rank;
  }
  if (seen.size() < 2) return "";
  const bool tells_no_sync = no_sync_differs(by_rank);
  std::string text;
  for (const auto& [count, of] : seen) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(of.first);
    if (of.ranks > 1) text += " and " + std::to_string(of.ranks - 1) + " more";
    text += " in forward " + std::to_string(count.begun);
    if (tells_no_sync) text += " (" + std::to_string(count.in_no_sync) + " in no_sync)";
  }
  return text;
}

CollectiveAborted out_of_step(collectives::ProcessGroup& group, const std::string& apart, std::string todo) {
  const ErrorInfo info{ErrorCode::kAborted, "the ranks are not in the same step", apart, std::move(todo)};
  group.abort(info.what + ": " + info.why);  // a reason has few bytes
  return CollectiveAborted(info);
}

void check_in_step(collectives::ProcessGroup& group, std::span<const ForwardCount> by_rank) {
  const std::string apart = steps_apart(by_rank);
  if (apart.empty()) return;
  throw out_of_step(group, apart,
                    no_sync_differs(by_rank)
                        ? "enter no_sync on every rank or on none, for as many forwards"
                        : "one of them left a backward out: its exception was caught, or its loss depends on "
                          "no parameter; let that end the rank, or leave the step out on every rank");
}

}  // namespace troupe::train
