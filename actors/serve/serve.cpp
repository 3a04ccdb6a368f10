#include "actors/serve/serve.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/serve/calls.hpp"
#include "actors/serve/configured.hpp"
#include "actors/serve/control.hpp"
#include "actors/serve/http/raw_tensor.hpp"
#include "actors/serve/http_endpoint.hpp"
#include "actors/serve/proxy_fleet.hpp"
#include "actors/train/api/interrupts.hpp"
#include "actors/train/api/run.hpp"
#include "actors/train/job/ema.hpp"
#include "runtime/config/serving_file.hpp"
#include "runtime/core/log.hpp"

namespace troupe::serve {
namespace {

/// How often a signal is looked for.
constexpr Duration kLook = std::chrono::milliseconds(50);
constexpr Duration kTaken = std::chrono::seconds(5);
/// A program that is ready to take the place of another one calls wait() within that, or is told to.
constexpr Duration kComesToWait = std::chrono::seconds(5);
/// A process takes no more in one call, and may have two batches under way.
constexpr std::size_t kMostBatchBytes = std::size_t{24} << 20;

[[noreturn]] void refuse(const std::string& name, std::string why, std::string todo) {
  throw BadConfig("cannot serve '" + name + "'", std::move(why), std::move(todo));
}

void check(const std::string& name, Replicas replicas) {
  if (replicas.min >= 0 && replicas.max >= std::max(1, replicas.min) && replicas.max <= 1000) return;
  refuse(name, "replicas = {" + std::to_string(replicas.min) + ", " + std::to_string(replicas.max) + "}",
         "use {least, most}: from 0, and most from 1 to 1,000");
}

/// Returns the most rows of a request.
std::size_t checked(const std::string& name, const ReplicaSetup& setup, const ServeOptions& o) {
  if (!config::is_deployment_name(name))
    refuse(name, "its name is a part of a URL's path", "use 1 to 64 letters, digits, '-', '_' and '.'");
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  check(name, o.replicas);
  if (o.max_batch < 1 || o.max_queue < o.max_batch)
    refuse(name, "max_batch = " + number(o.max_batch) + ", max_queue = " + number(o.max_queue),
           "use a batch of 1 or more, and a queue that holds one");
  if (o.port < 0 || o.port > 65535)
    refuse(name, "port = " + number(o.port), "use 1 to 65535, or 0 for any free one");
  if (o.threads < 1) refuse(name, "threads = " + number(o.threads), "use 1 or more");
  for (const Duration d : {o.start_timeout, o.health_timeout, o.downscale_delay}) {
    if (d <= Duration{0})
      refuse(name, "a timeout or delay is not above zero", "leave it out for the default");
  }
  if (o.batch_wait < Duration{0} || o.drain_timeout < Duration{0})
    refuse(name, "a time is below zero", "leave it out for the default");
  const std::size_t row = data::checked_bytes({"input", setup.dtype, setup.row_shape});
  if (row == 0) refuse(name, "a sample of its input has no elements", "see its dataset, or its input()");
  if (row * static_cast<std::size_t>(o.max_batch) > kMostBatchBytes)
    refuse(name, "a batch of " + number(o.max_batch) + " samples has more than 24 MiB", "lower max_batch");
  return std::min(kMostBatchBytes / row, static_cast<std::size_t>(o.max_queue));
}

}  // namespace

void refuse_weights(const wire::Bytes& weights) {
  if (!weights.empty())
    throw BadConfig("the struct takes no weights", "it has no net", "run it anew with other fields");
}

data::FieldSpec input_of_dataset(const data::Dataset& dataset) {
  for (auto& field : dataset.fields()) {
    if (field.name == "input") return field;
  }
  data::Random random(data::RandomKey{}, 0);
  const data::Sample sample = dataset.get(0, random);
  if (!sample.has("input"))
    throw BadConfig("cannot tell what the net takes", "the dataset's samples have no field 'input'",
                    "give the struct `troupe::data::FieldSpec input() const`");
  const data::Tensor& input = sample["input"];
  return {"input", input.dtype(), input.shape()};
}

namespace {

std::string step_text(std::int64_t step, const std::string& job) {
  return "step " + std::to_string(step) + (job.empty() ? " of a run" : " of " + job);
}

/// The averages of a job with ema() in place of its weights: evaluations use them.
KeptWeights as_evaluated(KeptWeights weights) {
  const auto file = checkpoint::read_safetensors(weights.from, *weights.file);
  if (!file) return weights;  // its replica says so
  const bool averaged = std::any_of(file->tensors.begin(), file->tensors.end(), [](const auto& part) {
    return part.name.starts_with(train::kAveragedPrefix);
  });
  if (!averaged) return weights;
  return {std::make_shared<const wire::Bytes>(train::averaged_weights(weights.from, *weights.file)),
          std::move(weights.from)};
}

/// Endpoints wait with the place of the program that `troupe serve run --replace` replaces until all that the
/// file names is served here: until then that one serves on.
struct WaitingPlaces {
  std::mutex mutex;
  std::set<std::string> served;
  std::vector<std::weak_ptr<HttpEndpoint>> endpoints;
  bool is_waited_in = false;  ///< some wait() of this program was called
  int loading = 0;            ///< deployments whose serve::run() has not returned
};
WaitingPlaces& waiting_places() {
  static WaitingPlaces places;
  return places;
}

/// A deployment loads: its program has not come to wait() yet.
struct Loading {
  Loading() { add(1); }
  ~Loading() { add(-1); }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;
  static void add(int count) {
    const std::lock_guard lock(waiting_places().mutex);
    waiting_places().loading += count;
  }
};

/// Of the file, in quotes. Empty: nothing, or nobody is replaced so. REQUIRES: places.mutex is held.
std::string not_served(const WaitingPlaces& places) {
  const auto* const file = std::getenv(config::kTakeOverVariable) == nullptr ? nullptr : serving_file();
  std::string missing;
  if (file == nullptr) return missing;
  for (const auto& [name, entry] : file->deployments) {
    if (!places.served.contains(name)) missing += (missing.empty() ? "'" : ", '") + name + "'";
  }
  return missing;
}

/// Endpoints whose deployments are ready take the places that they wait for. Others go on waiting: a replica
/// may have died this moment. One that is refused says so (HttpEndpoint::refused), and its own wait() asks
/// again; the others take theirs.
void take_places() {
  WaitingPlaces& places = waiting_places();
  std::vector<std::weak_ptr<HttpEndpoint>> ready;
  {
    const std::lock_guard lock(places.mutex);
    if (places.endpoints.empty() || !not_served(places).empty()) return;
    ready = std::exchange(places.endpoints, {});
  }
  for (const auto& one : ready) {
    const auto there = one.lock();
    if (there == nullptr) continue;
    try {
      there->take_over(Takes::kServedReady);
    } catch (const Error& error) {
      log(LogLevel::kWarning, error.what());
      continue;
    }
    if (there->listens()) continue;
    const std::lock_guard lock(places.mutex);
    places.endpoints.push_back(one);
  }
}

/// `endpoint` has come to serve `name`. It takes its place in wait(): a program that ends before, or is not
/// done with what it does before, leaves the other one as it is.
void waits_for_place(const std::string& name, const std::shared_ptr<HttpEndpoint>& endpoint) {
  WaitingPlaces& places = waiting_places();
  const std::lock_guard lock(places.mutex);
  places.served.insert(name);
  if (!endpoint->listens()) places.endpoints.push_back(endpoint);
}

/// Whoever never calls it would not hear why the other program goes on answering.
void warn_without_wait(ProcessGate& process, const Predecessor& other,
                       const std::weak_ptr<Deployment>& deployment) {
  process.later(kComesToWait, [&process, other, deployment] {
    const auto ready = deployment.lock();
    if (ready == nullptr || ready->wait_stopped(Duration{0})) return;
    WaitingPlaces& places = waiting_places();
    const std::lock_guard lock(places.mutex);
    if (places.is_waited_in) return;
    if (places.loading > 0) return warn_without_wait(process, other, deployment);
    log(LogLevel::kWarning, "'" + ready->name() + "' is ready, and process " + std::to_string(other.pid) +
                                " answers at port " + std::to_string(other.port) +
                                " until this program calls wait() of what serve::run() returned: only there "
                                "does it take that one's place (take_over)");
  });
}

/// As wait() begins.
void begin_waiting(const HttpEndpoint& endpoint) {
  WaitingPlaces& places = waiting_places();
  const std::lock_guard lock(places.mutex);
  places.is_waited_in = true;
  if (endpoint.listens()) return;
  const std::string missing = not_served(places);
  if (missing.empty()) return;
  throw BadConfig("cannot take the place of the program that serves",
                  "the file of troupe serve run names " + missing + ", and this program does not serve that",
                  "take it out of the file, or serve it before wait(); the other program serves on");
}

KeptWeights weights_of(const train::Run& run) {
  train::RunWeights live = run.weights();
  return {std::move(live.file), step_text(live.step, live.job)};
}

}  // namespace

Weights::Weights(const train::RunResult& result)
    : Weights({std::make_shared<const wire::Bytes>(result.weights), step_text(result.steps, "")},
              "the run has none: it was run with return_weights = false, or stopped before its first step",
              "leave that option out, or name a checkpoint's file") {}
Weights::Weights(const train::Run& run) : Weights(weights_of(run), "the run has none", "") {}
Weights::Weights(const train::Snapshot& snapshot)
    : Weights({snapshot.state, step_text(snapshot.step(), snapshot.place.job.job)}, "the snapshot is empty",
              "take one of a run: snapshot(), pause_at_end()") {}
Weights::Weights(const std::string& path) : weights_{nullptr, path} {}
Weights::Weights(wire::Bytes file)
    : Weights({std::make_shared<const wire::Bytes>(std::move(file)), "the bytes of a file"},
              "they are empty: no bytes", "give the bytes of a safetensors file") {}
Weights::Weights(KeptWeights weights, const std::string& if_empty, const std::string& todo)
    : weights_(std::move(weights)) {
  if (weights_.file == nullptr || weights_.file->empty())
    throw BadConfig("there are no weights to serve", if_empty, todo);
}

KeptWeights Weights::read() const {
  if (weights_.file != nullptr) return as_evaluated(weights_);
  const std::string& path = weights_.from;
  return as_evaluated(Weights({std::make_shared<const wire::Bytes>(train::read_weights(path)), path},
                              "'" + path + "' is empty",
                              "name a checkpoint's manifest, or a safetensors file")
                          .weights_);
}

struct Served::State final : Controlled {
  ~State() override {
    if (control) control->remove(*this);
  }
  std::shared_ptr<Deployment> deployment;
  std::shared_ptr<Calls> calls;
  std::shared_ptr<HttpEndpoint> endpoint;
  std::shared_ptr<ProxyFleet> fleet;  ///< null: it is served by this program alone
  std::weak_ptr<const void> session_life;
  std::optional<train::Interrupts> interrupts;
  std::string url;
  int port = 0;
  Duration drain_timeout{};
  std::mutex stopping;
  std::atomic<bool> stopped = false;
  std::atomic<bool> leaves = false;  ///< another program has taken its place
  std::shared_ptr<Control> control;  ///< null: nobody can ask from outside

