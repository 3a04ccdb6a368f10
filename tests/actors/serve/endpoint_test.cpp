// What an HTTP endpoint answers before it knows its deployments, without a server.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/http_endpoint.hpp"
#include "runtime/http/exchange.hpp"

namespace troupe::serve {
namespace {

/// A deployment that nobody asks for a batch.
class NamedFront final : public Front {
 public:
  explicit NamedFront(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const ReplicaSetup& setup() const override { return setup_; }
  std::size_t max_request_rows() const override { return 1; }
  bool is_ready() const override { return true; }
  VersionId version() const override { return 1; }
  std::optional<ReplicaInfo> output() const override { return {}; }
  void measure() override {}
  RequestId next_request() override { return 1; }
  void submit(RequestId, data::Tensor, Instant, ReplyTo) override {}
  void leave(RequestId) override {}

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

}  // namespace
}  // namespace troupe::serve
