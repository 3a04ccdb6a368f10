/// troupe::serve::run: a trained net behind HTTP, on replicas that follow the load.
///
///     auto served = troupe::serve::run(session, "digits", Digits{folder}, result, {.replicas = {1, 4}});
///     std::cout << served.url() << "\n";  // http://127.0.0.1:8000/v1/digits
///     served.wait();                      // until Ctrl-C; what was accepted is answered first
///
/// The struct is the one that was trained: its net's forward answers, in evaluation mode, without gradients,
/// in the precision of its training. It may say more (served_model.hpp):
///
///     torch::Tensor predict(Net& net, const torch::Tensor& input) const;  // instead of forward: [N, ...] to
///                                                                         // [N, ...]
///     troupe::data::FieldSpec input() const;  // {.shape = {1, 28, 28}}: a sample, where there is no dataset
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/configured.hpp"
#include "actors/serve/deployment.hpp"
#include "actors/serve/handle.hpp"
#include "actors/serve/served_model.hpp"
#include "actors/train/driver/run_result.hpp"
#include "actors/train/snapshot.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::train {
class Run;
}

namespace troupe::serve {

struct ServeOptions {
  /// {least, most}, or one number; each is a process. {0, most}: none while nobody asks for downscale_delay.
  Replicas replicas{};
  std::string host = "127.0.0.1";  ///< where HTTP listens; deployments of one program may share it
  int port = 8000;                 ///< 0: any free one, of this deployment alone
  /// HTTP listens on each other node of the cluster, too, on the same host and port (0: any free one there)
  /// with its own TLS files of these names; those proxies send requests straight to the replicas.
  bool on_every_node = false;
  /// Another program of this user on this machine may serve this name (at this port, unless that is 0), or
  /// others there, such as the one before a change of the code. This one then starts its replicas, and in
  /// wait() takes the place of that one, which hands over its listening sockets, as do its proxies
  /// (on_every_node), answers what it has accepted and ends, if it is in wait(). No request is lost. Of
  /// several deployments of one port all must be ready first; those that are not made by wait() are gone. One
  /// of them must be served here: else wait() throws Unavailable. Where there is no such program it changes
  /// nothing. In a program of `troupe serve run --replace` that program is the job before, and no other.
  bool take_over = false;
  std::string tls_certificate{};  ///< PEM files: HTTPS with this certificate, and its chain, ...
  std::string tls_key{};          ///< ... and its key
  std::int64_t max_batch = 64;    ///< most rows of one forward
  std::int64_t max_queue = 1024;  ///< rows that may wait: 429 above, and for a request that has more 400
  Duration batch_wait{0};         ///< an idle replica waits so long for a batch to fill
  double cpus = 0;                ///< that a replica reserves on its node
  int threads = 1;                ///< intra-op threads of a replica
  Duration start_timeout = std::chrono::seconds(120);    ///< until a replica is ready
  Duration health_timeout = std::chrono::seconds(30);    ///< no answer for so long: it hangs, and is killed
  Duration drain_timeout = std::chrono::seconds(20);     ///< for what was accepted before stop() or Ctrl-C
  Duration downscale_delay = std::chrono::seconds(300);  ///< fewer replicas, or none, must be enough so long
  /// SIGINT and SIGTERM end wait(), which drains; a second one ends the program.
  bool handle_signals = true;
};

/// Trained weights: what came of a run, those of a run that trains on, a snapshot, the path of a checkpoint's
/// manifest or of a safetensors file, or such a file's bytes. A path is read when the weights are wanted. Of
/// a job with ema() the averages answer, as they are what evaluations use.
class Weights {
 public:
  Weights(const train::RunResult& result);  // NOLINT: implicit on purpose
  /// As they are now, while it trains on: see train::Run::weights(), which says what it throws.
  Weights(const train::Run& run);                            // NOLINT
  Weights(const train::Snapshot& snapshot);                  // NOLINT
  Weights(const std::string& path);                          // NOLINT
  Weights(const char* path) : Weights(std::string(path)) {}  // NOLINT
  Weights(wire::Bytes file);                                 // NOLINT
  /// Throws BadConfig for a file that cannot be read.
  KeptWeights read() const;

 private:
  Weights(KeptWeights weights, const std::string& if_empty, const std::string& todo);
  KeptWeights weights_;  ///< without bytes: of a file that is read when it is wanted
};

/// A deployment that runs. Movable. Its end ends the replicas at once; what has no answer then fails. stop()
/// first loses nothing.
class Served {
 public:
  Served(Served&&) noexcept;
  Served& operator=(Served&&) noexcept;
  ~Served();

