/// What the ranks of a step tell each other of their leaves.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/plan.hpp"
#include "collectives/process_group.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

/// What every rank learns of a leaf, so that a survivor can speak for a trainer that died. Each is zero but
/// on the leaf's host, so that summing over ranks changes no bit.
struct SlotWords {
  std::int64_t index_hash = 0;
  std::int64_t loss = 0;          ///< the bits of a double
  std::int64_t weight = 0;        ///< the same: what the job gave, or the samples
  std::int64_t has_weight = 0;    ///< 1: the job gave it
  std::int64_t figure_bytes = 0;  ///< what it counted follows in that many
};
static_assert(sizeof(SlotWords) == 5 * sizeof(std::int64_t));
inline constexpr std::size_t kMostFigureBytes = 64 << 10;

/// A leaf of this rank. Throws BadConfig where it counted too many figures.
void fill(SlotWords& slot, wire::Bytes& counted, const data::BatchHeader& header, const LeafResult& result);

/// Every rank learns what every leaf counted; no rank asks when none did. By leaf.
void share_figures(collectives::ProcessGroup& group, const std::vector<SlotWords>& slots,
                   std::vector<wire::Bytes>& counted);

/// Over all leaves in their order, where they have weights; else 0. Throws BadConfig where some have, or
/// where it is nothing.
double sum_of_weights(const std::vector<SlotWords>& slots);

/// As the driver is told.
std::vector<SlotReport> reports_of(const std::vector<SlotWords>& slots,
                                   const std::vector<wire::Bytes>& counted);

}  // namespace troupe::train