  // What is asked from outside.
  DeploymentStatus status() override {
    const bool over = stopped || leaves;
    return {.name = deployment->name(),
            .url = url + "/v1/" + deployment->name(),
            .port = port,
            .stopped = over || !endpoint->listens(),
            .refused = over ? "" : endpoint->refused(),
            .view = deployment->view(),
            .weights_from = deployment->weights_from().first,
            .update_from = deployment->weights_from().second,
            .pids = deployment->pids(),
            .last_failure = deployment->last_failure(),
            .fleet = fleet ? fleet->id() : ""};
  }
  void scale(Replicas replicas) override {
    check(deployment->name(), replicas);
    Promise<void> taken;
    const auto future = taken.future();
    deployment->scale(replicas, [taken]() mutable { taken.set(); });
    future.wait(kTaken);  // who asks for the status next sees it
  }
  VersionId update_from(const std::string& path) override { return update(Weights(path)); }
  VersionId roll_back() override {
    return roll_out([&](auto done) { deployment->roll_back(std::move(done)); });
  }
  void stop_serving() override {
    refuse_while_asked();
    stop(false);
  }

  std::vector<UniqueFd> listening() override { return endpoint->listening(); }
  void leave() override {
    log(LogLevel::kInfo, "another program serves '" + deployment->name() + "' from here on");
    endpoint->leave();
    if (fleet) fleet->leave(std::chrono::ceil<std::chrono::milliseconds>(drain_timeout));
    leaves = true;
  }

