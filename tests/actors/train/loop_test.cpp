// What a training loop brings beside the step: schedules by name, averaged weights, metrics. The numbers are
// PyTorch's: golden/make_schedule_golden.py writes golden/schedules.txt.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

#include "actors/train/job/metrics.hpp"
#include "actors/train/job/schedules.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

using Numbers = std::vector<double>;
constexpr double kRate = 0.5;
constexpr RunLength kRun{100, 25};

Numbers golden(const std::string& name) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/schedules.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first != name) continue;
    Numbers numbers;
    for (double number = 0; words >> number;) numbers.push_back(number);
    return numbers;
  }
  return {};
}

torch::optim::SGD sgd() {
  return torch::optim::SGD(std::vector<torch::Tensor>{torch::zeros({1}, torch::requires_grad())},
                           torch::optim::SGDOptions(kRate).momentum(0.9));
}

double rate_of(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

void check_close(const Numbers& ours, const Numbers& theirs) {
  REQUIRE(theirs.size() > 0);
  REQUIRE(ours.size() == theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i, ours[i], theirs[i]);
    REQUIRE(std::abs(ours[i] - theirs[i]) < 1e-7);
  }
}

template <class Make>
void check_schedule(const std::string& name, Make make) {
  INFO(name);
  auto optimizer = sgd();
  auto made = make(optimizer);
  CHECK(made.every == Every::kStep);
  made.scheduler.know(kRun);
  Numbers rates;
  for (std::int64_t step = 0; step < kRun.steps; ++step, made.scheduler.step())
    rates.push_back(rate_of(optimizer));
  check_close(rates, golden(name));
}

using Optimizer = torch::optim::Optimizer;

TEST_CASE("schedules by name have PyTorch's and Transformers' rates at each of 100 steps") {
  check_schedule("constant_with_warmup", [](Optimizer& o) { return constant(o, {.warmup_steps = 10}); });
  check_schedule("linear_with_warmup", [](Optimizer& o) { return linear(o, {.warmup_steps = 10}); });
  check_schedule("cosine_with_warmup", [](Optimizer& o) { return cosine(o, {.warmup_steps = 10}); });
  check_schedule("cosine_of_three_waves",
                 [](Optimizer& o) { return cosine(o, {.warmup_steps = 10, .cycles = 1.5}); });
  check_schedule("polynomial_with_warmup",
                 [](Optimizer& o) { return polynomial(o, {.warmup_steps = 10, .end = 0.01, .power = 2}); });
  check_schedule("LinearLR", [](Optimizer& o) { return linear(o, {.end = 0.25}); });
  check_schedule("CosineAnnealingLR", [](Optimizer& o) { return cosine(o, {.end = 0.1}); });
  check_schedule("PolynomialLR", [](Optimizer& o) { return polynomial(o, {.power = 3}); });
  check_schedule("OneCycleLR", [](Optimizer& o) { return one_cycle(o); });
  check_schedule("OneCycleLR_linear", [](Optimizer& o) {
    return one_cycle(o, {.rise = 0.5, .start = 0.1, .end = 0.001, .linear = true});
  });
}

TEST_CASE("a schedule that says its steps stays at its end; one longer than the run is refused with both") {
  auto optimizer = sgd();
  auto made = linear(optimizer, {.steps = 4, .end = 0.5});
  made.scheduler.know(kRun);
  Numbers rates;
  for (int step = 0; step < 7; ++step, made.scheduler.step()) rates.push_back(rate_of(optimizer) / kRate);
  CHECK(rates == Numbers{1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5});

  auto longer = cosine(optimizer, {.steps = 101});
  CHECK_THROWS_WITH(longer.scheduler.know(kRun), Catch::Contains("cosine() has 101 steps, and the run 100"));
  auto warm = constant(optimizer, {.warmup_steps = 200});
  CHECK_THROWS_WITH(warm.scheduler.know(kRun),
                    Catch::Contains("constant() has 200 steps of warm-up, and the run 100"));
  auto cycle = one_cycle(optimizer, {.steps = 500});
  CHECK_THROWS_WITH(cycle.scheduler.know(kRun),
                    Catch::Contains("one_cycle() has 500 steps, and the run 100"));
}

TEST_CASE("a factor of one's own may ask how long the run is") {
  auto optimizer = sgd();
  LambdaLR schedule(optimizer, [](std::int64_t step, const RunLength& run) {
    return static_cast<double>(step / run.steps_per_epoch) / static_cast<double>(run.steps) + 1;
  });
  CHECK(rate_of(optimizer) == kRate);
  schedule.know(kRun);
  for (int step = 0; step < 50; ++step) schedule.step();
  CHECK(rate_of(optimizer) == kRate * 1.02);
}

