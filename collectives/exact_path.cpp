#include "collectives/exact_path.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

std::unique_ptr<std::byte[]> room(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

ExactReduction::ExactReduction(Options options)
    : options_(std::move(options)),
      ranks_(options_.leaves.size()),
      element_(element_size(options_.dtype)),
      block_(options_.count / ranks_ + (options_.count % ranks_ != 0 ? 1 : 0)),
      kernel_(kernel_for(options_.dtype, options_.how.op)) {
  for (const auto interval : options_.leaves) {
    partials_.push_back(canonical_nodes(interval, options_.leaves.back().end).size());
    most_partials_ = std::max(most_partials_, partials_.back());
  }
  TROUPE_ASSERT(kernel_.combine != nullptr, "the caller refuses what does not reduce");
  TROUPE_ASSERT(options_.partials.size() == partials_[static_cast<std::size_t>(options_.rank)],
                "one partial a canonical node");
  TROUPE_ASSERT(!options_.scattered || fits(), "a scattered result has a part for every rank");
}

std::size_t ExactReduction::slice_size(std::size_t rank) const {
  const std::size_t begin = std::min(options_.count, rank * block_);
  return std::min(block_, options_.count - begin);
}

/// Block r: the slices of rank r, one a partial, each `block_` elements long and padded with zeros.
void ExactReduction::pack() {
  const std::size_t bytes = block_ * element_;
  packed_ = room(ranks_ * most_partials_ * bytes);
  for (std::size_t r = 0; r < ranks_; ++r) {
    const std::size_t used = slice_size(r) * element_;
    for (std::size_t p = 0; p < most_partials_; ++p) {
      std::byte* to = packed_.get() + (r * most_partials_ + p) * bytes;
      const bool have = p < options_.partials.size() && used != 0;
      if (have) std::memcpy(to, options_.partials[p] + r * bytes, used);
      const std::size_t filled = have ? used : 0;
      if (filled != bytes) std::memset(to + filled, 0, bytes - filled);
    }
  }
}

Exchange ExactReduction::slices() {
  received_ = room(ranks_ * most_partials_ * block_ * element_);
  const std::byte* from = options_.partials[0];
  if (!fits() || most_partials_ != 1) {
    pack();
    from = packed_.get();
  }
  return {from, received_.get(), most_partials_ * block_};
}

void ExactReduction::sum() {
  const InFloatMode mode(options_.float_mode);
  packed_.reset();
  std::vector<LeafInterval> nodes;
  std::vector<const std::byte*> sources;
  for (std::size_t r = 0; r < ranks_; ++r) {
    for (const auto node : canonical_nodes(options_.leaves[r], options_.leaves.back().end))
      nodes.push_back(node);
    for (std::size_t p = 0; p < partials_[r]; ++p) {
      sources.push_back(received_.get() + (r * most_partials_ + p) * block_ * element_);
    }
  }
  std::byte* target = options_.result;
  if (!options_.scattered) {
    mine_ = room(block_ * element_);
    target = mine_.get();
  }
  const std::size_t own = slice_size(static_cast<std::size_t>(options_.rank));
  TreeSum(nodes, options_.leaves.back().end)
      .run(kernel_, sources, std::span(&target, 1), own, element_, options_.how.factor);
  if (!options_.scattered && own != block_)
    std::memset(target + own * element_, 0, (block_ - own) * element_);
  received_.reset();
}

Exchange ExactReduction::collect() {
  TROUPE_ASSERT(!options_.scattered, "a scattered result is complete after the sum");
  std::byte* to = options_.result;
  if (options_.part || (to != nullptr && !fits())) {
    gathered_ = room(ranks_ * block_ * element_);
    to = gathered_.get();
  }
  return {mine_.get(), to, block_};
}

void ExactReduction::finish() {
  const Slice part = options_.part.value_or(Slice{0, options_.count});
  if (gathered_ != nullptr && part.size() != 0) {
    std::memcpy(options_.result, gathered_.get() + part.begin * element_, part.size() * element_);
  }
  gathered_.reset();
  mine_.reset();
}

void run_exact(ExactReduction& reduction, const std::function<void(const Exchange&)>& all_to_all,
               const std::function<void(const Exchange&)>& collect) {
  all_to_all(reduction.slices());
  reduction.sum();
  if (!collect) return;
  collect(reduction.collect());
  reduction.finish();
}

}  // namespace troupe::collectives
