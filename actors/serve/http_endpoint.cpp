#include "actors/serve/http_endpoint.hpp"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "actors/serve/http/raw_tensor.hpp"
#include "actors/serve/proxy_fleet.hpp"
#include "actors/serve/request_book.hpp"
#include "runtime/core/log.hpp"

namespace troupe::serve {
namespace {

constexpr std::string_view kPrefix = "/v1/";
/// For the responses that are written when the last deployment goes.
constexpr std::chrono::milliseconds kFlush{5000};

/// Those of this program, by where they were asked to listen.
struct Endpoints {
  std::mutex mutex;
  std::map<std::pair<std::string, std::uint16_t>, std::weak_ptr<HttpEndpoint>> all;
};
Endpoints& endpoints() {
  static Endpoints endpoints;
  return endpoints;
}

http::Response not_allowed(std::string_view allowed) {
  auto response = http::error_response(405, "use " + std::string(allowed));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

http::Response failure_response(const Fail& failed) {
  auto response = http::error_response(http_status(failed.failure), failed.why);
  if (failed.retry_after > Duration{0}) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(failed.retry_after).count();
    response.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  return response;
}

/// `respond` writes the outputs; the version that computed them is added.
void submit(const std::shared_ptr<Front>& to, data::Tensor inputs, Instant deadline, http::Answer answer,
            const std::function<http::Response(const Reply&)>& respond) {
  const RequestId id = to->next_request();
  const auto shared = std::make_shared<http::Answer>(std::move(answer));
  shared->on_client_left([weak = std::weak_ptr(to), id] {
    if (const auto deployment = weak.lock()) deployment->leave(id);
  });
  if (shared->client_left()) return;
  to->submit(id, std::move(inputs), deadline, [shared, respond](const Reply& reply) {
    if (reply.failed) return (*shared)(failure_response(*reply.failed));
    auto response = respond(reply);
    response.headers.emplace_back("Weights-Version", std::to_string(reply.version));
    (*shared)(std::move(response));
  });
}

std::string name_of(const std::shared_ptr<Front>& deployment) {
  return deployment == nullptr ? "" : deployment->name();
}

http::Response no_version(const std::string& model, const std::string& asked, VersionId answers) {
  return http::error_response(404, "there is no version " + asked + " of " + model + ": version " +
                                       std::to_string(answers) + " answers");
}

}  // namespace

std::shared_ptr<HttpEndpoint> HttpEndpoint::at(const http::ServerOptions& options, const std::string& first) {
  return find_or_make(options, {}, first);
}
std::shared_ptr<HttpEndpoint> HttpEndpoint::in_place_of(const Predecessor& other, http::ServerOptions options,
                                                        const std::string& first) {
  options.port = static_cast<std::uint16_t>(other.port);
  return find_or_make(options, other, first);
}

std::shared_ptr<HttpEndpoint> HttpEndpoint::find_or_make(const http::ServerOptions& options,
                                                         const std::optional<Predecessor>& other,
                                                         const std::string& first) {
  const std::lock_guard lock(endpoints().mutex);
  std::erase_if(endpoints().all, [](const auto& one) { return one.second.expired(); });
  if (const auto found = endpoints().all.find({options.host, options.port}); found != endpoints().all.end()) {
    if (auto endpoint = found->second.lock(); endpoint && !endpoint->is_closed()) {
      if (endpoint->options_.tls_certificate == options.tls_certificate) return endpoint;
      throw BadConfig("cannot serve on " + endpoint->url(),
                      "another deployment of this program serves there with another certificate, or none",
                      "give both the same TLS files, or another port");
    }
  }
  auto made = std::make_shared<HttpEndpoint>(options, other, std::set<std::string>{first});
  endpoints().all[{options.host, made->address().port}] = made;
  return made;
}

HttpEndpoint::HttpEndpoint(const http::ServerOptions& options, std::optional<Predecessor> other,
                           std::set<std::string> unknown)
    : options_(options), other_(std::move(other)), unknown_(std::move(unknown)) {
  if (!other_) server_ = std::make_unique<http::Server>(server_options(), handler());
}

HttpEndpoint::~HttpEndpoint() = default;

http::Handler HttpEndpoint::handler() {
  return
      [this](http::Request request, http::Answer answer) { handle(std::move(request), std::move(answer)); };
}

http::ServerOptions HttpEndpoint::server_options() {
  http::ServerOptions options = options_;
  options.on_refused = [this](int status) { count_refused(status, {}); };
  return options;
}

void HttpEndpoint::count_refused(int status, const std::string& deployment) {
  const std::lock_guard lock(mutex_);
  auto& counter = refusals_[{deployment, status}];
  if (counter == nullptr) counter = requests_counter(metrics_, deployment, status);
  counter->add();
}

/// Answers what no deployment is asked. `deployment`: that it was for; empty: none that is here.
void HttpEndpoint::refuse(http::Answer& answer, http::Response response, const std::string& deployment) {
  count_refused(response.status, deployment);
  answer(std::move(response));
}

Endpoint HttpEndpoint::address() const {
  const std::lock_guard lock(mutex_);
  return server_ ? server_->address() : Endpoint{options_.host, options_.port};
}

std::string HttpEndpoint::url() const {
  return (options_.tls_certificate.empty() ? "http://" : "https://") + to_string(address());
}

bool HttpEndpoint::listens() const {
  const std::lock_guard lock(mutex_);
  return server_ != nullptr;
}

/// False: something that the other serves is not ready here, and it may become so yet.
bool HttpEndpoint::is_wanted_there(const Predecessor& other, Takes when) const {
  const std::lock_guard lock(mutex_);
  std::string missing;
  bool any = other.is_certain, waits = false;
  for (const std::string& name : other.names) {
    const auto at = deployments_.find(name);
    const bool is_here = at != deployments_.end();
    any = any || is_here;
    if (is_here && at->second->is_ready()) continue;
    waits = waits || is_here || when == Takes::kAllReady;
    missing += (missing.empty() ? "'" : ", '") + name + "'";
  }
  if (when != Takes::kNow && (!any || waits)) return false;
  if (!missing.empty())
    log(LogLevel::kWarning, missing + ": served by process " + std::to_string(other.pid) +
                                ", whose place this program takes, and not ready here");
  return true;
}

void HttpEndpoint::refuse_foreign_place() const {
  const std::lock_guard lock(mutex_);
  if (!other_ || other_->is_certain) return;
  std::string names;
  for (const std::string& name : other_->names) {
    if (deployments_.contains(name)) return;
    names += (names.empty() ? "'" : ", '") + name + "'";
  }
  throw_error({ErrorCode::kUnavailable, "cannot listen on port " + std::to_string(other_->port),
               "process " + std::to_string(other_->pid) + " serves " + names +
                   " there, and nothing of that is served here",
               "give another port, 0 for any free one, or end that one: troupe serve stop"});
}

void HttpEndpoint::take_over(Takes when) try {
  const std::lock_guard taking(taking_);
  take_place_of_other(when);
} catch (const Error& error) {
  const std::lock_guard lock(mutex_);
  refused_ = error.what();
  throw;
}

std::unique_ptr<http::Server> HttpEndpoint::listen_after(const Predecessor& other) try {
  return std::make_unique<http::Server>(server_options(), handler());
} catch (const Unavailable& error) {
  ErrorInfo info = error.info();
  info.why += "; process " + std::to_string(other.pid) + ", whose place this program was to take, has ended";
  info.todo = "start this program again: it then takes the place of who serves there; or " + info.todo;
  throw_error(std::move(info));
}

std::unique_ptr<http::Server> HttpEndpoint::listen_in_place_of(const Predecessor& other, bool& is_gone) try {
  auto sockets = ask_for_sockets(other);
  is_gone = !sockets && sockets.error().code == ErrorCode::kUnavailable;
  if (is_gone) return listen_after(other);
  return std::make_unique<http::Server>(server_options(), handler(), std::move(sockets).value());
} catch (...) {
  if (!is_gone) tell_not_taken(other);  // for want of descriptors, say
  throw;
}

void HttpEndpoint::take_place_of_other(Takes when) {
  std::optional<Predecessor> other;
  std::shared_ptr<ProxyFleet> fleet;
  {
    const std::lock_guard lock(mutex_);
    other = other_;
    fleet = fleet_;
  }
  if (!other || !is_wanted_there(*other, when)) return;
  bool is_gone = false;
  auto server = listen_in_place_of(*other, is_gone);
  {
    const std::lock_guard lock(mutex_);
    server_ = std::move(server);
    other_.reset();
    refused_.clear();
  }
  log(LogLevel::kInfo,
      "this program listens on " + url() + " in place of process " + std::to_string(other->pid));
  // Its proxies leave when it does, so ours listen first.
  if (fleet) fleet->take_over();
  if (is_gone || other->who == Serving::kProxy) return;  // a proxy is told by its program
  if (const auto told = tell_taken(*other); !told && told.error().code != ErrorCode::kUnavailable)
    log(LogLevel::kWarning, "both programs answer: " + told.error().message());
}

std::string HttpEndpoint::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

std::vector<UniqueFd> HttpEndpoint::listening() const {
  if (!listens())
    throw_error({ErrorCode::kUnavailable, "cannot hand over where HTTP listens",
                 "this program waits for that itself", "wait until it listens"});
  return server_->listening();  // it stays from then on
}

void HttpEndpoint::leave() {
  if (listens()) server_->leave();
}

bool HttpEndpoint::drain(std::chrono::milliseconds timeout) {
  return !listens() || server_->drain(timeout);
}

void HttpEndpoint::add(const std::shared_ptr<Front>& deployment) {
  const std::string where = to_string(address());
  {
    const std::lock_guard lock(mutex_);
    if (!deployments_.emplace(deployment->name(), deployment).second)
      throw BadConfig("cannot serve '" + deployment->name() + "'",
                      "a deployment of this name answers " + std::string(kPrefix) + deployment->name() +
                          " on " + where + " already",
                      "give it another name or another port, or stop the other one first");
    unknown_.erase(deployment->name());
  }
  release();
}

void HttpEndpoint::know_all() {
  {
    const std::lock_guard lock(mutex_);
    unknown_.clear();
  }
  release();
}

/// Whether it waits for what is unknown.
bool HttpEndpoint::hold(http::Request& request, http::Answer& answer) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (unknown_.empty()) return false;
    number = ++last_held_;
  }
  // The server counts its bytes no more then.
  answer.on_client_left([this, number] { drop(number); });
  const std::lock_guard lock(mutex_);
  if (unknown_.empty()) return false;
  held_.emplace(number, std::pair(std::move(request), std::move(answer)));
  return true;
}

