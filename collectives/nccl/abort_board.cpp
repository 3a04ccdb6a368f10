#include "collectives/nccl/abort_board.hpp"

#include <array>

namespace troupe::collectives {
namespace {

class WordBoard final : public AbortBoard {
 public:
  WordBoard(std::shared_ptr<SharedMemory> region, Generation generation) : region_(std::move(region)) {
    word_ = region_ ? region_->data() : own_.data();
    if (region_ && region_->size() < kAbortWordBytes) {
      throw BadConfig("cannot use a region as abort board",
                      "it has " + std::to_string(region_->size()) + " bytes and needs 256",
                      "create it with at least kAbortWordBytes");
    }
    stamp_region(word_, generation).value();
  }
  void post(AbortKind kind, const std::string& reason) override { abort_region(word_, reason, kind); }
  std::optional<AbortReason> read() override {
    if (!region_aborted(word_)) return std::nullopt;
    return region_abort_reason(word_);
  }

 private:
  alignas(8) std::array<std::byte, kAbortWordBytes> own_{};
  std::shared_ptr<SharedMemory> region_;
  std::byte* word_;
};

}  // namespace

std::shared_ptr<AbortBoard> make_word_board(std::shared_ptr<SharedMemory> region, Generation generation) {
  return std::make_shared<WordBoard>(std::move(region), generation);
}

}  // namespace troupe::collectives
