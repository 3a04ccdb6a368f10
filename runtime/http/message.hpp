/// A request and its response, as values. No sockets here.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"

namespace troupe::http {

/// The fields of a request's head, in their order. Names compare without regard to case.
class Headers {
 public:
  void add(std::string_view name, std::string_view value);
  /// The first of that name; empty: there is none.
  std::optional<std::string_view> find(std::string_view name) const;
  std::size_t count(std::string_view name) const;
  std::size_t size() const { return fields_.size(); }
  std::pair<std::string_view, std::string_view> operator[](std::size_t i) const;

 private:
  struct Field {
    std::size_t name = 0, value = 0, end = 0;  ///< places in text_
  };
  std::string text_;
  std::vector<Field> fields_;
};

struct Request {
  std::string method;  ///< as sent: "GET"
  std::string
      path;  ///< as sent, from its first slash: "/v1/digits"; percent_decode() each part after it was split
  std::string query;  ///< as sent, without the question mark
  Headers headers;
  /// Its capacity is kBodyPadding more than its size, which a JSON parser may read.
  std::string body;
  /// The client's X-Request-Id, or one made here. Sent back with the response.
  std::string id;
  Instant received{};  ///< when its last byte was read; of MonotonicClock, as every Instant here
  /// Answer by then: `received` plus the client's X-Request-Timeout-Ms, or plus the server's request_timeout.
  /// A second later the server itself answers 504.
  Instant deadline{};

  bool is(std::string_view this_method, std::string_view this_path) const {
    return method == this_method && path == this_path;
  }
};

inline constexpr std::size_t kBodyPadding = 64;

struct Response {
  int status = 200;
  std::string content_type = "application/json";  ///< not sent where the body is empty
  /// Others than Content-Type, Content-Length, Connection, Date and X-Request-Id, which the server writes. A
  /// line end or a control byte in one makes the response a 500.
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
};

/// {"error": "text"}, as JSON.
Response error_response(int status, std::string_view text);
/// "Not Found" of 404; "Unknown" of what has no name.
std::string_view reason_phrase(int status);
/// `text` as a string of JSON, with its quotes. What is not UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);
/// `text` with U+FFFD for what is not UTF-8.
std::string valid_utf8(std::string_view text);
/// "a%2Fb" to "a/b". Empty where a percent sign is followed by no two hexadecimal digits, or a NUL would come
/// out.
std::optional<std::string> percent_decode(std::string_view text);
/// Whether both are the same but for the case of ASCII letters.
bool same_ignoring_case(std::string_view a, std::string_view b);

}  // namespace troupe::http
