// A server in this process, asked through real sockets.
#include "runtime/http/server.hpp"

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/core/error.hpp"
#include "tests/actors/serve/http/raw_client.hpp"

using namespace troupe;
using namespace troupe::http;
using namespace std::chrono_literals;

namespace {

ServerOptions small() {
  return {.port = 0, .threads = 2, .max_header_bytes = 1024, .max_body_bytes = 1 << 20};
}

/// Says what it was asked.
void echo(Request request, Answer answer) {
  answer({.content_type = "text/plain", .body = request.method + " " + request.path + " " + request.body});
}

/// Answers that wait, for a thread that gives them.
struct Held {
  std::mutex mutex;
  std::condition_variable grown;
  std::vector<Answer> answers;

  Handler handler() {
    return [this](Request, Answer answer) {
      const std::lock_guard lock(mutex);
      answers.push_back(std::move(answer));
      grown.notify_all();
    };
  }
  bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    return grown.wait_for(lock, 20s, [&] { return answers.size() >= count; });
  }
};

}  // namespace

TEST_CASE("a connection is kept, and requests that come together are answered in order") {
  Server server(small(), [](Request request, Answer answer) {
    // From other threads, the later ones first, as far as the server lets them.
    std::thread([request = std::move(request), answer = std::move(answer)]() mutable {
      echo(std::move(request), std::move(answer));
    }).detach();
  });
  RawClient client(server.address().port);
  for (int i = 0; i < 3; ++i) {
    const RawResponse response = client.ask(post("/a", "body" + std::to_string(i)));
    CHECK(response.status == 200);
    CHECK(response.body == "POST /a body" + std::to_string(i));
    CHECK(response.headers.at("content-type") == "text/plain");
    CHECK(response.headers.count("connection") == 0);
    CHECK(response.headers.at("date").ends_with(" GMT"));
  }
  std::string all;
  for (int i = 0; i < 200; ++i)
    all += i % 2 ? get("/" + std::to_string(i)) : post("/" + std::to_string(i), "x");
  REQUIRE(client.send(all));
  for (int i = 0; i < 200; ++i) {
    const std::string path = "/" + std::to_string(i);
    CHECK(client.read().body == (i % 2 ? "GET " + path + " " : "POST " + path + " x"));
  }
  CHECK(client.ask(get("/", "Connection: close\r\n")).headers.at("connection") == "close");
  CHECK(client.closed());

  RawClient old(server.address().port);
  CHECK(old.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").headers.at("connection") == "keep-alive");
  CHECK(old.ask("GET / HTTP/1.0\r\n\r\n").status == 200);
  CHECK(old.closed());
  CHECK(server.counts().requests == 206);
}

TEST_CASE("HEAD has a length and no body, 204 neither") {
  Server server(small(), [](Request request, Answer answer) {
    if (request.path == "/none") return answer({.status = 204});
    echo(std::move(request), std::move(answer));
  });
  RawClient client(server.address().port);
  REQUIRE(client.send("HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n"));
  const RawResponse head = client.read(true);
  CHECK(head.status == 200);
  CHECK(head.headers.at("content-length") == "10");
  const RawResponse none = client.ask(get("/none"));
  CHECK(none.status == 204);
  CHECK(none.headers.count("content-length") == 0);
  CHECK(client.ask(get("/")).body == "GET / ");
}

TEST_CASE("a client is told to go on with its body") {
  Server server(small(), echo);
  RawClient client(server.address().port);
  CHECK(
      client.ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n").status ==
      100);
  CHECK(client.ask("abcd").body == "POST / abcd");
  // One that sends it at once needs no word; one whose body is too large is told before it sends it.
  CHECK(client.ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nabcd")
            .status == 200);
  CHECK(client.ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
            .status == 413);
  CHECK(client.closed());
}

TEST_CASE("what is refused is told, and the connection closed") {
  Server server(small(), echo);
  const int port = server.address().port;
  const auto refused = [&](const std::string& bytes) {
    RawClient client(port);
    (void)client.send(bytes);
    const RawResponse response = client.read();
    CHECK(response.headers.at("connection") == "close");
    CHECK(response.body.starts_with("{\"error\": \""));
    CHECK(client.closed());
    return response.status;
  };
  CHECK(refused("GET / HTTP/1.1\nHost: a\n\n") == 400);
  CHECK(refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: "
                "chunked\r\n\r\n0\r\n\r\nGET /smuggled") == 400);
  CHECK(refused(get("/", "X: " + std::string(100'000, 'a') + "\r\n")) == 431);
  CHECK(refused(post("/", std::string((1 << 20) + 1, 'a'))) == 413);
  // A good one before is answered, nothing after.
  RawClient client(port);
  REQUIRE(client.send(get("/good") + "nonsense\r\n\r\n" + get("/after")));
  CHECK(client.read().body == "GET /good ");
  CHECK(client.read().status == 400);
  CHECK(client.closed());
  CHECK(server.counts().refused == 5);
  CHECK(server.counts().requests == 1);
}

TEST_CASE("all together hold no more than they may") {
  ServerOptions options = small();
  options.max_total_bytes = 300'000;
  Held held;
  Server server(options, held.handler());
  RawClient first(server.address().port), second(server.address().port);
  REQUIRE(first.send(post("/", std::string(200'000, 'a'))));
  REQUIRE(held.wait_for(1));
  const RawResponse refused = second.ask(post("/", std::string(200'000, 'a')));
  CHECK(refused.status == 503);
  CHECK(refused.headers.at("retry-after") == "1");
  held.answers.at(0)({.body = "1"});
  CHECK(first.read().body == "1");
  REQUIRE(first.send(post("/", std::string(200'000, 'a'))));
  const bool came = held.wait_for(2);
  INFO("refused " << server.counts().refused << ", requests " << server.counts().requests);
  REQUIRE(came);
  held.answers.clear();
}

TEST_CASE("one connection too many is told so") {
  ServerOptions options = small();
  options.max_connections = 1;
  Server server(options, echo);
  RawClient first(server.address().port);
  CHECK(first.ask(get("/")).status == 200);
  RawClient second(server.address().port);
  CHECK(second.read().status == 503);
  CHECK(second.closed());
  CHECK(first.ask(get("/")).status == 200);
}

// Each thread listens for itself, and the kernel deals connections out by a hash: of a few that live for long
// one thread had most.
TEST_CASE("connections are shared out over the threads") {
  ServerOptions options = small();
  options.threads = 4;
  std::mutex mutex;
  std::map<std::thread::id, int> requests;
  Server server(options, [&](Request, Answer answer) {
    {
      const std::lock_guard lock(mutex);
      ++requests[std::this_thread::get_id()];
    }
    answer({});
  });
  constexpr int kClients = 300;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.address().port));
    REQUIRE(clients.back()->ask(get("/")).status == 200);
  }
  CHECK(requests.size() == 4);
  for (const auto& [thread, count] : requests) CHECK(std::abs(count - kClients / 4) <= 4);
}

TEST_CASE("slow and silent clients are let go") {
  ServerOptions options = small();
  options.read_timeout = options.write_timeout = options.idle_timeout = 200ms;
  Server server(options, echo);
  const int port = server.address().port;
  RawClient silent(port), half_head(port), half_body(port), chunk(port);
  REQUIRE(half_head.send("GET / HTTP/1.1\r\nHo"));
  REQUIRE(half_body.send(post("/", "ab").substr(0, post("/", "ab").size() - 1)));
  REQUIRE(chunk.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"));
  CHECK(half_head.read().status == 408);
  CHECK(half_body.read().status == 408);
  CHECK(chunk.read().status == 408);
  CHECK(silent.closed());
}

TEST_CASE("a client that never reads is cut off") {
  ServerOptions options = small();
  options.write_timeout = 1ms;
  Server server(options, [](Request, Answer answer) { answer({.body = std::string((1 << 20) - 1, 'x')}); });
  RawClient deaf(server.address().port, 4096);
  std::string many;  // 20 MiB of answers: more than the kernel takes for a client that does not read
  for (int i = 0; i < 20; ++i) many += get("/");
  REQUIRE(deaf.send(many));
  const auto end = std::chrono::steady_clock::now() + 20s;
  const auto cut_off = [&] { return server.counts().requests > 0 && server.counts().connections == 0; };
  while (!cut_off() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(cut_off());
  CHECK(server.counts().answered < 20);
}

TEST_CASE("a handler that drops, throws or answers nonsense gives 500") {
  Server server(small(), [](Request request, Answer answer) {
    if (request.path == "/throws") throw std::runtime_error("secret");
    if (request.path == "/splits") answer({.headers = {{"X-Evil", "a\r\nSet-Cookie: b"}}});
    if (request.path == "/name") answer({.headers = {{"X Evil", "a"}}});
    if (request.path == "/type") answer({.content_type = "a\nb", .body = "x"});
  });
  RawClient client(server.address().port);
  for (const char* path : {"/drops", "/throws", "/splits", "/name", "/type"}) {
    const RawResponse response = client.ask(get(path));
    CHECK(response.status == 500);
    CHECK(response.headers.count("set-cookie") == 0);
    CHECK(response.body.find("secret") == std::string::npos);
  }
}

TEST_CASE("a client that leaves is told of, once, and others do not notice") {
  Held held;
  Server server(small(), held.handler());
  RawClient stays(server.address().port), leaves(server.address().port);
  REQUIRE(leaves.send(get("/")));
  REQUIRE(held.wait_for(1));
  REQUIRE(stays.send(get("/")));
  REQUIRE(held.wait_for(2));
  std::promise<void> left;
  held.answers[0].on_client_left([&] { left.set_value(); });
  held.answers[1].on_client_left([] { FAIL("it stays"); });
  leaves.leave();
  REQUIRE(left.get_future().wait_for(20s) == std::future_status::ready);
  CHECK(held.answers[0].client_left());
  bool at_once = false;
  held.answers[0].on_client_left([&] { at_once = true; });
  CHECK(at_once);
  held.answers[0]({.body = "nobody reads this"});
  held.answers[1]({.body = "kept"});
  CHECK(stays.read().body == "kept");
  CHECK(server.counts().left == 1);
}

// Such a client counted as one that left: whoever worked for it was told to stop, and it got 500.
TEST_CASE("a client that only ends its sending half waits for its answer, and is waited for") {
  Held held;
  Server server(small(), held.handler());
  RawClient client(server.address().port), leaves(server.address().port);
  REQUIRE(client.send(get("/one")));
  client.finish_sending();
  REQUIRE(held.wait_for(1));
  // Until something is sent, its end looks like that of one who leaves.
  REQUIRE(leaves.send(get("/")));
  REQUIRE(held.wait_for(2));
  std::promise<void> left;
  held.answers[1].on_client_left([&] { left.set_value(); });
  leaves.leave();
  REQUIRE(left.get_future().wait_for(20s) == std::future_status::ready);
  CHECK_FALSE(held.answers[0].client_left());
  held.answers[0]({.body = "late"});
  RawResponse response = client.read();
  while (response.status == 100) response = client.read();
  CHECK(response.body == "late");
  CHECK(response.headers.at("connection") == "close");
  CHECK(client.closed());
  CHECK(server.counts().left == 1);

  // Was: closed without a word.
  RawClient short_of(server.address().port);
  REQUIRE(short_of.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12345678"));
  short_of.finish_sending();
  const RawResponse refused = short_of.read();
  CHECK(refused.status == 400);
  CHECK(refused.body.find("the connection's end came before the request's") != std::string::npos);
  CHECK(short_of.closed());

  RawClient several(server.address().port);
  REQUIRE(several.send(get("/two") + get("/three")));
  several.finish_sending();
  REQUIRE(held.wait_for(3));
  held.answers[2]({.body = "two"});
  REQUIRE(held.wait_for(4));
  held.answers[3]({.body = "three"});
  CHECK(several.read().body == "two");
  CHECK(several.read().body == "three");
}

// The response to it had long been sent: 800 MB were read and thrown away in the two seconds before the
// close.
TEST_CASE("a client that goes on sending what was refused is not read on and on") {
  Server server(small(), echo);
  RawClient client(server.address().port);
  REQUIRE(client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'a') + "\r\n";
  std::size_t sent = 0;
  while (sent < (std::size_t{128} << 20) && client.send(chunk)) sent += chunk.size();
  CHECK(sent < (std::size_t{32} << 20));  // most of it in the kernel
  CHECK(client.read().status == 413);
}

TEST_CASE("a head without end is refused at its limit, and not read on") {
  Server server(small(), echo);
  RawClient client(server.address().port);
  REQUIRE(client.send("GET / HTTP/1.1\r\nHost: a\r\nX: "));
  const std::string more(1 << 16, 'a');
  std::size_t sent = 0;
  while (sent < (std::size_t{1} << 30) && client.send(more)) sent += more.size();
  CHECK(sent < (std::size_t{32} << 20));  // most of it in the kernel
  CHECK(client.read().status == 431);
  CHECK(RawClient(server.address().port).ask(get("/")).status == 200);
}

// What is left of clients that are gone without a word, as after a power cut.
TEST_CASE("half-open connections are let go, and others get their place") {
  ServerOptions options = small();
  options.max_connections = 6;
  options.read_timeout = options.idle_timeout = 300ms;
  Server server(options, echo);
  std::vector<std::unique_ptr<RawClient>> gone;
  for (const std::string said : {"", "G", "GET / HTTP/1.1\r\nHo",
                                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1", "", "GET"}) {
    gone.push_back(std::make_unique<RawClient>(server.address().port));
    REQUIRE(gone.back()->send(said));
  }
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (server.counts().accepted < gone.size() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  int status = 0;
  while ((status = RawClient(server.address().port).ask(get("/")).status) != 200 &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  CHECK(status == 200);
}

TEST_CASE("TLS files that cannot be read, or are none, are told by name") {
  for (const std::string file : {"/no/such/file", "/", "/dev/null"}) {
    ServerOptions options = small();
    options.tls_certificate = options.tls_key = file;
    try {
      Server server(options, echo);
      FAIL("it serves with '" << file << "'");
    } catch (const BadConfig& error) {
      CHECK(error.info().why.find("'" + file + "' is no certificate") != std::string::npos);
      CHECK(error.info().todo.find("PEM") != std::string::npos);
    }
  }
}

// Was: 400, "is not one positive number", of 2^63 - 1 and of all numbers above 2^32 - 1.
TEST_CASE("a client that would wait longer than the server lets it has the server's most") {
  auto options = small();
  options.max_request_timeout = 5000ms;
  Server server(options, [](Request request, Answer answer) {
    answer({.body = std::to_string((request.deadline - request.received) / 1ms)});
  });
  RawClient client(server.address().port);
  for (const char* most : {"5000", "5001", "4294967296", "9223372036854775807", "99999999999999999999999"})
    CHECK(client.ask(get("/", "X-Request-Timeout-Ms: " + std::string(most) + "\r\n")).body == "5000");
  CHECK(client.ask(get("/", "X-Request-Timeout-Ms: 4999\r\n")).body == "4999");
}

TEST_CASE("ids and deadlines travel") {
  std::promise<Request> seen;
  std::atomic<int> count{0};
  Held held;
  Server server(small(), [&](Request request, Answer answer) {
    if (count++ == 0) {
      seen.set_value(std::move(request));
      return answer({});
    }
    held.handler()(std::move(request), std::move(answer));
  });
  RawClient client(server.address().port);
  const RawResponse first = client.ask(get("/", "X-Request-Id: mine\r\nX-Request-Timeout-Ms: 250\r\n"));
  CHECK(first.headers.at("x-request-id") == "mine");
  const Request request = seen.get_future().get();
  CHECK(request.id == "mine");
  CHECK(request.deadline - request.received == 250ms);
  for (const char* none : {"soon", "-1", "0", "9223372036854775807x"})
    CHECK(client.ask(get("/", "X-Request-Timeout-Ms: " + std::string(none) + "\r\n")).status == 400);
  CHECK(client.ask(get("/", "X-Request-Timeout-Ms: 5\r\nX-Request-Timeout-Ms: 9\r\n")).status == 400);
  // Nobody answers: the server does, and tells who works at it. Its late answer goes nowhere.
  const RawResponse late = client.ask(get("/", "X-Request-Timeout-Ms: 1\r\n"));
  CHECK(late.status == 504);
  CHECK(late.headers.at("x-request-id").size() == 16);
  REQUIRE(held.wait_for(1));
  CHECK(held.answers[0].client_left());
  REQUIRE(client.send(get("/")));
  REQUIRE(held.wait_for(2));
  held.answers[0]({.body = "late"});
  held.answers[1]({.body = "mine"});
  CHECK(client.read().body == "mine");
}

// Was: the dropped answer's 500 went out, too, inside the word that its time is up, and the client took the
// 504 for the answer to its next request.
TEST_CASE("a request that is dropped when its time is up has one response") {
  Held held;
  std::atomic<int> count{0};
  Server server(small(), [&](Request request, Answer answer) {
    if (count++ > 0) return echo(std::move(request), std::move(answer));
    answer.on_client_left([&] {
      const std::lock_guard lock(held.mutex);
      held.answers.clear();
    });
    held.handler()(std::move(request), std::move(answer));
  });
  RawClient client(server.address().port);
  CHECK(client.ask(get("/late", "X-Request-Timeout-Ms: 1\r\n")).status == 504);
  const RawResponse next = client.ask(get("/next"));
  CHECK(next.status == 200);
  CHECK(next.body == "GET /next ");
}

TEST_CASE("an answer outlives its server") {
  Held held;
  {
    Server server(small(), held.handler());
    RawClient client(server.address().port);
    REQUIRE(client.send(get("/")));
    REQUIRE(held.wait_for(1));
  }
  CHECK(held.answers[0].client_left());
  held.answers[0]({.body = "late"});
}

// Both had bound the port before either listened, and the kernel dealt the connections out among them.
TEST_CASE("of two servers that come to a port at once one has it") {
  for (int round = 0; round < 20; ++round) {
    const ServerOptions options{.port = Server(small(), echo).address().port, .threads = 200};
    std::barrier both(2);
    std::atomic<int> listen = 0;
    const auto comes = [&] {
      std::unique_ptr<Server> server;
      both.arrive_and_wait();
      try {
        server = std::make_unique<Server>(options, echo);
        ++listen;
      } catch (const Unavailable&) {
      }
      both.arrive_and_wait();
    };
    std::thread other(comes);
    comes();
    other.join();
    REQUIRE(listen == 1);
  }
}

TEST_CASE("a port in use is said in three parts") {
  Server first(small(), echo);
  ServerOptions options = small();
  options.port = first.address().port;
  try {
    Server second(options, echo);
    FAIL("two servers listen on one port");
  } catch (const Unavailable& error) {
    CHECK(error.info().what == "cannot listen on 127.0.0.1:" + std::to_string(options.port));
    CHECK(error.info().why == "Address already in use");
    CHECK(error.info().todo.find("another port") != std::string::npos);
  }
  options.host = "192.0.2.1";
  CHECK_THROWS_AS(Server(options, echo), Unavailable);
  options.host = "nowhere";
  CHECK_THROWS_AS(Server(options, echo), BadConfig);
  options.host = "127.0.0.1";
  options.idle_timeout = 0ms;
  CHECK_THROWS_AS(Server(options, echo), BadConfig);
  CHECK_THROWS_AS(Server(small(), nullptr), BadConfig);
}
