#include "runtime/http/request_parser.hpp"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>
#include <limits>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::http {

namespace beast = boost::beast::http;

namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";
/// Sixteen digits of a chunk's size, and its line end.
constexpr std::size_t kMaxChunkLine = 18;

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_host(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           std::string_view("-._~:[]%!$&'()*+;=").find(c) != std::string_view::npos;
  });
}

}  // namespace

/// Beast's parser of a head, that hands the parts on. Of the framing it only sees what on_field_impl lets
/// pass.
class HeadParser final : public beast::basic_parser<true> {
 public:
  explicit HeadParser(RequestParser& owner) : owner_(owner) {
    header_limit(std::numeric_limits<std::uint32_t>::max());
    skip(true);  // the body is read by RequestParser
  }
  std::size_t hosts = 0;
  bool has_length = false;
  std::string target;

 private:
  using View = boost::beast::string_view;
  using ErrorCode = boost::beast::error_code;
  static std::string_view view(View text) { return {text.data(), text.size()}; }

  void refuse(ErrorCode& ec, int status, std::string text) {
    owner_.refuse(status, std::move(text));
    ec = beast::error::bad_value;
  }

  void on_request_impl(beast::verb, View method, View its_target, int version, ErrorCode&) override {
    owner_.request_.method = view(method);
    target = view(its_target);
    owner_.http_1_0_ = version == 10;
  }

  void on_field_impl(beast::field name, View name_text, View value_text, ErrorCode& ec) override {
    const std::string_view value = view(value_text);
    owner_.request_.headers.add(view(name_text), value);
    switch (name) {
      case beast::field::content_length:
        return on_content_length(value, ec);
      case beast::field::transfer_encoding:
        return on_transfer_encoding(value, ec);
      case beast::field::host:
        ++hosts;
        if (!is_host(value)) refuse(ec, 400, "the Host field is malformed");
        return;
      case beast::field::expect:
        if (!same_ignoring_case(value, "100-continue"))
          return refuse(ec, 417, "only 100-continue can be expected");
        owner_.expects_continue_ = !owner_.http_1_0_;
        return;
      case beast::field::content_encoding:
        if (!same_ignoring_case(value, "identity"))
          refuse(ec, 415, "compressed bodies are not read: send it without Content-Encoding");
        return;
      default:
        return;
    }
  }

  void on_content_length(std::string_view value, ErrorCode& ec) {
    if (has_length) return refuse(ec, 400, "several Content-Length fields");
    if (!is_digits(value) ||
        std::from_chars(value.data(), value.data() + value.size(), owner_.expected_).ec != std::errc())
      return refuse(ec, 400, "Content-Length is not a number");
    has_length = true;
  }

  void on_transfer_encoding(std::string_view value, ErrorCode& ec) {
    if (owner_.http_1_0_) return refuse(ec, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (owner_.chunked_) return refuse(ec, 400, "several Transfer-Encoding fields");
    if (!same_ignoring_case(value, "chunked"))
      return refuse(ec, 501, "the only Transfer-Encoding read is chunked");
    owner_.chunked_ = true;
  }

  void on_header_impl(ErrorCode&) override {}
  void on_finish_impl(ErrorCode&) override {}
  // What the body, which it does not read, and responses would bring.
  void on_response_impl(int, View, int, ErrorCode&) override {}
  void on_body_init_impl(boost::optional<std::uint64_t> const&, ErrorCode&) override {}
  std::size_t on_body_impl(View, ErrorCode&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, View, ErrorCode&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View, ErrorCode&) override { return 0; }

  RequestParser& owner_;
};

void RequestParser::refuse(int status, std::string text) {
  if (state_ == State::kRefused) return;
  state_ = State::kRefused;
  refused_status_ = status;
  refused_text_ = std::move(text);
  keep_alive_ = false;
}

std::size_t RequestParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  for (;;) {
    const std::string_view rest = bytes.substr(used);
    std::size_t taken = 0;
    if (state_ == State::kHead) taken = read_head(rest);
    if (state_ == State::kBody && taken == 0) taken = read_body(rest);
    if (taken == 0) return used;
    used += taken;
  }
}

/// The bytes that were not looked at before. False: refused, or the end of the head is not among them.
bool RequestParser::check_bytes(std::string_view bytes) {
  for (; scanned_ < bytes.size(); ++scanned_) {
    const std::size_t i = scanned_;
    const auto c = static_cast<unsigned char>(bytes[i]);
    const char before = i == 0 ? '\0' : bytes[i - 1];
    if (i >= limits_.header_bytes) {
      const bool in_first_line = bytes.find('\n') > i;
      const std::string most = std::to_string(limits_.header_bytes) + " bytes are the most";
      return refuse(in_first_line ? 414 : 431, (in_first_line ? "the target: " : "the head: ") + most), false;
    }
    if (before == '\r' && c != '\n') return refuse(400, "a carriage return without a line feed"), false;
    if (before == '\n' && (c == ' ' || c == '\t'))
      return refuse(400, "a field is folded into several lines"), false;
    if (c == '\n') {
      if (before != '\r') return refuse(400, "a line feed without a carriage return"), false;
      if (i >= 3 && bytes.substr(i - 3, 4) == kEndOfHead) return ++scanned_, true;
    } else if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
      return refuse(400, "a control byte in the head: is this HTTP, without TLS?"), false;
    }
  }
  return false;
}

