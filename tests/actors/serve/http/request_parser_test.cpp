// What is a request and what is not, without sockets. Every case is fed whole and byte by byte, with the same
// outcome.
#include "runtime/http/request_parser.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace troupe::http;
using State = RequestParser::State;

namespace {

/// Feeds it `step` bytes more at a time, as a connection does.
std::size_t feed(RequestParser& parser, std::string_view bytes, std::size_t step) {
  std::size_t used = 0;
  for (std::size_t end = std::min(step, bytes.size());; end = std::min(end + step, bytes.size())) {
    used += parser.feed(bytes.substr(used, end - used));
    if (end == bytes.size() || parser.state() == State::kRefused || parser.state() == State::kDone)
      return used;
  }
}

/// The status with which it is refused; 200: it is a request; 0: more must come.
int outcome(const std::string& bytes, RequestParser::Limits limits = {}) {
  std::vector<int> outcomes;
  for (const std::size_t step : {bytes.size(), std::size_t{1}, std::size_t{7}}) {
    RequestParser parser(limits);
    feed(parser, bytes, step);
    outcomes.push_back(parser.state() == State::kRefused ? parser.refused_status()
                       : parser.state() == State::kDone  ? 200
                                                         : 0);
  }
  INFO(bytes);
  CHECK(outcomes[0] == outcomes[1]);
  CHECK(outcomes[0] == outcomes[2]);
  return outcomes[0];
}

const std::string kHost = "Host: a\r\n";
std::string with(const std::string& fields, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\n" + kHost + fields + "\r\n" + body;
}
std::string chunks(const std::string& body) {
  return with("Transfer-Encoding: chunked\r\n", body);
}

}  // namespace

