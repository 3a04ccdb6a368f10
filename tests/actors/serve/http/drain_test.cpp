// A server that ends under load, and one whose handler never answers.
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <vector>

#include "runtime/core/error.hpp"
#include "runtime/http/server.hpp"
#include "tests/actors/serve/http/raw_client.hpp"

using namespace troupe::http;
using namespace std::chrono_literals;

TEST_CASE("a drain loses no request that was sent") {
  Server server({.port = 0, .threads = 2}, [](Request request, Answer answer) {
    std::thread([body = std::move(request.body), answer = std::move(answer)]() mutable {
      answer({.body = std::move(body)});
    }).detach();
  });
  constexpr int kClients = 8;
  std::atomic<int> answered{0}, lost{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, port = server.address().port] {
      RawClient client(port);
      for (;;) {
        const RawResponse response = client.ask(post("/", "abc"));
        response.status == 200 && response.body == "abc" ? ++answered : ++lost;
        // The server says with which answer it closes: what is sent after that, no server could take.
        if (response.status != 200 || response.headers.count("connection") > 0) return;
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (answered < 200 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(server.drain(20s));
  for (auto& client : clients) client.join();
  CHECK(answered >= 200);
  CHECK(lost == 0);
  CHECK(server.counts().connections == 0);
  CHECK(server.counts().answered == server.counts().requests);
}

TEST_CASE("a drain finishes what is half read, and closes what is idle") {
  Server server({.port = 0, .threads = 1},
                [](Request request, Answer answer) { answer({.body = request.body}); });
  RawClient half(server.address().port), idle(server.address().port);
  REQUIRE(idle.ask(get("/")).status == 200);
  REQUIRE(
      half.ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").status ==
      100);
  bool lost_none = false;
  std::thread drained([&] { lost_none = server.drain(20s); });
  CHECK(idle.closed());  // by the drain
  const RawResponse response = half.ask("ab");
  CHECK(response.body == "ab");
  CHECK(response.headers.at("connection") == "close");
  half.leave();
  drained.join();
  CHECK(lost_none);
}

TEST_CASE("a drain that reaches its timeout says so and cuts off") {
  std::promise<Answer> held;
  Server server({.port = 0, .threads = 1},
                [&](Request, Answer answer) { held.set_value(std::move(answer)); });
  RawClient client(server.address().port);
  REQUIRE(client.send(get("/")));
  const Answer answer = held.get_future().get();
  CHECK(!server.drain(10ms));
  CHECK(answer.client_left());
  CHECK(client.read().status == 0);
}

// It waited without end for that thread to stop accepting.
TEST_CASE("a drain ends where a thread of the server hangs in the handler") {
  std::promise<void> began, goes_on;
  Server server({.port = 0, .threads = 1}, [&](Request, Answer answer) {
    began.set_value();
    goes_on.get_future().wait();
    answer({.body = "late"});
  });
  RawClient client(server.address().port);
  REQUIRE(client.send(get("/")));
  began.get_future().wait();
  CHECK(!server.drain(10ms));
  goes_on.set_value();
}

// As a program that takes the place of another one does.
TEST_CASE("a server takes over the sockets of another one: what waits there is answered, by either") {
  const auto answers = [](const char* text) {
    return [text](const Request&, Answer answer) { answer({.body = text}); };
  };
  Server former({.port = 0, .threads = 3}, answers("former"));
  const int port = former.address().port;
  RawClient open(port);
  REQUIRE(open.ask(get("/")).body == "former");
  Server next({.threads = 2}, answers("next"), former.listening());
  CHECK(next.address().port == port);
  former.leave();
  for (int i = 0; i < 20; ++i) CHECK(RawClient(port).ask(get("/")).body == "next");
  if (!open.closed_by_now()) {  // within the half second that an idle one has
    const RawResponse last = open.ask(get("/"));
    CHECK((last.status == 0 || last.headers.at("connection") == "close"));
  }
  CHECK(former.drain(20s));
  CHECK_THROWS_AS(former.listening(), troupe::Error);
  CHECK(RawClient(port).ask(get("/")).body == "next");
}