  std::string metrics() override { return endpoint->measured().body; }

  void refuse_while_asked() const {
    if (stopped || session_life.expired()) return;
    std::string callers;
    for (const auto& name : calls->callers_of(deployment->name()))
      callers += (callers.empty() ? "'" : ", '") + name + "'";
    if (callers.empty()) return;
    throw BadConfig("cannot stop '" + deployment->name() + "'", callers + " would have nobody to ask",
                    "stop that first");
  }

  VersionId update(const Weights& weights) {
    std::optional<KeptWeights> read;
    try {
      read = weights.read();
    } catch (const Error& error) {  // it has not begun
      not_updated(error.info());
    }
    return roll_out([&](auto done) { deployment->update(std::move(*read), std::move(done)); });
  }

  [[noreturn]] void not_updated(const ErrorInfo& why) const {
    throw_error({why.code,
                 "cannot update '" + deployment->name() + "': weights " +
                     std::to_string(deployment->version()) + " go on",
                 why.message(), ""});
  }

  /// The machine ends each roll-out in time, as long as the session lives.
  std::uint64_t roll_out(const std::function<void(Deployment::UpdateDone)>& begin) {
    const auto result = std::make_shared<Result<VersionId>>(
        ErrorInfo{ErrorCode::kUnavailable, "the deployment has ended", "", ""});
    Promise<void> done;
    begin([result, done](Result<VersionId> what) mutable {
      *result = std::move(what);
      done.set();
    });
    const auto future = done.future();
    while (!future.wait(kLook)) {
      if (session_life.expired())
        throw_error({ErrorCode::kUnavailable, "cannot update '" + deployment->name() + "'",
                     "its session has ended", ""});
      if (interrupts && interrupts->signal() != 0) deployment->cancel_update();
    }
    if (!result->ok()) not_updated(result->error());
    return **result;
  }

