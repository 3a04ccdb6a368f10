#include "collectives/native/link.hpp"

#include <algorithm>

#include "runtime/core/abort_word.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::collectives {
namespace {

constexpr std::uint32_t kMagic = 0x33435254;  // "TRC3"

ErrorInfo bad_frame(std::string why) {
  return {ErrorCode::kBadInput, "a frame from another rank does not decode", std::move(why),
          "the ranks run different builds"};
}

}  // namespace

FrameHeaderBytes encode(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  put_at(bytes, 0, kMagic);
  put_at(bytes, 4, static_cast<std::uint32_t>(header.kind));
  put_at(bytes, 8, header.sequence);
  put_at(bytes, 12, header.round);
  for (std::size_t i = 0; i < kOpWords; ++i) put_at(bytes, 16 + 8 * i, header.call[i]);
  put_at(bytes, 40, header.payload_bytes);
  put_at(bytes, 48, header.freed);
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (get_at<std::uint32_t>(bytes, 0) != kMagic) return bad_frame("wrong magic");
  const auto kind = get_at<std::uint32_t>(bytes, 4);
  if (kind < 1 || kind > static_cast<std::uint32_t>(FrameKind::kLeft))
    return bad_frame("frame kind " + std::to_string(kind));
  const OpWords call{get_at<std::uint64_t>(bytes, 16), get_at<std::uint64_t>(bytes, 24),
                     get_at<std::uint64_t>(bytes, 32)};
  if (!is_call(call)) return bad_frame("an operation that does not exist");
  if (get_at<std::uint32_t>(bytes, 52) != 0) return bad_frame("its last bytes mean nothing");
  FrameHeader header{.kind = static_cast<FrameKind>(kind),
                     .sequence = get_at<std::uint32_t>(bytes, 8),
                     .round = get_at<std::uint32_t>(bytes, 12),
                     .call = call,
                     .payload_bytes = get_at<std::uint64_t>(bytes, 40),
                     .freed = get_at<std::uint32_t>(bytes, 48)};
  if (header.kind == FrameKind::kAbort && header.payload_bytes > kMaxAbortReasonBytes) {
    return bad_frame("an abort reason of " + std::to_string(header.payload_bytes) + " bytes");
  }
  return header;
}

Link::Link(int rank, std::unique_ptr<ByteStream> stream) : rank_(rank), stream_(std::move(stream)) {}

void Link::send(const FrameHeader& header, std::vector<std::span<const std::byte>> pieces) {
  TROUPE_ASSERT(!sending(), "one frame at a time");
  out_header_ = encode(header);
  out_ = std::move(pieces);
  std::erase_if(out_, [](const auto& piece) { return piece.empty(); });
  out_.insert(out_.begin(), out_header_);
}

bool Link::pump_out() {
  bool moved = false;
  while (!out_.empty() && broken_.empty()) {
    std::size_t left = stream_->write(out_);
    if (left == 0) break;
    moved = true;
    std::size_t whole = 0;
    while (whole < out_.size() && left >= out_[whole].size()) left -= out_[whole++].size();
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(whole));
    if (!out_.empty()) out_.front() = out_.front().subspan(left);
  }
  return moved;
}

bool Link::read_header() {
  const std::size_t got = stream_->read(std::span(in_header_).subspan(in_header_bytes_));
  in_header_bytes_ += got;
  if (in_header_bytes_ < kFrameHeaderBytes) return got != 0;
  auto header = decode_header(in_header_);
  if (!header) {
    broken_ = header.error().message();
    return false;
  }
  header_ = *header;
  return true;
}

bool Link::pump_in() {
  bool moved = false;
  while (broken_.empty()) {
    if (!header_) {
      if (!read_header()) break;
      moved = true;
      continue;
    }
    if (into_.empty()) break;
    const std::size_t got = stream_->read(into_.front());
    if (got == 0) break;
    into_.front() = into_.front().subspan(got);
    if (into_.front().empty()) into_.erase(into_.begin());
    moved = true;
  }
  return moved;
}

void Link::receive_into(std::vector<std::span<std::byte>> into) {
  std::size_t bytes = 0;
  for (const auto& piece : into) bytes += piece.size();
  TROUPE_ASSERT(header_ && bytes == header_->payload_bytes, "the payload has the length that is wanted");
  into_ = std::move(into);
  std::erase_if(into_, [](const auto& piece) { return piece.empty(); });
  has_target_ = true;
}

void Link::next_frame() {
  TROUPE_ASSERT(received(), "a frame is whole before the next one");
  header_.reset();
  in_header_bytes_ = 0;
  has_target_ = false;
}

void Link::say_abort(const std::string& reason) {
  const auto text = std::as_bytes(std::span(reason)).first(std::min(reason.size(), kMaxAbortReasonBytes));
  say_last({.kind = FrameKind::kAbort, .payload_bytes = text.size()}, text);
}

void Link::say_last(const FrameHeader& header, std::span<const std::byte> payload) {
  const auto encoded = encode(header);
  last_words_.assign(encoded.begin(), encoded.end());
  last_words_.insert(last_words_.end(), payload.begin(), payload.end());
  out_.emplace_back(last_words_);
  pump_out();
}

bool Link::has_arrived() {
  if (fd() < 0) return true;  // the two never connected
  pump_out();
  if (!sending()) stream_->end();
  const bool arrived = stream_->has_arrived();
  return arrived && (!sending() || !broken().empty());
}

void Link::close() {
  out_.clear();
  stream_->end();
}

}  // namespace troupe::collectives