void HttpEndpoint::drop(std::uint64_t held) {
  decltype(held_)::node_type dropped;  // goes without the lock
  const std::lock_guard lock(mutex_);
  dropped = held_.extract(held);
}

void HttpEndpoint::release() {
  decltype(held_) held;
  {
    const std::lock_guard lock(mutex_);
    if (!unknown_.empty()) return;
    held = std::exchange(held_, {});
  }
  for (auto& [number, one] : held) {
    auto& [request, answer] = one;
    try {
      handle(std::move(request), std::move(answer));
    } catch (const std::exception& error) {  // out of memory: as where the server calls it
      log(LogLevel::kError, std::string("http: the handler threw: ") + error.what());
    }
  }
}

void HttpEndpoint::remove(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    deployments_.erase(name);
    std::erase_if(refusals_, [&](const auto& one) { return one.first.first == name; });
    if (!deployments_.empty()) return;
    closed_ = true;
  }
  drain(kFlush);
}

std::shared_ptr<ProxyFleet> HttpEndpoint::fleet(const std::function<std::shared_ptr<ProxyFleet>()>& make) {
  const std::lock_guard lock(mutex_);
  if (fleet_ == nullptr) fleet_ = make();
  return fleet_;
}

bool HttpEndpoint::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::shared_ptr<Front> HttpEndpoint::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = deployments_.find(name);
  return at == deployments_.end() ? nullptr : at->second;
}