  void stop(bool at_once) {
    const std::lock_guard lock(stopping);
    if (stopped) return;
    if (!session_life.expired()) {
      at_once ? deployment->end() : deployment->drain();
      const Duration callers = at_once ? Duration{0} : calls->drain_time_of_callers(deployment->name());
      const Instant latest = MonotonicClock().now() + drain_timeout + callers + std::chrono::seconds(5);
      while (!deployment->wait_stopped(kLook) && MonotonicClock().now() < latest) {
      }
    }
    if (fleet && !session_life.expired()) fleet->remove(deployment->name());
    endpoint->remove(deployment->name());
    stopped = true;
  }
};

Served::Served(std::unique_ptr<State> state) : state_(std::move(state)) {}
Served::Served(Served&&) noexcept = default;
Served& Served::operator=(Served&& other) noexcept {
  if (this != &other && state_) state_->stop(true);
  state_ = std::move(other.state_);
  return *this;
}
Served::~Served() {
  if (state_) state_->stop(true);
}

std::string Served::url() const {
  return state_->url + "/v1/" + state_->deployment->name();
}
int Served::port() const {
  return state_->port;
}
std::vector<std::string> Served::urls() const {
  std::vector<std::string> urls{state_->url};
  if (state_->fleet) {
    const auto others = state_->fleet->urls();
    urls.insert(urls.end(), others.begin(), others.end());
  }
  for (auto& url : urls) url += "/v1/" + state_->deployment->name();
  return urls;
}
std::vector<int> Served::pids() const {
  return state_->deployment->pids();
}
data::Tensor Served::predict(const data::Tensor& samples, Duration timeout) const {
  Deployment& to = *state_->deployment;
  if (const auto why = refusal(to, samples.dtype(), samples.shape()))
    throw BadConfig("cannot ask '" + to.name() + "'", *why, "");
  const auto reply = std::make_shared<Reply>();
  Promise<void> done;
  to.submit(to.next_request(), samples, MonotonicClock().now() + timeout, [reply, done](Reply what) mutable {
    *reply = std::move(what);
    done.set();
  });
  done.future().get(timeout + std::chrono::seconds(5));
  if (const auto& failed = reply->failed)
    throw_error({error_code(failed->failure), "'" + to.name() + "' has no answer",
                 failed->why + (failed->inside.empty() ? "" : ": " + failed->inside), ""});
  return reply->outputs;
}

std::uint64_t Served::version() const {
  return state_->deployment->version();
}
std::string Served::weights_from() const {
  return state_->deployment->weights_from().first;
}
std::uint64_t Served::update(const Weights& weights) {
  return state_->update(weights);
}
std::uint64_t Served::rollback() {
  return state_->roll_back();
}
void Served::scale(Replicas replicas) {
  state_->scale(replicas);
}
Handle Served::handle() const {
  return Handle(state_->deployment->name());
}
void Served::stop() {
  state_->stop_serving();
}

int Served::wait() {
  const auto signal = [&] { return state_->interrupts ? state_->interrupts->signal() : 0; };
  begin_waiting(*state_->endpoint);
  state_->endpoint->refuse_foreign_place();
  while (signal() == 0 && !state_->stopped && !state_->leaves) {
    if (!state_->endpoint->listens()) state_->endpoint->take_over(Takes::kServedReady);
    take_places();  // of deployments that nobody may wait() for
    if (state_->deployment->wait_stopped(kLook)) break;
  }
  if (state_->leaves) {  // what comes on connections that it has accepted is answered first
    state_->endpoint->drain(std::chrono::ceil<std::chrono::milliseconds>(state_->drain_timeout));
    if (state_->fleet && !state_->session_life.expired()) state_->fleet->wait_left();
  }
  const int ended_by = signal();
  if (!state_->stopped && !state_->session_life.expired())
    state_->calls->drain_callers_of(state_->deployment->name());
  state_->stop(false);
  return ended_by;
}

Served start_serving(const DriverSession& session, Deployment::Parts parts, const ServeOptions& options) {
  const Loading loading;
  parts.max_request_rows = checked(parts.name, parts.setup, options);
  parts.config = {.replicas = options.replicas,
                  .max_batch = options.max_batch,
                  .max_queue = options.max_queue,
                  .batch_wait = options.batch_wait,
                  .start_timeout = options.start_timeout,
                  .health_timeout = options.health_timeout,
                  .drain_timeout = options.drain_timeout,
                  .downscale_delay = options.downscale_delay};
  auto state = std::make_unique<Served::State>();
  if (options.handle_signals) state->interrupts.emplace();
  const http::ServerOptions server{.host = options.host,
                                   .port = static_cast<std::uint16_t>(options.port),
                                   .tls_certificate = options.tls_certificate,
                                   .tls_key = options.tls_key};
  std::optional<Predecessor> other;
  std::vector<int> silent;
  if (options.take_over) {
    const char* const job = std::getenv(config::kTakeOverVariable);
    other =
        find_predecessor({parts.name, options.host, options.port, job == nullptr ? "" : job}, silent).value();
  }
  try {
    state->endpoint =
        other ? HttpEndpoint::in_place_of(*other, server, parts.name) : HttpEndpoint::at(server, parts.name);
  } catch (const Error& error) {
    throw_error(with_silent(error.info(), silent));
  }
  state->url = state->endpoint->url();
  state->port = state->endpoint->address().port;
  state->session_life = session.life();
  state->drain_timeout = options.drain_timeout;
  try {
    state->calls = parts.calls = Calls::of(session);
    state->deployment = std::make_shared<Deployment>(std::move(parts), state->endpoint->metrics());
    state->endpoint->add(state->deployment);
  } catch (...) {  // another deployment may serve there by now: its requests wait for this one
    state->endpoint->know_all();
    throw;
  }
  const auto deployment = state->deployment;
  if (options.on_every_node) {
    const ProxyListen listen{.host = options.host,
                             .port = static_cast<std::uint16_t>(options.port),
                             .tls_certificate = options.tls_certificate,
                             .tls_key = options.tls_key,
                             .fleet = {},
                             .in_place_of = other ? other->fleet : "",
                             .names = {}};
    // Other deployments of the endpoint have the same fleet, also when this one is gone.
    const auto interrupts = options.handle_signals ? std::make_shared<train::Interrupts>() : nullptr;
    const auto interrupted = [interrupts] { return interrupts && interrupts->signal() != 0; };
    state->fleet = state->endpoint->fleet(
        [&] { return std::make_shared<ProxyFleet>(Session(session), listen, interrupted); });
    state->fleet->add(deployment);
  }
  Served served(std::move(state));
  deployment->start();
  while (!deployment->wait_up(kLook)) {
    if (options.handle_signals && served.state_->interrupts->signal() != 0)
      throw_error({ErrorCode::kAborted, "'" + deployment->name() + "' is not served",
                   "a signal came before its replicas were ready", ""});
  }
  waits_for_place(deployment->name(), served.state_->endpoint);
  // Proxies of one that waits for a place wait, too.
  if (served.state_->fleet && !other && served.state_->endpoint->listens())
    served.state_->fleet->wait_placed();
  if (other && !other->is_certain && !served.state_->endpoint->listens())
    log(LogLevel::kWarning, "'" + deployment->name() + "' waits for port " + std::to_string(other->port) +
                                ", which process " + std::to_string(other->pid) +
                                " has, until something of what that serves is served here");
  if (other && !served.state_->endpoint->listens()) warn_without_wait(session.process(), *other, deployment);
  served.state_->control = Control::of_this_program();
  if (served.state_->control) served.state_->control->add(*served.state_);
  return served;
}

}  // namespace troupe::serve
