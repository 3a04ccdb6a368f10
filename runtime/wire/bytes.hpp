/// Bytes of a message, and the two ends of them: Writer appends values, Reader takes them off again.
///
/// Users meet these two when they specialise Codec<T> for a type of their own (see codec.hpp).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, and values are copied as they are");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;
/// What a message refers to, and what lives because of that.
using Kept = std::vector<std::shared_ptr<const void>>;

/// Values in values: what a recursive type may reach, so that no message exhausts a stack.
inline constexpr int kMaxDepth = 32;

/// How long an encoded value may be, and what is said of a longer one.
struct Bound {
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
  std::string_view what{};  ///< "the arguments of"
  std::string_view todo{};
};
inline constexpr Bound kUnbounded;

/// Where encoders append. Small messages are staged on the stack and allocated once, at their size.
class Writer {
 public:
  Writer() : Writer(kUnbounded, {}) {}
  /// The append that would make it longer than `bound` throws LimitExceeded, before it takes memory. `of` is
  /// whose bytes these are. REQUIRES: both outlive this.
  Writer(const Bound& bound, std::string_view of)
      : bound_(bound), of_(of) {}  // NOLINT: leaves the stage as it is
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void append(const void* data, std::size_t size) {
    // Invariant: staged_ <= stage_.size(). Said, since GCC 12 at -O1 warns of a write behind the stage
    // without it.
    if (staged_ > stage_.size()) __builtin_unreachable();
    if (size > stage_.size() - staged_) return spill(data, size);
    if (size != 0) std::memcpy(stage_.data() + staged_, data, size);
    staged_ += size;
  }
  void append(ByteView bytes) { append(bytes.data(), bytes.size()); }
  /// The number of elements that follow, as u32.
  void append_count(std::size_t count);
  /// The value cannot be sent: take() will throw LimitExceeded with this reason.
  void refuse(const char* why) {
    if (refused_ == nullptr) refused_ = why;
  }
  /// `what` has to live until the message has arrived, whose sender takes kept(). If its name is a part of
  /// the value, that is appended next.
  void keep(std::shared_ptr<const void> what) {
    kept_at_.push_back(bytes_.size() + staged_);
    kept_.push_back(std::move(what));
  }
  Kept kept() { return std::exchange(kept_, {}); }
  /// Where in the bytes the names are of what is kept.
  const std::vector<std::size_t>& kept_at() const { return kept_at_; }
  /// What was appended; the writer is used up. Throws LimitExceeded if the value cannot be sent; `type` names
  /// it in the error; BadConfig if it refers to something and nobody took kept().
  Bytes take(std::string_view type);

  /// Counts how deep the encoder is in the value, for a scope.
  class Level {
   public:
    explicit Level(Writer& writer) : writer_(writer) {
      if (++writer_.depth_ > kMaxDepth) writer_.refuse("it is nested more than 32 deep");
    }
    ~Level() { --writer_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    /// False: go no deeper.
    bool ok() const { return writer_.depth_ <= kMaxDepth; }

   private:
    Writer& writer_;
  };

 private:
  void spill(const void* data, std::size_t size);
  /// Throws if it would be longer than allowed with `more` bytes.
  void check_bound(std::size_t more) const;

  const Bound& bound_;
  const std::string_view of_;
  std::array<std::byte, 256> stage_;
  std::size_t staged_ = 0;
  Bytes bytes_;
  Kept kept_;
  std::vector<std::size_t> kept_at_;
  const char* refused_ = nullptr;
  int depth_ = 0;
};

/// Takes values off the front of a message. Total: what is not there is recorded as the reason, and the read
/// returns false.
class Reader {
 public:
  explicit Reader(ByteView bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size() - at_; }
  /// The next `size` bytes into `to`.
  [[nodiscard]] bool copy(void* to, std::size_t size) {
    if (size > left()) return fail("it ends too early");
    if (size != 0) std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
    return true;
  }
  /// The next `size` bytes where they are: valid as long as the message is.
  [[nodiscard]] bool view(ByteView& out, std::size_t size) {
    if (size > left()) return fail("it ends too early");
    out = bytes_.subspan(at_, size);
    at_ += size;
    return true;
  }
  /// A count of elements, each of at least `least_bytes` (> 0) bytes: refused if they cannot all be there, so
  /// that nobody takes memory for a number alone.
  [[nodiscard]] bool read_count(std::uint32_t& count, std::size_t least_bytes) {
    if (!copy(&count, sizeof count)) return false;
    return count <= left() / least_bytes || fail("a count is larger than the bytes that follow");
  }
  /// Records the first reason, and where. Always false.
  bool fail(const char* why) {
    if (why_ == nullptr) why_ = why, failed_at_ = at_;
    return false;
  }
  /// The whole message was read, and nothing failed.
  [[nodiscard]] bool finish() { return why_ == nullptr && (left() == 0 || fail("bytes follow its end")); }
  /// REQUIRES: something failed.
  ErrorInfo error(std::string_view type) const;

  /// Counts how deep the decoder is in the value, for a scope.
  class Level {
   public:
    explicit Level(Reader& reader) : reader_(reader) {
      if (++reader_.depth_ > kMaxDepth) reader_.fail("it is nested more than 32 deep");
    }
    ~Level() { --reader_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    bool ok() const { return reader_.depth_ <= kMaxDepth; }

   private:
    Reader& reader_;
  };

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
  const char* why_ = nullptr;
  std::size_t failed_at_ = 0;
  int depth_ = 0;
};

}  // namespace troupe::wire