/// What evaluations came to, as the golden's.
Numbers evaluations() {
  Numbers values;
  for (int i = 0; i < 60; ++i) values.push_back(std::sin(0.7 * i) / (1 + 0.2 * i) + 1);
  return values;
}

void check_plateau(const std::string& name, const PlateauOptions& options) {
  INFO(name);
  auto optimizer = sgd();
  ReduceOnPlateau schedule(optimizer, options);
  Numbers rates;
  for (const double value : evaluations()) {
    schedule.observe({{"test/loss", value}});
    schedule.step();  // changes nothing
    rates.push_back(rate_of(optimizer));
  }
  check_close(rates, golden(name));
}

TEST_CASE("a plateau lowers the rate where PyTorch's does, and names the metrics that there are") {
  check_plateau("ReduceLROnPlateau", {.factor = 0.5, .patience = 3});
  check_plateau("ReduceLROnPlateau_max", {.larger_is_better = true,
                                          .factor = 0.1,
                                          .patience = 2,
                                          .threshold = 0.01,
                                          .cooldown = 4,
                                          .least = 0.001});
  auto optimizer = sgd();
  auto schedule = reduce_on_plateau(optimizer, {.metric = "test/recall"});
  CHECK_THROWS_WITH(schedule.observe({{"test/loss", 1}}),
                    Catch::Contains("'test/recall'") && Catch::Contains("the job has test/loss"));
  CHECK_THROWS_WITH(reduce_on_plateau(optimizer, {.factor = 1}), Catch::Contains("the factor 1.0"));
}

