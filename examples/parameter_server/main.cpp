// Data-parallel SGD over parameter servers: workers pull the parameters, compute a gradient on data of their
// own and push it; servers hold a slice of the parameters each and update it. Synchronous: a step is applied
// when every worker's gradient is there. Asynchronous: each is applied as it comes. A worker is killed on the
// way: it starts again, and its step is sent to its next life.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <troupe/session.hpp>

using namespace std::chrono_literals;
using Floats = std::vector<float>;

constexpr int kFeatures = 32, kClasses = 10, kParameters = kClasses * (kFeatures + 1);
constexpr int kServers = 2, kWorkers = 3, kSteps = 150, kBatch = 32;

/// Points around a centre a class, and softmax regression on them: the loss, and its gradient if one is
/// wanted.
struct Data {
  std::vector<Floats> points;
  std::vector<int> labels;
  Data(unsigned seed, int count) {
    std::mt19937 centres(1), random(seed);
    std::normal_distribution<float> normal;
    Floats centre(kClasses * kFeatures);
    for (float& value : centre) value = normal(centres);
    for (int i = 0; i < count; ++i) {
      labels.push_back(static_cast<int>(random() % kClasses));
      Floats& point = points.emplace_back(kFeatures);
      for (int f = 0; f < kFeatures; ++f) point[f] = centre[labels[i] * kFeatures + f] + 1.5F * normal(random);
    }
  }
  /// Logits in, the predicted class out; logits become probabilities.
  int predict(const Floats& w, int i, Floats& logits) const {
    for (int c = 0; c < kClasses; ++c) {
      const float* row = &w[c * (kFeatures + 1)];
      logits[c] = row[kFeatures];
      for (int f = 0; f < kFeatures; ++f) logits[c] += row[f] * points[i][f];
    }
    const auto best = std::max_element(logits.begin(), logits.end());
    const int predicted = static_cast<int>(best - logits.begin());
    float sum = 0;
    for (const float largest = *best; float& value : logits) sum += value = std::exp(value - largest);
    for (float& value : logits) value /= sum;
    return predicted;
  }
  float loss(const Floats& w, int begin, int end, Floats& gradient) const {
    float all = 0;
    Floats p(kClasses);
    for (int i = begin; i < end; ++i) {
      predict(w, i, p);
      all -= std::log(std::max(p[labels[i]], 1e-9F));
      for (int c = 0; c < kClasses; ++c) {
        const float error = (p[c] - (c == labels[i] ? 1.0F : 0.0F)) / static_cast<float>(end - begin);
        float* row = &gradient[c * (kFeatures + 1)];
        for (int f = 0; f < kFeatures; ++f) row[f] += error * points[i][f];
        row[kFeatures] += error;
      }
    }
    return all / static_cast<float>(end - begin);
  }
  double accuracy(const Floats& w) const {
    int right = 0;
    Floats p(kClasses);
    for (std::size_t i = 0; i < points.size(); ++i) right += predict(w, static_cast<int>(i), p) == labels[i];
    return static_cast<double>(right) / static_cast<double>(points.size());
  }
};

/// Light: it never blocks, though a push waits for those of the other workers.
struct Server {
  bool synchronous = true;
  Floats weights = Floats(kParameters / kServers);
  int step = 0;
  std::map<int, Floats> gradients;  ///< of this step, by worker
  troupe::Promise<void> applied;    ///< of this step
  explicit Server(bool waits) : synchronous(waits) {}

  Floats pull() const { return weights; }
  troupe::Task<> push(int worker, int of, Floats gradient) {
    if (!synchronous) {
      apply(gradient, 0.1F);
      co_return;
    }
    if (of < step) co_return;  // of a worker that died after it had pushed it
    gradients[worker] = std::move(gradient);
    const auto done = applied.future();
    if (gradients.size() == kWorkers) {
      for (const auto& [from, one] : gradients)
        apply(one, 0.3F / kWorkers);  // in order: the same bits every time
      gradients.clear();
      ++step;
      std::exchange(applied, troupe::Promise<void>()).set();
    }
    co_await done;  // pulls and pushes of others run meanwhile
  }
  void apply(const Floats& gradient, float rate) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
  }
};

