/// Bytes to a request. Pure: no sockets, no time.
///
/// Whoever stands before us (a proxy, a cache) must agree with us where a request ends, or a stranger's bytes
/// become the next client's request (request smuggling). So nothing ambiguous is repaired, as Beast 1.81 does
/// with some of it (a folded line, `Transfer-Encoding: gzip` beside a Content-Length, fields in trailers): it
/// is refused, and the connection closed. Beast reads the head, after a guard has looked at its bytes; the
/// body's framing is ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/http/message.hpp"

namespace troupe::http {

class RequestParser {
 public:
  struct Limits {
    std::size_t header_bytes = std::size_t{16} << 10;
    std::size_t body_bytes = std::size_t{64} << 20;
  };
  enum class State { kHead, kBody, kDone, kRefused };

  explicit RequestParser(Limits limits) : limits_(limits) {}

  /// Takes what it can from the front of `bytes` and says how much. The caller keeps the rest, and gives it
  /// again with what came after it. The outcome does not depend on how the bytes were cut.
  std::size_t feed(std::string_view bytes);
  State state() const { return state_; }
  /// Nothing but an empty line was seen yet.
  bool is_idle() const { return state_ == State::kHead && scanned_ == 0; }

  /// REQUIRES: kBody. The client waits for a word before it sends the body (`Expect: 100-continue`).
  bool expects_continue() const { return expects_continue_ && request_.body.empty(); }
  /// REQUIRES: kBody. What Content-Length says, 0 for a chunked body.
  std::size_t expected_bytes() const { return chunked_ ? 0 : expected_; }
  /// What the body takes in memory so far.
  std::size_t held_bytes() const { return request_.body.empty() ? 0 : request_.body.capacity(); }

  /// REQUIRES: kRefused. What to answer, before the connection is closed.
  int refused_status() const { return refused_status_; }
  const std::string& refused_text() const { return refused_text_; }

  /// REQUIRES: kDone. The request, without id and times; then the next one may be fed.
  Request take();
  /// Of the request taken last.
  bool keep_alive() const { return keep_alive_; }
  bool is_http_1_0() const { return http_1_0_; }

 private:
  friend class HeadParser;
  enum class Chunk { kSize, kData, kDataEnd, kLastEnd };

  std::size_t read_head(std::string_view bytes);
  bool check_bytes(std::string_view bytes);
  void parse_head(std::string_view head);
  void begin_body();
  std::size_t read_body(std::string_view bytes);
  std::size_t read_chunk_size(std::string_view bytes);
  std::size_t read_line_end(std::string_view bytes);
  std::size_t take_body(std::string_view bytes, std::uint64_t& left);
  void refuse(int status, std::string text);

  Limits limits_;
  State state_ = State::kHead;
  // The head.
  std::size_t scanned_ = 0;  ///< bytes of it that were looked at
  bool skipped_line_ = false;
  bool expects_continue_ = false;
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  // The body.
  bool chunked_ = false;
  std::uint64_t expected_ = 0;  ///< by Content-Length
  std::uint64_t left_ = 0;      ///< of the body, or of this chunk
  Chunk chunk_ = Chunk::kSize;

  Request request_;
  int refused_status_ = 0;
  std::string refused_text_;
};

}  // namespace troupe::http