std::size_t RequestParser::read_head(std::string_view bytes) {
  if (scanned_ == 0 && !skipped_line_ && bytes.starts_with('\r')) {
    // One empty line before a request is ignored: old clients end a body with one.
    if (bytes.size() == 1) return 0;
    if (bytes[1] == '\n') return skipped_line_ = true, 2;
  }
  if (!check_bytes(bytes)) return 0;
  const std::size_t size = std::exchange(scanned_, 0);
  skipped_line_ = false;
  parse_head(bytes.substr(0, size));
  return size;
}

void RequestParser::parse_head(std::string_view head) {
  HeadParser parser(*this);
  boost::beast::error_code ec;
  parser.put(boost::asio::const_buffer(head.data(), head.size()), ec);
  if (ec) {
    const bool version = ec == beast::error::bad_version;
    return refuse(version ? 505 : 400, version ? "the version is not HTTP/1.1 or HTTP/1.0"
                                               : "the head is malformed: " + ec.message());
  }
  if (parser.hosts > 1 || (parser.hosts == 0 && !http_1_0_)) return refuse(400, "one Host field is needed");
  if (parser.has_length && chunked_) return refuse(400, "both Content-Length and Transfer-Encoding");

  std::string_view target = parser.target;
  for (const std::string_view scheme :
       {"http://", "https://"}) {  // as a client writes it that takes us for a proxy
    if (!target.starts_with(scheme)) continue;
    const std::size_t end = std::min(parser.target.find_first_of("/?", scheme.size()), parser.target.size());
    parser.target.erase(0, end);
    if (!parser.target.starts_with('/')) parser.target.insert(0, "/");
    target = parser.target;
    break;
  }
  const bool good = target.starts_with('/') || (target == "*" && request_.method == "OPTIONS");
  if (!good || std::any_of(target.begin(), target.end(), [](char c) { return c <= ' ' || c == '#'; }))
    return refuse(400, "the target is not a path");
  const std::size_t question = std::min(target.find('?'), target.size());
  request_.path = target.substr(0, question);
  request_.query = target.substr(std::min(question + 1, target.size()));
  keep_alive_ = parser.keep_alive();
  begin_body();
}

void RequestParser::begin_body() {
  if (!chunked_ && expected_ > limits_.body_bytes)
    return refuse(413, "the body: " + std::to_string(limits_.body_bytes) + " bytes are the most");
  left_ = chunked_ ? 0 : expected_;
  chunk_ = Chunk::kSize;
  state_ = chunked_ || left_ > 0 ? State::kBody : State::kDone;
}

std::size_t RequestParser::read_body(std::string_view bytes) {
  if (!chunked_) {
    const std::size_t taken = take_body(bytes, left_);
    if (left_ == 0) state_ = State::kDone;
    return taken;
  }
  switch (chunk_) {
    case Chunk::kSize:
      return read_chunk_size(bytes);
    case Chunk::kData: {
      const std::size_t taken = take_body(bytes, left_);
      if (left_ == 0) chunk_ = Chunk::kDataEnd;
      return taken;
    }
    case Chunk::kDataEnd:
    case Chunk::kLastEnd:
      return read_line_end(bytes);
  }
  return 0;
}

std::size_t RequestParser::read_chunk_size(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, kMaxChunkLine);
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  const std::string_view rest = line.substr(static_cast<std::size_t>(end - line.data()));
  const bool may_go_on = line.size() < kMaxChunkLine && (rest.empty() || rest == "\r");
  if (line.empty() || (may_go_on && end != line.data())) return 0;
  if (error != std::errc() || !rest.starts_with("\r\n"))
    return refuse(400,
                  rest.starts_with(';') ? "chunk extensions are not read" : "a chunk's size is malformed"),
           0;
  if (size > limits_.body_bytes - request_.body.size())
    return refuse(413, "the body: " + std::to_string(limits_.body_bytes) + " bytes are the most"), 0;
  left_ = size;
  chunk_ = size == 0 ? Chunk::kLastEnd : Chunk::kData;
  return static_cast<std::size_t>(end - line.data()) + 2;
}

std::size_t RequestParser::read_line_end(std::string_view bytes) {
  const bool last = chunk_ == Chunk::kLastEnd;
  if (!std::string_view("\r\n").starts_with(bytes.substr(0, 2)))
    return refuse(400,
                  last ? "fields after the body (trailers) are not read" : "a chunk is longer than its size"),
           0;
  if (bytes.size() < 2) return 0;
  chunk_ = Chunk::kSize;
  if (last) state_ = State::kDone;
  return 2;
}

std::size_t RequestParser::take_body(std::string_view bytes, std::uint64_t& left) {
  const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), left));
  std::string& body = request_.body;
  const std::size_t needed = body.size() + taken + kBodyPadding;
  if (body.capacity() < needed) {
    // Twice as much each time, no more than was said, and no more because it was said.
    const std::size_t most =
        (chunked_ ? limits_.body_bytes : static_cast<std::size_t>(expected_)) + kBodyPadding;
    body.reserve(std::max(needed, std::min(most, 2 * body.capacity())));
  }
  body.append(bytes.substr(0, taken));
  left -= taken;
  return taken;
}

Request RequestParser::take() {
  TROUPE_ASSERT(state_ == State::kDone, "a request is taken when it is done");
  state_ = State::kHead;
  chunked_ = false;
  expects_continue_ = false;
  expected_ = left_ = 0;
  return std::exchange(request_, Request{});
}

}  // namespace troupe::http
