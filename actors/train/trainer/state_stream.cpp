#include "actors/train/trainer/state_stream.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/error.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {
namespace {

template <class Head>
wire::Bytes framed(const Head& head) {
  const wire::Bytes encoded = wire::encode(head);
  const std::uint64_t size = encoded.size();
  const auto prefix = std::as_bytes(std::span(&size, 1));
  wire::Bytes bytes(prefix.begin(), prefix.end());
  bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  return bytes;
}

SharedState with_size(SharedState head, const StateCopy& copy) {
  head.bytes = copy.size();
  return head;
}

checkpoint::Digest128 digest_of(wire::ByteView bytes) {
  checkpoint::Xxh3 hash;
  hash.update(bytes);
  return hash.digest();
}

[[noreturn]] void damaged(const std::string& why) {
  throw_error({ErrorCode::kCorrupt, "a state that arrives is not what was sent", why, ""});
}

}  // namespace

StateStream::StateStream(Generation generation, SharedState head, std::unique_ptr<StateCopy> copy)
    : generation_(generation),
      head_(framed(with_size(std::move(head), *copy))),
      copy_(std::move(copy)),
      log_begin_(head_.size() + copy_->size()),
      end_(log_begin_) {}

void StateStream::add(SharedStep step, wire::ByteView record) {
  step.bytes = record.size();
  wire::Bytes bytes = framed(step);
  bytes.insert(bytes.end(), record.begin(), record.end());
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const std::uint64_t begin = end_;
  end_ += bytes.size();
  log_.push_back({begin, std::move(bytes)});
  if (end_ - log_begin_ <= std::max(kLeastKept, copy_->size())) return;
  ended_ = true;
  log_.clear();
}

SharedPiece StateStream::read(std::uint64_t offset) {
  ++reads_;
  SharedPiece piece;
  const auto room = [&] { return kSharedPiece - piece.bytes.size(); };
  const auto append = [&](wire::ByteView bytes) {
    const auto taken = bytes.first(std::min(bytes.size(), room()));
    piece.bytes.insert(piece.bytes.end(), taken.begin(), taken.end());
    offset += taken.size();
  };
  if (offset < head_.size()) append(wire::ByteView(head_).subspan(static_cast<std::size_t>(offset)));
  if (offset < log_begin_ && room() > 0) {
    const std::size_t before = piece.bytes.size();
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(room(), log_begin_ - offset));
    piece.bytes.resize(before + size);
    copy_->read(offset - head_.size(), std::span(piece.bytes).subspan(before));
    offset += size;
  }
  {
    const std::lock_guard lock(mutex_);
    if (ended_)
      throw_error({ErrorCode::kUnavailable, "the state is not shared any more",
                   "its steps came faster than they were fetched", ""});
    auto entry = std::upper_bound(log_.begin(), log_.end(), offset,
                                  [](std::uint64_t at, const Entry& one) { return at < one.begin; });
    if (entry != log_.begin()) --entry;
    for (; entry != log_.end() && offset >= entry->begin && room() > 0; ++entry) {
      const auto skip =
          static_cast<std::size_t>(std::min<std::uint64_t>(offset - entry->begin, entry->bytes.size()));
      append(wire::ByteView(entry->bytes).subspan(skip));
    }
  }
  piece.digest = digest_of(piece.bytes);
  return piece;
}

bool StateFollower::pull() {
  const SharedPiece piece = pull_(offset_);
  if (digest_of(piece.bytes) != piece.digest) damaged("the hash of a piece does not hold");
  offset_ += piece.bytes.size();
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(std::exchange(at_, 0)));
  wire::ByteView rest = piece.bytes;
  const auto fill = [&] {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), head_->bytes - filled_));
    if (size != 0) std::memcpy(state_.get() + filled_, rest.data(), size);
    filled_ += size;
    rest = rest.subspan(size);
  };
  if (!head_) {
    buffer_.insert(buffer_.end(), rest.begin(), rest.end());
    head_ = take_head<SharedState>();
    if (!head_) return piece.bytes.size() == kSharedPiece;
    // Not zeroed: every byte is written, and a state is large.
    state_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(head_->bytes));
    const wire::Bytes behind(unread().begin(), unread().end());
    buffer_.clear();
    at_ = 0;
    rest = behind;
    fill();
    buffer_.insert(buffer_.end(), rest.begin(), rest.end());
  } else {
    fill();
    buffer_.insert(buffer_.end(), rest.begin(), rest.end());
  }
  return piece.bytes.size() == kSharedPiece;
}

template <class Head>
std::optional<Head> StateFollower::take_head() {
  std::uint64_t size = 0;
  if (unread().size() < sizeof size) return std::nullopt;
  std::memcpy(&size, unread().data(), sizeof size);
  if (unread().size() - sizeof size < size) return std::nullopt;
  auto head = wire::decode<Head>(unread().subspan(sizeof size, static_cast<std::size_t>(size)));
  if (!head.ok()) damaged(head.error().message());
  at_ += sizeof size + static_cast<std::size_t>(size);
  return std::move(head).value();
}

std::optional<ReceivedState> StateFollower::take_state() {
  if (!head_ || filled_ < head_->bytes || std::exchange(state_taken_, true)) return std::nullopt;
  ReceivedState state;
  state.memory = std::move(state_);
  const std::span<const std::byte> bytes(state.memory.get(), static_cast<std::size_t>(head_->bytes));
  state.parts = checkpoint::read_safetensors("a state that arrives", bytes).value().tensors;
  return state;
}

std::optional<StateFollower::Step> StateFollower::take_step() {
  if (!state_taken_) return std::nullopt;
  if (!step_) step_ = take_head<SharedStep>();
  if (!step_ || unread().size() < step_->bytes) return std::nullopt;
  Step step{std::move(*step_), unread().first(static_cast<std::size_t>(step_->bytes))};
  step_.reset();
  at_ += step.record.size();
  return step;
}

}  // namespace troupe::train