std::string HttpEndpoint::names() const {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const auto& [name, deployment] : deployments_)
    all += (all.empty() ? "" : ", ") + std::string(kPrefix) + name;
  return all;
}

bool HttpEndpoint::has_ended() const {
  const std::lock_guard lock(mutex_);
  return deployments_.empty();
}

http::Response HttpEndpoint::health() {
  const std::lock_guard lock(mutex_);
  if (deployments_.empty())
    return http::error_response(
        503, closed_ ? "nothing is served here" : "it is not known here yet what is served");
  for (const auto& [name, deployment] : deployments_) {
    if (!deployment->is_ready()) return http::error_response(503, "'" + name + "' is not ready");
  }
  return {.content_type = "text/plain", .body = "ok\n"};
}

http::Response HttpEndpoint::measured() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, deployment] : deployments_) deployment->measure();
  }
  return {.content_type = std::string(http::kMetricsContentType), .body = metrics_.text()};
}

void HttpEndpoint::handle(http::Request request, http::Answer answer) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (request.path == "/healthz") return answer(reads ? health() : not_allowed("GET"));
  if (request.path == "/metrics") return answer(reads ? measured() : not_allowed("GET"));
  const auto route = http::parse_kserve_path(request.path);
  if ((!route || !route->model.empty()) && hold(request, answer)) return;
  if (route) return handle_kserve(*route, std::move(request), std::move(answer));
  std::shared_ptr<Front> to;
  if (request.path.starts_with(kPrefix)) {
    const auto name = http::percent_decode(std::string_view(request.path).substr(kPrefix.size()));
    if (name) to = find(*name);
  }
  if (to == nullptr && has_ended()) return refuse(answer, health());  // its last connections
  if (to == nullptr)
    return refuse(answer, http::error_response(404, "there is no " + request.path + ": ask " + names() +
                                                        ", /v2, /healthz or /metrics"));
  if (request.method != "POST") return refuse(answer, not_allowed("POST"), to->name());
  predict(to, std::move(request), std::move(answer));
}

