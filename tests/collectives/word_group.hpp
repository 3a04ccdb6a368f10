/// A host group of ranks that share memory (NcclGroupOptions::host) which carries aborts and no data.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "collectives/process_group.hpp"
#include "runtime/core/abort_word.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives::testing {

class WordGroup final : public ProcessGroup {
 public:
  /// `region`: the same on every rank; its first bytes are the abort word. A fresh one a generation.
  WordGroup(int rank, int size, Generation generation, std::shared_ptr<SharedMemory> region)
      : ProcessGroup({.backend = "word",
                      .rank = rank,
                      .size = size,
                      .generation = generation,
                      .leaves = rank_leaves(size)}),
        region_(std::move(region)) {
    stamp_region(region_->data(), generation).value();
  }
  /// Of one rank.
  explicit WordGroup(Generation generation)
      : WordGroup(0, 1, generation,
                  std::make_shared<SharedMemory>(SharedMemory::create("word", 4096, false).value())) {}
  std::string abort_reason() const override {
    return region_aborted(region_->data()) ? region_abort_reason(region_->data()).text : "";
  }

 private:
  std::shared_ptr<Work> launch(std::span<const Op>) override {
    throw std::logic_error("this group moves no data");
  }
  void stop(const std::string& reason) override { abort_region(region_->data(), reason); }

  const std::shared_ptr<SharedMemory> region_;
};

}  // namespace troupe::collectives::testing
