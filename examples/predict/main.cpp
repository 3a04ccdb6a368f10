// Trains a ConvNet on digits, then answers requests with it: replicas hold the weights, and each puts the
// requests that have arrived into one forward. One replica is killed on the way: what it had not answered
// goes to another one.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <deque>

#include "examples/mnist/model.hpp"
#include "troupe/predict.hpp"

using namespace troupe;

struct Digits {
  ConvNet model() const { return ConvNet(); }
  auto optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  }
  torch::Tensor loss(ConvNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = 2000, .mean = 0.145F, .std = 0.251F});
  }
};

/// A request and its answer: the class, and when it came.
struct Request {
  std::int64_t image = 0;
  Instant sent{};
  Future<std::vector<float>> answer;
};

int main(int argc, char** argv) try {
  if (argc > 1 && std::string(argv[1]) == "--help") return std::puts("usage: predict [REQUESTS]") < 0 ? 1 : 0;
  auto session = init(argc, argv);
  const std::int64_t requests = argc > 1 ? std::stol(argv[1]) : 10'000;
  constexpr std::int64_t kImages = 500;
  constexpr std::size_t kUnderWay = 256;

  const Digits job;
  const auto result =
      train::run(session, job, {.logical_ranks = 2, .micro_batch = 25, .trainers = 2, .seed = 7});
  train::Predictor<Digits> predictor(session, job, result.weights, {.replicas = 2, .batch = 64});

  // What the same net answers in this program, an image at a time.
  torch::NoGradGuard no_grad;
  ConvNet net = result.load(job.model());
  net->eval();
  const auto test = data::share(job.dataset(data::Split::kTest));
  data::Random random(data::RandomKey{}, 0);
  std::vector<torch::Tensor> images, expected;
  for (std::int64_t i = 0; i < kImages; ++i) {
    const torch::Tensor image = test->get(i, random)["input"];
    images.push_back(image);
    expected.push_back(net->forward(images.back().unsqueeze(0))[0]);
  }

  const MonotonicClock clock;
  const Instant begin = clock.now();
  std::deque<Request> under_way;
  std::vector<double> latencies;
  std::int64_t right = 0;
  for (std::int64_t sent = 0; sent < requests || !under_way.empty();) {
    for (; sent < requests && under_way.size() < kUnderWay; ++sent) {
      if (sent == requests / 3) ::kill(predictor.pids().at(0), SIGKILL);
      under_way.push_back({sent % kImages, clock.now(), predictor.predict(images[sent % kImages])});
    }
    const Request first = std::move(under_way.front());
    under_way.pop_front();
    const auto logits = torch::tensor(first.answer.get(std::chrono::seconds(60)));
    latencies.push_back(to_millis(clock.now() - first.sent));
    if (torch::allclose(logits, expected[first.image], 1e-3, 1e-4)) ++right;
  }
  const double seconds = to_seconds(clock.now() - begin);

  std::sort(latencies.begin(), latencies.end());
  const auto stats = predictor.stats();
  std::printf("%lld requests in %.2f s: %.0f /s; p50 %.1f ms, p99 %.1f ms\n",
              static_cast<long long>(requests), seconds, static_cast<double>(requests) / seconds,
              latencies[latencies.size() / 2], latencies[latencies.size() * 99 / 100]);
  std::printf(
      "%.1f requests a forward, %d at most; %d replica was killed and started again, %lld requests sent "
      "again\n",
      static_cast<double>(stats.answered) / stats.forwards, stats.largest_batch, stats.restarts,
      static_cast<long long>(stats.sent_again));
  std::printf("%lld of %lld answers are right, each came once\n", static_cast<long long>(right),
              static_cast<long long>(requests));
  return right == requests && stats.answered == requests ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "predict: %s\n", error.what());
  return 1;
}
