#include "actors/train/trainer/step_slots.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "runtime/core/error.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

void fill(SlotWords& slot, wire::Bytes& counted, const data::BatchHeader& header, const LeafResult& result) {
  slot = {std::bit_cast<std::int64_t>(header.index_hash), std::bit_cast<std::int64_t>(result.loss),
          std::bit_cast<std::int64_t>(result.weight.value_or(header.count)), result.weight ? 1 : 0, 0};
  if (!result.figures.empty()) counted = wire::encode(result.figures);
  if (counted.size() > kMostFigureBytes) {
    throw BadConfig("a leaf counted too many figures", std::to_string(result.figures.size()) + " in one step",
                    "count what an epoch's mean is wanted of");
  }
  slot.figure_bytes = static_cast<std::int64_t>(counted.size());
}

void share_figures(collectives::ProcessGroup& group, const std::vector<SlotWords>& slots,
                   std::vector<wire::Bytes>& counted) {
  std::size_t total = 0;
  for (const SlotWords& slot : slots) total += static_cast<std::size_t>(slot.figure_bytes);
  if (total == 0 || group.size() == 1) return;
  wire::Bytes all(total);
  std::size_t at = 0;
  for (std::size_t leaf = 0; leaf < slots.size(); ++leaf) {
    std::copy(counted[leaf].begin(), counted[leaf].end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    at += static_cast<std::size_t>(slots[leaf].figure_bytes);
  }
  group.all_reduce({all.data(), all.size(), collectives::DType::kUInt8}, collectives::ReduceOp::kSum)->wait();
  at = 0;
  for (std::size_t leaf = 0; leaf < slots.size(); ++leaf) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
    counted[leaf].assign(begin, begin + static_cast<std::ptrdiff_t>(slots[leaf].figure_bytes));
    at += static_cast<std::size_t>(slots[leaf].figure_bytes);
  }
}

double sum_of_weights(const std::vector<SlotWords>& slots) {
  std::int64_t given = 0;
  double sum = 0;
  for (const SlotWords& slot : slots) {
    given += slot.has_weight;
    sum += std::bit_cast<double>(slot.weight);
  }
  if (given == 0) return 0;
  if (given != static_cast<std::int64_t>(slots.size()))
    throw BadConfig("some leaves of a step have a weight and others none",
                    std::to_string(given) + " of " + std::to_string(slots.size()) + " called at.weight()",
                    "call it for every batch, or for none");
  if (sum <= 0)
    throw BadConfig("the weights of a step add up to nothing", "its gradient would be divided by zero",
                    "give a leaf without tokens a share of its own, or leave such samples out");
  return sum;
}

std::vector<SlotReport> reports_of(const std::vector<SlotWords>& slots,
                                   const std::vector<wire::Bytes>& counted) {
  std::vector<SlotReport> reports;
  for (const SlotWords& slot : slots) {
    const std::size_t leaf = reports.size();
    SlotReport report{static_cast<int>(leaf),
                      std::bit_cast<std::uint64_t>(slot.index_hash),
                      std::bit_cast<double>(slot.loss),
                      std::bit_cast<double>(slot.weight),
                      {}};
    if (slot.figure_bytes > 0) report.figures = wire::decode<std::vector<Figure>>(counted[leaf]).value();
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace troupe::train