void HttpEndpoint::predict(const std::shared_ptr<Front>& to, http::Request request, http::Answer answer) {
  const bool raw = http::wants_raw(request);
  const ReplicaSetup& setup = to->setup();
  auto inputs = http::decode_inputs(request, {setup.dtype, setup.row_shape}, to->max_request_rows());
  if (!inputs) return refuse(answer, http::error_response(400, inputs.error().message()), to->name());
  submit(to, *std::move(inputs), request.deadline, std::move(answer),
         [raw](const Reply& reply) { return http::encode_outputs(reply.outputs, raw); });
}

void HttpEndpoint::handle_kserve(const http::KserveRoute& route, http::Request request, http::Answer answer) {
  using What = http::KserveRoute::What;
  const auto state = [&](bool good) { answer({.status = good ? 200 : 400, .content_type = "", .body = ""}); };
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool infers = route.what == What::kInfer;
  if (infers ? request.method != "POST" : !reads)
    return refuse(answer, not_allowed(infers ? "POST" : "GET"), name_of(find(route.model)));
  if (route.what == What::kServer) return answer(http::kserve_server());
  if (route.what == What::kLive) return state(true);
  if (route.what == What::kReady) return state(health().status == 200);
  const auto to = find(route.model);
  if (to == nullptr)
    return refuse(answer, http::error_response(404, "there is no model " + http::valid_utf8(route.model)));
  const VersionId version = to->version();
  if (!route.version.empty() && route.version != std::to_string(version))
    return refuse(answer, no_version(route.model, http::valid_utf8(route.version), version), to->name());
  if (route.what == What::kModelReady) return state(to->is_ready());
  if (infers) return infer(to, route.version, std::move(request), std::move(answer));
  const auto output = to->output();
  if (!output)
    return refuse(answer, http::error_response(503, "'" + to->name() + "' is not ready"), to->name());
  answer(http::kserve_metadata({to->name(), std::to_string(version)},
                               {to->setup().dtype, to->setup().row_shape},
                               {output->dtype, output->row_shape}));
}

/// `version`: that the client asks for; empty: it takes any.
void HttpEndpoint::infer(const std::shared_ptr<Front>& to, const std::string& version, http::Request request,
                         http::Answer answer) {
  const ReplicaSetup& setup = to->setup();
  auto asked = http::decode_kserve(request, {setup.dtype, setup.row_shape}, to->max_request_rows());
  if (!asked) return refuse(answer, http::error_response(400, asked.error().message()), to->name());
  Instant deadline = request.deadline;
  if (asked->timeout) deadline = std::min(deadline, request.received + *asked->timeout);
  data::Tensor inputs = std::move(asked->inputs);
  submit(to, std::move(inputs), deadline, std::move(answer),
         [name = to->name(), version, id = asked->id, binary = asked->wants_binary](const Reply& reply) {
           const std::string answers = std::to_string(reply.version);
           if (!version.empty() && version != answers) return no_version(name, version, reply.version);
           return http::encode_kserve({name, answers}, id, binary, reply.outputs);
         });
}

}  // namespace troupe::serve