/// A process of its own. It has no state but what it is constructed with: so it may start again anywhere.
struct Worker {
  int rank;
  std::vector<troupe::ActorHandle<Server>> servers;
  Data data{static_cast<unsigned>(100 + rank), 640};
  Worker(int of, std::vector<troupe::ActorHandle<Server>> to) : rank(of), servers(std::move(to)) {}

  int pid() const { return ::getpid(); }
  troupe::Task<float> step(int number) {
    std::vector<troupe::Future<Floats>> pulls;
    for (const auto& server : servers) pulls.push_back(server.call<&Server::pull>());
    Floats weights;
    for (const auto& pull : pulls) {
      const Floats slice = co_await pull;
      weights.insert(weights.end(), slice.begin(), slice.end());
    }
    Floats gradient(kParameters);
    const int begin = number * kBatch % static_cast<int>(data.points.size());
    const float loss = data.loss(weights, begin, begin + kBatch, gradient);
    std::vector<troupe::Future<void>> pushes;
    for (std::size_t s = 0; s < servers.size(); ++s) {
      const auto slice = gradient.begin() + static_cast<std::ptrdiff_t>(s * gradient.size() / servers.size());
      const Floats part(slice, slice + static_cast<std::ptrdiff_t>(gradient.size() / servers.size()));
      pushes.push_back(servers[s].call<&Server::push>(rank, number, part));
    }
    co_await troupe::when_all(pushes);
    co_return loss;
  }
};

/// One light actor runs the loops of all workers at once.
struct Trainer {
  int steps_done = 0;
  int steps() const { return steps_done; }
  troupe::Task<float> train(troupe::ActorHandle<Worker> worker) {
    float loss = 0;
    for (int step = 0; step < kSteps; ++step, ++steps_done) loss = co_await worker.call<&Worker::step>(step);
    co_return loss;
  }
};

Floats train(const troupe::Session& session, bool synchronous, bool kill) {
  std::vector<troupe::ActorHandle<Server>> servers;
  for (int s = 0; s < kServers; ++s) servers.push_back(session.spawn<Server>({}, synchronous));
  std::vector<troupe::ActorHandle<Worker>> workers;
  for (int w = 0; w < kWorkers; ++w) {
    workers.push_back(
        session.spawn<Worker>({.isolated = true, .max_restarts = 3, .max_task_retries = -1}, w, servers));
    session.monitor(workers[w], [w](const troupe::Death& death) {
      if (death.restarts) std::printf("  worker %d died and starts again: %s\n", w, death.reason.c_str());
    });
  }
  const auto trainer = session.spawn<Trainer>();
  std::vector<troupe::Future<float>> losses;
  for (const auto& worker : workers) losses.push_back(trainer.call<&Trainer::train>(worker));
  if (kill) {
    const int pid = workers[1].call<&Worker::pid>().get(30s);
    while (trainer.call<&Trainer::steps>().get(30s) < kWorkers * kSteps / 3) ::usleep(1000);
    ::kill(pid, SIGKILL);
  }
  float loss = 0;
  for (const auto& one : losses) loss += one.get(60s) / kWorkers;
  Floats weights;
  for (const auto& slice :
       troupe::get_all(std::vector{servers[0].call<&Server::pull>(), servers[1].call<&Server::pull>()}))
    weights.insert(weights.end(), slice.begin(), slice.end());
  std::printf("%s: %d steps of %d workers, loss %.3f, test accuracy %.1f %%\n",
              synchronous ? "synchronous" : "asynchronous", kSteps, kWorkers, loss,
              100 * Data(99, 1000).accuracy(weights));
  for (const auto& worker : workers) session.kill(worker);
  return weights;
}

int main(int argc, char** argv) try {
  auto session = troupe::init(argc, argv);
  const Floats undisturbed = train(session, true, false);
  const Floats disturbed = train(session, true, true);
  std::printf("the same parameters with a worker killed: %s\n", undisturbed == disturbed ? "yes" : "no");
  train(session, false, true);
} catch (const std::exception& error) {
  std::fprintf(stderr, "parameter_server: %s\n", error.what());
  return 1;
}