  /// "http://127.0.0.1:8000/v1/digits"
  std::string url() const;
  int port() const;
  /// The same of every proxy that listens (on_every_node): this program's first.
  std::vector<std::string> urls() const;
  /// Until SIGINT or SIGTERM, or stop() in another thread; then as stop(), and so of the deployments that ask
  /// this one: they end first. Returns the signal, or 0.
  int wait();
  /// The outputs of these samples, [rows, ...], without HTTP: a torch::Tensor is one, and takes one. Waits.
  /// Throws LimitExceeded where max_queue is reached, Timeout, Unavailable, ActorDied, TaskFailed with what
  /// the net threw, and BadConfig for another type or shape. Thread-safe.
  ///     torch::Tensor logits = served.predict(images);
  data::Tensor predict(const data::Tensor& samples, Duration timeout = std::chrono::seconds(60)) const;
  /// Other weights answer from here on, a file's or those of a run that trains on (`served.update(run)`), and
  /// no request is lost: replicas with them start and compute a first
  /// batch, requests go to them, and the old ones end when they have answered. Each request is answered by
  /// one version alone. Waits until no replica of the old weights is left; returns the version of the new
  /// ones, which responses name (Weights-Version) and /metrics: each update has the next number, and one that
  /// fails keeps it, so that a number never means two weights. While it runs there is one replica more, or a
  /// quarter more, than otherwise. Throws where no replica comes up with these weights, three die of them in
  /// a row, the deployment ends or another update is under way: what answered before then goes on. Keeps the
  /// old weights in memory, for rollback(). Thread-safe.
  std::uint64_t update(const Weights& weights);
  /// Back to the weights from before the last update, in the same way; a second one goes forth again. Where
  /// an update is under way, in another thread, that ends and throws Aborted there. Throws BadConfig where
  /// there was none. Thread-safe.
  std::uint64_t rollback();
  /// Other numbers of replicas: at least so many from here on, and at most, by load. Does not wait for them.
  /// Throws BadConfig for numbers that run() refuses. Thread-safe.
  void scale(Replicas replicas);
  /// Of the weights that answer: 1 is what run() was given.
  std::uint64_t version() const;
  /// Where they are from: "step 120 of Digits{...}", a path.
  std::string weights_from() const;
  /// For another struct of this program that is to ask this deployment.
  Handle handle() const;
  /// Takes no more requests (503), answers those that were accepted within drain_timeout, and ends the
  /// replicas. Throws BadConfig while another deployment that does not end asks this one. Thread-safe.
  void stop();
  /// Of the replicas that are ready: for tests, and for faults on purpose.
  std::vector<int> pids() const;

 private:
  friend Served start_serving(const DriverSession&, Deployment::Parts, const ServeOptions&);
  struct State;
  explicit Served(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The part of run() that does not depend on the struct's type.
Served start_serving(const DriverSession& session, Deployment::Parts parts, const ServeOptions& options);

namespace detail {

/// `Actor`: the replica's class.
template <class Actor, class Job>
Served run(const DriverSession& session, const std::string& name, const Job& job, KeptWeights weights,
           const ServeOptions& options) {
  const data::FieldSpec input = input_of(job);
  const ReplicaSetup setup{options.max_batch, input.dtype, input.shape, options.threads};
  return start_serving(session,
                       {session,
                        name,
                        {},
                        setup,
                        [on = Session(session), job, setup, cpus = options.cpus, name](
                            const ReplicaCalls& calls, const Deployment::Started& started) {
                          const auto spawn = on.spawn_async<Actor>(
                              {.num_cpus = cpus, .isolated = true, .label = name}, job, setup, calls);
                          spawn.then([started](Result<ActorHandle<Actor>> replica) {
                            if (!replica) return started(replica.error());
                            started(ActorHandle<Replica>(*replica));
                          });
                          return spawn.state();
                        },
                        std::move(weights),
                        asked_by(job)},
                       options);
}

}  // namespace detail

/// Starts the replicas and listens; returns when the least number of them is ready, and every node's proxy
/// listens (on_every_node; ten seconds more at most for those). `name` is letters, digits, '-', '_' and '.'.
/// Throws BadConfig for a name or options that make no sense, a route that is taken and weights that do not
/// fit, Unavailable for a port that is in use and replicas that do not come up. `session` must outlive what
/// it returns. A struct that has handles of other deployments (handle.hpp) asks those: they must run already,
/// and a cycle is BadConfig. In a program that `troupe serve run` has started, what its file says of the
/// deployment goes before the options and weights given here (configured.hpp).
template <class Job>
Served run(const DriverSession& session, const std::string& name, const Job& job, const Weights& weights,
           const ServeOptions& options = {}) {
  const std::string path = configured_weights(name);
  return detail::run<ReplicaOf<Job>>(session, name, job, path.empty() ? weights.read() : Weights(path).read(),
                                     configured(name, options));
}

/// The same for a struct without a net: `torch::Tensor predict(const torch::Tensor& input) const` and
/// `data::FieldSpec input() const`.
template <PredictsAlone Job>
Served run(const DriverSession& session, const std::string& name, const Job& job,
           const ServeOptions& options = {}) {
  refuse_configured_weights(name);
  return detail::run<ReplicaAlone<Job>>(
      session, name, job, {std::make_shared<const wire::Bytes>(), "no weights"}, configured(name, options));
}

}  // namespace troupe::serve