TEST_CASE("the average of weights is that of PyTorch's AveragedModel") {
  Setup setup;
  auto net = setup.module("", torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(1.0);
  AveragedWeights averaged({.decay = 0.9}, setup);
  Numbers seen;
  for (int step = 0; step < 20; ++step) {
    net->weight.sub_(0.1 * (step % 3));
    averaged.update();
    const float weight = net->weight.item<float>();
    {
      const AveragedWeights::InUse in_use(&averaged);
      seen.push_back(net->weight.item<double>());
    }
    CHECK(net->weight.item<float>() == weight);
  }
  const Numbers theirs = golden("AveragedModel");
  REQUIRE(theirs.size() == seen.size());
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(std::abs(seen[i] - theirs[i]) < 1e-5);
  CHECK_THROWS_WITH(AveragedWeights({.decay = 1}, setup), Catch::Contains("decays by 1.0"));
}

TEST_CASE("top-k, precision, recall, F1 and perplexity are PyTorch's, however the samples are dealt") {
  const auto i = torch::arange(50, torch::kFloat64).unsqueeze(1);
  const auto j = torch::arange(5, torch::kFloat64).unsqueeze(0);
  const auto scores = torch::sin(1.7 * i + 2.3 * j) + 0.1 * j;
  const auto target = (torch::arange(50) * 7).remainder(11).remainder(4);
  const Numbers theirs = golden("metrics");
  REQUIRE(theirs.size() == 5);
  for (const std::int64_t piece : {50, 7}) {
    std::vector<Figure> all;
    for (std::int64_t begin = 0; begin < 50; begin += piece) {
      Leaf at({}, 0);
      const auto some = scores.slice(0, begin, begin + piece);
      const auto of = target.slice(0, begin, begin + piece);
      count_top_k(at, some, of, 3);
      count_confusion(at, some, of, 5);
      count_perplexity(at,
                       torch::nn::functional::cross_entropy(
                           some, of, torch::nn::CrossEntropyLossOptions().reduction(torch::kSum)),
                       static_cast<double>(of.size(0)));
      add_figures(all, at.figures());
    }
    std::map<std::string, double> metrics;
    for (const Figure& figure : all) add_metrics(metrics, "test/", figure);
    check_close({metrics.at("test/top3"), metrics.at("test/precision"), metrics.at("test/recall"),
                 metrics.at("test/f1"), metrics.at("test/perplexity")},
                theirs);
  }
  Leaf at({}, 0);
  CHECK_THROWS_WITH(count_top_k(at, scores, target, 6), Catch::Contains("the 6 highest scores"));
  CHECK_THROWS_WITH(count_confusion(at, scores, target, 3), Catch::Contains("a confusion of 3 classes"));
}

TEST_CASE(
    "the area under a ROC curve and a regression's errors are PyTorch's, however the samples are dealt") {
  const auto i = torch::arange(50, torch::kFloat64).unsqueeze(1);
  const auto j = torch::arange(5, torch::kFloat64).unsqueeze(0);
  const auto scores = torch::sin(1.7 * i + 2.3 * j) + 0.1 * j;
  const auto target = (torch::arange(50) * 7).remainder(11).remainder(4).eq(1);
  const auto predicted = scores.select(1, 1), was = predicted * 0.9 + scores.select(1, 2) * 0.2 + 0.1;
  const Numbers theirs = golden("more_metrics");
  REQUIRE(theirs.size() == 5);
  for (const std::int64_t piece : {50, 7}) {
    std::vector<Figure> all;
    for (std::int64_t begin = 0; begin < 50; begin += piece) {
      Leaf at({}, 0);
      const auto some = [&](const torch::Tensor& of) { return of.slice(0, begin, begin + piece); };
      count_auroc(at, torch::sigmoid(some(scores.select(1, 0))), some(target), 20);
      count_regression(at, some(predicted), some(was));
      add_figures(all, at.figures());
    }
    std::map<std::string, double> metrics;
    for (const Figure& figure : all) add_metrics(metrics, "test/", figure);
    check_close({metrics.at("test/auroc"), metrics.at("test/mse"), metrics.at("test/mae"),
                 metrics.at("test/rmse"), metrics.at("test/r2")},
                theirs);
  }
  Leaf at({}, 0);
  CHECK_THROWS_WITH(count_auroc(at, scores.select(1, 0), target), Catch::Contains("not in 0 to 1"));
  CHECK_THROWS_WITH(count_auroc(at, scores, target), Catch::Contains("targets are [50]"));
  CHECK_THROWS_WITH(count_regression(at, scores, target), Catch::Contains("predictions [50, 5]"));
}

/// With a plateau, averages and a figure of each kind.
struct LoopJob : SmallJob {
  double decay = 0.5;
  Ema ema() const { return {decay}; }
  ReduceOnPlateau scheduler(torch::optim::Adam& optimizer) const {
    return reduce_on_plateau(optimizer, {.factor = 0.5, .patience = 0});
  }
  torch::Tensor evaluate(SmallNet& net, const data::Batch& batch, Leaf& at) const {
    const auto logits = net->forward(batch.input);
    count_confusion(at, logits, batch.target, 4);
    return torch::nn::functional::cross_entropy(logits, batch.target);
  }
};

TEST_CASE("averages and a plateau are state: one hash for every dealing, and they go round") {
  const auto body = [](auto group) {
    const auto owner = engine_for(LoopJob{}, 4);
    StepEngine& engine = *owner;
    engine.attach(group);
    std::string told;
    for (std::uint64_t step = 0; step < 8; ++step) {
      if (step == 5 && group->leaves().begin == 0) engine.rehearse(make_training_model(LoopJob{}, kSeed));
      engine.run_step(step, leaf_batches(*group, step, small));
      if (step >= 3) engine.observe({{"test/loss", 1.0 + (step == 6)}});
      for (const auto& [name, value] : engine.apply()) told += name + "=" + std::to_string(value) + " ";
    }
    for (const Figure& figure : engine.evaluate(0, 0, small_batch(9, 0)))
      told += figure.name + ":" + std::to_string(figure.sum) + " ";
    return engine.state().hash() + " " + told;
  };
  const auto alone = fork_ranks(4, 1, body);
  REQUIRE(alone[0].size() > 64);
  CHECK(alone[0].find("learning_rate=0.010000 ") != std::string::npos);
  CHECK(alone[0].find("learning_rate=0.000625 ") != std::string::npos);  // four evaluations were no better
  for (const int ranks : {2, 3}) {
    for (const std::string& seen : fork_ranks(4, ranks, body)) CHECK(seen == alone[0]);
  }
}

TEST_CASE(
    "an evaluation uses the averages, a step the weights, and a fresh model takes both from the state") {
  const auto owner = engine_for(LoopJob{}, 1);
  const auto plain_owner = engine_for(LoopJob{{}, 0}, 1);  // its average is the weights
  const auto group = lone_group(1);
  const auto other = lone_group(1);
  owner->attach(group);
  plain_owner->attach(other);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (StepEngine* engine : {owner.get(), plain_owner.get()}) {
      engine->run_step(step, leaf_batches(*group, step, small));
      engine->apply();
    }
  }
  const auto losses = [](StepEngine& engine) {
    for (const Figure& figure : engine.evaluate(0, 0, small_batch(9, 0))) {
      if (figure.name == "loss") return figure.sum;
    }
    return 0.0;
  };
  const auto weights = [](StepEngine& engine) { return engine.model().parameters()[0].tensor; };
  CHECK(torch::equal(weights(*owner), weights(*plain_owner)));
  CHECK(losses(*owner) != losses(*plain_owner));
  CHECK(torch::equal(weights(*owner), weights(*plain_owner)));
  StepEngine fresh(make_training_model(LoopJob{}, 99), {.logical_ranks = 1, .seed = kSeed});
  const StateView view = owner->state().view();
  fresh.state().install(view.parts).value();
  CHECK(losses(fresh) == losses(*owner));
}

}  // namespace
}  // namespace troupe::train::testing
