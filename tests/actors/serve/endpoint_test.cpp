// What an HTTP endpoint answers before it knows its deployments, without a server.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/control.hpp"
#include "actors/serve/http_endpoint.hpp"
#include "runtime/http/exchange.hpp"
#include "tests/actors/serve/http/raw_client.hpp"

namespace troupe::serve {
namespace {

/// A deployment that nobody asks for a batch.
class NamedFront final : public Front {
 public:
  explicit NamedFront(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const ReplicaSetup& setup() const override { return setup_; }
  std::size_t max_request_rows() const override { return 1; }
  bool is_ready() const override { return ready; }
  VersionId version() const override { return 1; }
  std::optional<ReplicaInfo> output() const override { return {}; }
  void measure() override {}
  RequestId next_request() override { return 1; }
  void submit(RequestId, data::Tensor, Instant, ReplyTo) override {}
  void leave(RequestId) override {}

  bool ready = true;

 private:
  const std::string name_;
  const ReplicaSetup setup_;
};

using Statuses = std::vector<std::pair<std::string, int>>;

/// GET: a deployment that is known says 405 of it.
void get(HttpEndpoint& of, const std::string& path, Statuses& answers) {
  http::Request request;
  request.method = "GET";
  request.path = path;
  of.handler()(std::move(request), http::Answer([&answers, path](const http::Response& response) {
                 answers.emplace_back(path, response.status);
               }));
}

/// That waits for another one's sockets, so that it opens none.
const Predecessor kOther{.pid = 1, .port = 1, .names = {}};

// A proxy that was started again said 503, "nothing is served here", until it had its first routes.
TEST_CASE("who asks a proxy that does not know its routes yet is answered when it does") {
  Statuses answers;
  HttpEndpoint endpoint({}, kOther, {"a", "b"});
  get(endpoint, "/v1/a", answers);
  get(endpoint, "/v2/models/b/infer", answers);
  CHECK(answers.empty());
  get(endpoint, "/healthz", answers);
  get(endpoint, "/v2/health/live", answers);
  CHECK(answers == Statuses{{"/healthz", 503}, {"/v2/health/live", 200}});
  answers.clear();
  endpoint.add(std::make_shared<NamedFront>("a"));
  CHECK(answers.empty());
  endpoint.add(std::make_shared<NamedFront>("b"));
  CHECK(answers == Statuses{{"/v1/a", 405}, {"/v2/models/b/infer", 405}});
  get(endpoint, "/v1/c", answers);
  CHECK(answers.back() == std::pair<std::string, int>("/v1/c", 404));
}

TEST_CASE("nobody waits for routes without end") {
  Statuses answers;
  HttpEndpoint endpoint({}, kOther, {"a"});
  get(endpoint, "/v1/a", answers);
  CHECK(answers.empty());
  endpoint.know_all();
  get(endpoint, "/v1/a", answers);
  CHECK(answers == Statuses{{"/v1/a", 503}, {"/v1/a", 503}});
}

// Was: kept to the end of the wait, while the server let others send as much again.
TEST_CASE("a request that waits for routes goes with its client") {
  HttpEndpoint endpoint({}, kOther, {"a"});
  int taken = 0;
  const auto exchange = std::make_shared<http::Exchange>([&taken](const http::Response&) { ++taken; });
  http::Request request;
  request.method = "GET";
  request.path = "/v1/a";
  endpoint.handler()(std::move(request), http::Answer(exchange));
  CHECK(taken == 0);
  exchange->leave();
  CHECK(taken == 1);  // it was dropped, which answers
}

// Was: of all 4xx /metrics had 429 alone.
TEST_CASE("/metrics counts what no deployment is asked, and what the server itself refuses") {
  HttpEndpoint endpoint({.port = 0});
  endpoint.add(std::make_shared<NamedFront>("a"));
  const auto ask = [&](const std::string& head, const std::string& body = "") {
    http::RawClient client(endpoint.address().port);
    return client
        .ask(head + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
             body)
        .status;
  };
  CHECK(ask("GET /v1/a") == 405);
  CHECK(ask("POST /v2/models/a") == 405);
  CHECK(ask("POST /v1/a", "[") == 400);
  CHECK(ask("POST /v2/models/a/infer", "[") == 400);
  CHECK(ask("GET /v2/models/a/versions/7") == 404);
  CHECK(ask("GET /v2/models/a") == 503);
  CHECK(ask("POST /v1/b") == 404);
  CHECK(ask("GET /v2/models/b") == 404);
  CHECK(ask("GET /\n") == 400);
  CHECK(ask("POST /healthz") == 405);  // no request of a deployment
  const auto lines = [&] {
    std::string all, line;
    for (std::istringstream text(endpoint.measured().body); std::getline(text, line);)
      if (line.starts_with("troupe_serve_requests_total")) all += line.substr(27) + "\n";
    return all;
  };
  CHECK(lines() ==
        "{code=\"400\"} 1\n{code=\"400\",deployment=\"a\"} 2\n{code=\"404\"} "
        "2\n{code=\"404\",deployment=\"a\"} 1\n"
        "{code=\"405\",deployment=\"a\"} 2\n{code=\"503\",deployment=\"a\"} 1\n");
  endpoint.remove("a");
  CHECK(lines() == "{code=\"400\"} 1\n{code=\"404\"} 2\n");
}

/// A program that serves, and hands nothing over.
struct Keeps final : Controlled {
  DeploymentStatus status() override { return {.name = "a", .url = "", .port = 7000, .pids = {}}; }
  void scale(Replicas) override {}
  VersionId update_from(const std::string&) override { return 0; }
  VersionId roll_back() override { return 0; }
  void stop_serving() override {}
  std::vector<UniqueFd> listening() override {
    throw BadConfig("it hands nothing over", "it keeps them", "");
  }
  void leave() override {}
  std::string metrics() override { return ""; }
};

// Was: with its endpoint none of those behind it in the list took a place any more, and nobody was told why.
TEST_CASE("an endpoint takes a place by what is ready here, and says why it does not get it") {
  const auto control = Control::of_this_program();
  REQUIRE(control);
  Keeps keeps;
  control->add(keeps);
  HttpEndpoint endpoint({}, Predecessor{.pid = ::getpid(), .port = 7000, .names = {"a", "b"}}, {"a"});
  const auto asks = [&](Takes when) {
    try {
      endpoint.take_over(when);
    } catch (const Refused&) {
      return true;
    }
    return false;
  };
  CHECK(endpoint.refused() == "");
  const auto first = std::make_shared<NamedFront>("a");
  endpoint.add(first);
  CHECK_FALSE(asks(Takes::kAllReady));  // b may come yet
  first->ready = false;
  CHECK_FALSE(asks(Takes::kServedReady));
  CHECK(endpoint.refused() == "");
  CHECK(asks(Takes::kNow));
  first->ready = true;
  CHECK(asks(Takes::kServedReady));
  endpoint.add(std::make_shared<NamedFront>("b"));
  CHECK(asks(Takes::kAllReady));
  CHECK_THAT(endpoint.refused(),
             Catch::Contains("does not hand over its address") && Catch::Contains("it keeps them"));
  CHECK_NOTHROW(endpoint.refuse_foreign_place());
  control->remove(keeps);

  HttpEndpoint foreign({}, Predecessor{.pid = 1, .port = 7000, .names = {"c"}, .is_certain = false}, {"a"});
  CHECK_THROWS_WITH(foreign.refuse_foreign_place(), Catch::Contains("process 1 serves 'c' there"));
  foreign.add(std::make_shared<NamedFront>("c"));
  CHECK_NOTHROW(foreign.refuse_foreign_place());
}

}  // namespace
}  // namespace troupe::serve