TEST_CASE("malformed requests are refused, however they are cut") {
  struct Case {
    const char* what;
    std::string bytes;
    int status;
  };
  const std::string nul(1, '\0');
  const Case cases[] = {
      // Two ends of a body: what request smuggling is made of.
      {"Content-Length and Transfer-Encoding",
       with("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {"Transfer-Encoding and Content-Length",
       with("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n"), 400},
      {"gzip, then Content-Length", with("Transfer-Encoding: gzip\r\nContent-Length: 4\r\n", "abcd"), 501},
      {"two lengths", with("Content-Length: 4\r\nContent-Length: 5\r\n", "abcde"), 400},
      {"the same length twice", with("Content-Length: 4\r\nContent-Length: 4\r\n", "abcd"), 400},
      {"a list of lengths", with("Content-Length: 4, 4\r\n", "abcd"), 400},
      {"a signed length", with("Content-Length: +4\r\n", "abcd"), 400},
      {"a negative length", with("Content-Length: -4\r\n", "abcd"), 400},
      {"a hexadecimal length", with("Content-Length: 0x4\r\n", "abcd"), 400},
      {"a length with a point", with("Content-Length: 4.0\r\n", "abcd"), 400},
      {"no length", with("Content-Length:\r\n", "abcd"), 400},
      {"a length above 64 bits", with("Content-Length: 99999999999999999999\r\n"), 400},
      {"chunked twice", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
       400},
      {"chunked, chunked", with("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {"gzip, chunked", with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"chunked, gzip", with("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 501},
      {"identity", with("Transfer-Encoding: identity\r\n"), 501},
      {"xchunked", with("Transfer-Encoding: xchunked\r\n"), 501},
      {"quoted chunked", with("Transfer-Encoding: \"chunked\"\r\n"), 501},
      {"a vertical tab before chunked", with("Transfer-Encoding: \vchunked\r\n"), 400},
      {"chunked in HTTP/1.0", "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      // Lines.
      {"a line feed alone", "GET / HTTP/1.1\nHost: a\n\n", 400},
      {"a line feed alone between fields", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400},
      {"a line feed alone at the end", "GET / HTTP/1.1\r\nHost: a\r\n\n", 400},
      {"a carriage return alone", "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400},
      {"two carriage returns", "GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", 400},
      {"a folded field", with("X: a\r\n b\r\n"), 400},
      {"a folded framing field", with("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), 400},
      {"a first field that is folded", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"a NUL in a field", with("X: a" + nul + "b\r\n"), 400},
      {"a NUL in the target", "GET /a" + nul + " HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a DEL in a field", with("X: \x7f\r\n"), 400},
      {"an escape in a field", with("X: \x1b[0m\r\n"), 400},
      {"two empty lines before", "\r\n\r\nGET / HTTP/1.1\r\n" + kHost + "\r\n", 400},
      // Fields.
      {"a space before the colon", with("Content-Length : 4\r\n", "abcd"), 400},
      {"a tab before the colon", with("Transfer-Encoding\t: chunked\r\n"), 400},
      {"no colon", with("Content-Length 4\r\n"), 400},
      {"no name", with(": 4\r\n"), 400},
      {"a name in brackets", with("(Content-Length): 4\r\n"), 400},
      {"a name that is not ASCII", with("X\xc3\xa9: 4\r\n"), 400},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"the same Host twice", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"a Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"a Host with a user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
      {"a Connection that is no list", with("Connection: ,,;\"\r\n"), 400},
      {"an expectation that is unknown", with("Expect: tea\r\n"), 417},
      {"a compressed body", with("Content-Encoding: gzip\r\nContent-Length: 1\r\n", "x"), 415},
      // The first line.
      {"no version", "GET /\r\n" + kHost + "\r\n", 400},
      {"HTTP/0.9", "GET / HTTP/0.9\r\n" + kHost + "\r\n", 505},
      {"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/1.10", "GET / HTTP/1.10\r\n" + kHost + "\r\n", 505},
      {"http/1.1", "GET / http/1.1\r\n" + kHost + "\r\n", 505},
      {"two spaces", "GET  / HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a tab", "GET\t/ HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a space after", "GET / HTTP/1.1 \r\n" + kHost + "\r\n", 505},
      {"a space before", " GET / HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"no method", "/ HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a method in brackets", "G(T / HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a target without a slash", "GET x HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a target with a fragment", "GET /#x HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"a target that is not ASCII", "GET /\xc3\xa9 HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400},
      {"a star", "GET * HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"TLS", std::string("\x16\x03\x01\x02\x00", 5), 400},
      {"SSH", "SSH-2.0-OpenSSH_9.2\r\n\r\n", 400},
      // Chunks.
      {"an extension", chunks("4;a=b\r\nabcd\r\n0\r\n\r\n"), 400},
      {"an extension of the last chunk", chunks("0;a\r\n\r\n"), 400},
      {"a quoted line end in an extension", chunks("4;a=\"\r\n\"\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a field after the body", chunks("4\r\nabcd\r\n0\r\nX: y\r\n\r\n"), 400},
      {"a framing field after the body", chunks("0\r\nContent-Length: 9\r\n\r\n"), 400},
      {"a size with 0x", chunks("0x4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size with a sign", chunks("+4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a negative size", chunks("-4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size and a space", chunks("4 \r\nabcd\r\n0\r\n\r\n"), 400},
      {"a space and a size", chunks(" 4\r\nabcd\r\n0\r\n\r\n"), 400},
      {"no size", chunks("\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size in letters", chunks("xyz\r\n"), 400},
      {"a size above 64 bits", chunks("10000000000000004\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size of 17 digits", chunks("00000000000000004\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size of many digits", chunks("00000000000000000000000004\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a size before a line feed alone", chunks("4\nabcd\r\n0\r\n\r\n"), 400},
      {"a chunk longer than its size", chunks("4\r\nabcde\r\n0\r\n\r\n"), 400},
      {"a chunk shorter than its size", chunks("5\r\nabcd\r\n0\r\n\r\n"), 400},
      {"a chunk before a line feed alone", chunks("4\r\nabcd\n0\r\n\r\n"), 400},
      {"an end without a carriage return", chunks("0\r\n\n"), 400},
  };
  for (const Case& one : cases) {
    INFO(one.what);
    CHECK(outcome(one.bytes) == one.status);
  }
}

TEST_CASE("limits hold before a byte above them is kept") {
  const RequestParser::Limits limits{.header_bytes = 256, .body_bytes = 10};
  const auto with_target = [](std::size_t bytes) {
    return "GET /" + std::string(bytes, 'a') + " HTTP/1.1\r\n" + kHost + "\r\n";
  };
  CHECK(outcome(with_target(256 - 27), limits) == 200);
  CHECK(outcome(with_target(256 - 26), limits) == 431);
  CHECK(outcome("GET /" + std::string(300, 'a'), limits) == 414);
  CHECK(outcome(with("X: " + std::string(300, 'a')), limits) == 431);
  CHECK(outcome(with("Content-Length: 10\r\n", "0123456789"), limits) == 200);
  CHECK(outcome(with("Content-Length: 11\r\n"), limits) == 413);
  CHECK(outcome(with("Content-Length: 18446744073709551615\r\n"), limits) == 413);
  CHECK(outcome(chunks("5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"), limits) == 200);
  CHECK(outcome(chunks("5\r\n01234\r\n6\r\n"), limits) == 413);
  CHECK(outcome(chunks("FFFFFFFFFFFFFFFF\r\n"), limits) == 413);
  CHECK(outcome(chunks("0000000000000005\r\n01234\r\n0\r\n\r\n"), limits) == 200);
  // A length that is only said takes no memory.
  RequestParser parser({});
  parser.feed(with("Content-Length: 60000000\r\n", "0"));
  CHECK(parser.expected_bytes() == 60'000'000);
  CHECK(parser.held_bytes() < 200);
}

TEST_CASE("a request's parts") {
  RequestParser parser({});
  const std::string bytes =
      "\r\nPOST /v1/a%2Fb?x=1&y HTTP/1.1\r\nhost: [::1]:80\r\nX-Thing:  two words \r\nTRANSFER-ENCODING: "
      "Chunked\r\n"
      "Expect: 100-continue\r\n\r\n";
  CHECK(parser.feed(bytes) == bytes.size());
  REQUIRE(parser.state() == State::kBody);
  CHECK(parser.expects_continue());
  const std::string body = "00a\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n";
  CHECK(parser.feed(body + "GET") == body.size());
  REQUIRE(parser.state() == State::kDone);
  const Request request = parser.take();
  CHECK(request.is("POST", "/v1/a%2Fb"));
  CHECK(percent_decode(request.path) == "/v1/a/b");
  CHECK(request.query == "x=1&y");
  CHECK(request.headers.find("HOST") == "[::1]:80");
  CHECK(request.headers.find("x-thing") == "two words");
  CHECK(request.headers.count("nothing") == 0);
  CHECK(request.body == "0123456789x");
  CHECK(request.body.capacity() >= request.body.size() + kBodyPadding);
  CHECK(parser.keep_alive());

  // The next one starts anew.
  parser.feed("GET http://elsewhere?q HTTP/1.0\r\n\r\n");
  REQUIRE(parser.state() == State::kDone);
  const Request next = parser.take();
  CHECK(next.method == "GET");
  CHECK(next.path == "/");
  CHECK(next.headers.size() == 0);
  CHECK(next.body.empty());
  CHECK(!parser.keep_alive());
}

TEST_CASE("text for others: percent signs and JSON") {
  CHECK(!percent_decode("a%2"));
  CHECK(!percent_decode("a%zz"));
  CHECK(!percent_decode("a%00"));
  CHECK(json_string("a\"\\\n\x01\xc3\xa9\xff\xed\xa0\x80") ==
        "\"a\\\"\\\\\\u000a\\u0001\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}
