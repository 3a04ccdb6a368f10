// What a user may write as data, on real processes: tensors of any kind, samples of variable length,
// samplers, and what goes wrong with data.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "actors/data/digits.hpp"
#include "actors/data/subset.hpp"
#include "actors/data/torch.hpp"
#include "actors/data/torch_dataset.hpp"
#include "actors/data/transforms.hpp"
#include "actors/train/api/train.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "tests/e2e/support.hpp"

namespace training_data_test {

using namespace troupe;
using train::ChaosStep;

namespace {

struct BagImpl : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(50, 8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 2));
  /// The mean of the embeddings of the first `lengths` tokens.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& lengths) {
    const auto mask = torch::arange(tokens.size(1)).unsqueeze(0).lt(lengths.unsqueeze(1)).unsqueeze(2);
    return out((embedding(tokens) * mask).sum(1) / lengths.unsqueeze(1));
  }
};
TORCH_MODULE(Bag);

/// Sentences of 1 to 40 tokens, longer with the index, so that no batch's size is known before; written with
/// torch tensors, some of it drawn from LibTorch's generator.
struct Sentences {
  std::int64_t count = 240;
  int break_at = -1;  ///< what goes wrong with which sample
  std::string how;

  std::int64_t size() const { return count; }
  data::Sample get(std::int64_t index, data::Random& random) const {
    if (index == break_at && how == "throw") throw std::runtime_error("the page is torn");
    const auto length = 1 + index / 6;
    auto tokens = (torch::arange(length) * 7 + index) % 50;
    if (random.uniform() < 0.5) tokens = tokens.flip(0);
    tokens[0] = torch::randint(50, {1}).item<std::int64_t>();
    return {{"tokens", tokens}, {"target", index % 2}, {"weight", torch::full({}, 0.5, torch::kFloat64)}};
  }
  data::Sample collate(std::vector<data::Sample> samples) const {
    if (how == "collate") throw std::runtime_error("cannot bind the pages");
    std::vector<torch::Tensor> tokens;
    std::vector<std::int64_t> lengths;
    std::vector<torch::Tensor> targets;
    for (const auto& sample : samples) {
      tokens.push_back(sample["tokens"]);
      targets.push_back(sample["target"]);
      lengths.push_back(tokens.back().size(0));
    }
    return {{"tokens", torch::nn::utils::rnn::pad_sequence(tokens, true)},
            {"target", torch::stack(targets)},
            {"lengths", lengths}};
  }
};

struct TextJob {
  std::string how;
  int break_at = -1;
  std::int64_t samples = 240;

  Bag model() const { return Bag(); }
  auto optimizer(Bag& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(Bag& net, const data::Batch& batch) const {
    TORCH_CHECK(batch.size() == batch["lengths"].size(0), "as many lengths as samples");
    return torch::nn::functional::cross_entropy(net->forward(batch["tokens"], batch["lengths"]),
                                                batch.target);
  }
  torch::Tensor correct(Bag& net, const data::Batch& batch) const {
    return net->forward(batch["tokens"], batch["lengths"]).argmax(1).eq(batch.target);
  }
  Sentences dataset(data::Split split) const {
    return {split == data::Split::kTrain ? samples : 300, split == data::Split::kTrain ? break_at : -1, how};
  }
  data::Sampling sampler(const data::Dataset& train) const {
    if (how == "weighted") {
      std::vector<double> weights(static_cast<std::size_t>(train.size()), 1.0);
      weights[0] = 100;
      return data::weighted(weights, 120);
    }
    if (how == "sequential") return data::sequential();
    return {};
  }
};

train::TrainOptions options_of(int leaves, int trainers, int loaders = 1) {
  return {.logical_ranks = leaves,
          .micro_batch = 5,
          .epochs = 2,
          .trainers = trainers,
          .loaders = loaders,
          .seed = 3,
          .show_progress = false};
}

/// What a run came to: the weights and what the test set said.
struct Trained {
  std::string hash;
  report::Metrics metrics;
  std::int64_t steps = 0;
  bool operator==(const Trained&) const = default;
};

template <class Job>
Trained outcome_of(const DriverSession& session, const Job& job, const train::TrainOptions& options) {
  const auto result = train::run(session, job, options);
  return {result.state_hash, result.metrics, result.steps};
}

template <class Job>
std::string failure_of(const DriverSession& session, const Job& job) {
  return e2e::message_of([&] { train::run(session, job, options_of(4, 2, 2)); });
}

}  // namespace

TEST_CASE("batches whose size nobody knows before give one hash, under kills and on two nodes",
          "[training]") {
  using What = ChaosStep::What;
  Trained alone;
  {
    auto session = init(0, nullptr);
    alone = outcome_of(session, TextJob{}, options_of(4, 1));
    CHECK(alone.metrics.contains("test/loss"));
    CHECK(outcome_of(session, TextJob{}, options_of(4, 3, 3)) == alone);
    auto killed = options_of(4, 2, 2);
    killed.chaos = {{What::kKillTrainer, 4, -1}, {What::kKillLoader, 7, -1}, {What::kKillTrainer, 15, 0}};
    CHECK(outcome_of(session, TextJob{}, killed) == alone);

    const auto weighted = outcome_of(session, TextJob{.how = "weighted"}, options_of(4, 1));
    CHECK(weighted.steps == alone.steps / 2);
    CHECK(weighted.hash != alone.hash);
    CHECK(outcome_of(session, TextJob{.how = "weighted"}, options_of(4, 2, 2)) == weighted);
    const auto in_order = outcome_of(session, TextJob{.how = "sequential"}, options_of(4, 2));
    CHECK(in_order.steps == alone.steps);
    CHECK(in_order.hash != alone.hash);
  }
  auto session = init(0, nullptr, {.nodes = 2});
  CHECK(outcome_of(session, TextJob{}, options_of(4, 2, 2)) == alone);
}

TEST_CASE("data that goes wrong is one error that says which sample and what", "[training]") {
  auto session = init(0, nullptr);
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(failure_of(session, TextJob{.how = "throw", .break_at = 77}), "sample 77 could not be read");
  has(failure_of(session, TextJob{.how = "throw", .break_at = 77}), "the page is torn");
  // Was: "troupe::train::Loader::load threw in trainer 0".
  has(failure_of(session, TextJob{.how = "throw", .break_at = 77}),
      "TextJob::dataset threw in a loader, step ");
  has(failure_of(session, TextJob{.how = "collate"}), "cannot bind the pages");
  has(failure_of(session, TextJob{.how = "collate"}), "TextJob::dataset threw");
  has(failure_of(session, TextJob{.samples = 0}), "cannot sample an empty dataset");
  has(failure_of(session, TextJob{.samples = -1}), "cannot sample an empty dataset");
}

namespace {

/// Says how LibTorch computes where it is read.
struct Looking {
  std::int64_t size() const { return 40; }
  data::Sample get(std::int64_t, data::Random&) const {
    const bool deterministic = at::globalContext().deterministicAlgorithms();
    return {
        {"input", torch::tensor({static_cast<float>(at::get_num_threads()), deterministic ? 1.0F : 0.0F})},
        {"target", 0}};
  }
};
struct LookingJob {
  torch::nn::Linear model() const { return torch::nn::Linear(2, 2); }
  auto optimizer(torch::nn::Linear& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch, train::Leaf& at) const {
    at.count("threads", batch.input.select(1, 0).sum(), static_cast<double>(batch.size()));
    at.count("deterministic", batch.input.select(1, 1).sum(), static_cast<double>(batch.size()));
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  Looking dataset(data::Split) const { return {}; }
};

}  // namespace

// Loaders had as many threads as their host has CPUs: a mean() over a large image had other bits where a
// loader came up on another one.
TEST_CASE("a loader computes with one thread and deterministic algorithms, whatever its host has",
          "[training]") {
  ::setenv("OMP_NUM_THREADS", "3", 1);  // what LibTorch would take
  auto session = init(0, nullptr);
  ::unsetenv("OMP_NUM_THREADS");
  auto options = options_of(2, 1, 2);
  options.threads = 2;  // a trainer's own
  const auto result = train::run(session, LookingJob{}, options);
  CHECK(result.metrics.at("train/threads") == 1);
  CHECK(result.metrics.at("train/deterministic") == 1);
}

namespace {

/// A set that has a sample less whenever it is asked.
struct Shrinking {
  std::shared_ptr<std::int64_t> left = std::make_shared<std::int64_t>(100);
  std::int64_t size() const { return std::max<std::int64_t>((*left)--, 20); }
  data::Sample get(std::int64_t index, data::Random&) const {
    return {{"input", torch::full({3}, static_cast<float>(index))}, {"target", index % 2}};
  }
};
struct ShrinkingJob {
  torch::nn::Linear model() const { return torch::nn::Linear(3, 2); }
  auto optimizer(torch::nn::Linear& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1));
  }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  Shrinking dataset(data::Split) const { return {}; }
};

/// Large pictures for many logical ranks: what does not fit at once comes one after another.
struct Pictures {
  std::int64_t size() const { return 64 * 8; }
  data::Sample get(std::int64_t index, data::Random&) const {
    data::Tensor pixels(data::DType::kFloat32, {3, 224, 224});
    pixels.fill<float>()[0] = static_cast<float>(index);
    return {{"input", pixels}, {"target", index % 2}};
  }
};
struct PictureJob {
  torch::nn::Linear model() const { return torch::nn::Linear(1, 2); }
  auto optimizer(torch::nn::Linear& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.001));
  }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(first(batch)), batch.target);
  }
  torch::Tensor correct(torch::nn::Linear& net, const data::Batch& batch) const {
    return net->forward(first(batch)).argmax(1).eq(batch.target);
  }
  static torch::Tensor first(const data::Batch& batch) {
    return batch.input.flatten(1).narrow(1, 0, 1) / 512.0;
  }
  Pictures dataset(data::Split) const { return {}; }
};

}  // namespace

TEST_CASE("a dataset that shrinks while the job runs is an error with both sizes", "[training]") {
  auto session = init(0, nullptr);
  const auto text = failure_of(session, ShrinkingJob{});
  INFO(text);
  CHECK(text.find("set has changed") != std::string::npos);
  CHECK(text.find("when the job began") != std::string::npos);
}

TEST_CASE("a window that holds less than a step gives the same bits, under kills", "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(64, 1);
  options.micro_batch = 8;  // 64 batches of 4.8 MB a step, of which 26 are held
  options.epochs = 2;
  const auto alone = outcome_of(session, PictureJob{}, options);
  options.trainers = 2;
  options.loaders = 2;
  options.chaos = {{ChaosStep::What::kKillTrainer, 1, -1}};
  CHECK(outcome_of(session, PictureJob{}, options) == alone);
}

namespace {

/// What follows `part` in the names of the regions that the nodes of a cluster hold, up to the next slash.
std::multiset<std::string> regions_held(const DriverSession& session, const std::string& part) {
  std::multiset<std::string> held;
  for (const auto pid : session.embedded()->node_pids()) {
    for (const auto& file : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code gone;
      const std::string name = std::filesystem::read_symlink(file.path(), gone).string();
      const auto at = name.find(part);
      if (at == std::string::npos) continue;
      const auto begin = at + part.size();
      held.insert(name.substr(begin, name.find('/', begin) - begin));
    }
  }
  return held;
}

}  // namespace

// Each generation's group left its memory in the node until all who had been in it were dead, and a dead
// trainer's batches until the loaders were.
TEST_CASE("the memory of a generation goes with it, and that of a trainer", "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(4, 4);
  using What = ChaosStep::What;
  options.chaos = {{What::kKillTrainer, 2, -1}, {What::kKillTrainer, 6, -1}, {What::kKillTrainer, 10, -1}};
  std::size_t most = 0;
  std::set<std::string> feeds;  // of trainers, at the last step
  int trainers = 0;
  options.on_event = [&](const report::Event& event) {
    const auto* done = std::get_if<report::StepDone>(&event);
    if (done == nullptr) return;
    most = std::max(most, regions_held(session, "/group/").size());
    const auto held = regions_held(session, "/batches/");
    feeds = {held.begin(), held.end()};
    trainers = done->trainers_alive;
  };
  CHECK(train::run(session, TextJob{}, options).faults >= 2);
  CHECK(most >= 1);
  CHECK(most <= 2);  // of the generation that runs, and of one that forms or ends
  CHECK(feeds.size() >= 1);
  CHECK(static_cast<int>(feeds.size()) <= trainers);
}

// It was the trainer's own, beside what its node may hand out.
TEST_CASE("the memory of a group of one rank is its node's, one region for the run", "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(2, 1);
  std::size_t most = 0;
  options.on_event = [&](const report::Event& event) {
    if (std::holds_alternative<report::StepDone>(event))
      most = std::max(most, regions_held(session, "/group/").size());
  };
  CHECK(train::run(session, TextJob{}, options).exit_code() == 0);
  CHECK(most == 1);
}

namespace {

/// A dataset of LibTorch's: two clouds of points.
using OptionalSize = decltype(std::declval<const torch::data::datasets::MNIST&>().size());
struct Clouds : torch::data::datasets::Dataset<Clouds> {
  explicit Clouds(std::int64_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto side = static_cast<std::int64_t>(index % 2);
    const auto at = static_cast<double>(index);
    return {torch::full({8}, side == 0 ? -1.0 : 1.0) + torch::arange(8).mul(at).sin(), torch::tensor(side)};
  }
  OptionalSize size() const override { return static_cast<std::size_t>(count_); }

 private:
  std::int64_t count_;
};
/// The same without targets; and ones that cannot be had by index.
struct Bare : torch::data::datasets::Dataset<Bare, torch::data::TensorExample> {
  torch::data::TensorExample get(std::size_t index) override {
    return torch::full({2}, static_cast<float>(index));
  }
  OptionalSize size() const override { return known ? OptionalSize(4) : OptionalSize(); }
  bool known = true;
};

/// Its training set is split: 60 to train on, 20 to watch. Without `holds_back` all 80 train.
template <bool holds_back>
struct CloudJob {
  static constexpr bool kHasValidation = holds_back;
  std::int64_t seed = 4;

  torch::nn::Linear model() const { return torch::nn::Linear(8, 2); }
  auto optimizer(torch::nn::Linear& net) const { return torch::optim::SGD(net->parameters(), 0.05); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  void apply(train::Apply& a) const {
    a.clip_grad_norm(0.1);
    a.step();
  }
  auto scheduler(torch::optim::SGD& optimizer) const {
    return train::every_step(torch::optim::StepLR(optimizer, 4, 0.5));
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const {
    const torch::data::transforms::TensorLambda<> scaled([](const torch::Tensor& x) { return x.sub(0.1); });
    if (split == data::Split::kTest) return data::share(data::from_torch(Clouds(30).map(scaled)));
    const auto parts = data::random_split(data::from_torch(Clouds(80).map(scaled)), {60, 20}, 1);
    return data::share(parts[split == data::Split::kTrain ? 0 : 1]);
  }
};

}  // namespace

TEST_CASE("a validation set is watched, and leaves training and the test set as they were", "[training]") {
  auto session = init(0, nullptr);
  const auto without = outcome_of(session, CloudJob<false>{}, options_of(4, 1));
  CHECK(without.metrics.size() == 3);  // both losses, and the accuracy of the test set
  auto options = options_of(4, 1);
  options.epochs = 12;
  options.stop_early = {.metric = "validation/loss", .patience = 1, .min_delta = 0.02};
  std::vector<report::Metrics> values;
  options.on_event = [&](const report::Event& event) {
    if (const auto* step = std::get_if<report::StepDone>(&event)) values.push_back(step->values);
  };
  const auto alone = outcome_of(session, CloudJob<true>{}, options);
  const auto values_alone = std::exchange(values, {});
  REQUIRE(values_alone.size() == static_cast<std::size_t>(alone.steps));
  CHECK(values_alone[0].at("learning_rate") == 0.05);
  CHECK(values_alone[0].at("gradient_norm") > 0.1);  // before it was clipped
  CHECK(values_alone[5].at("learning_rate") < 0.05);
  CHECK(alone.metrics.contains("validation/accuracy"));
  CHECK(alone.metrics.at("validation/loss") != alone.metrics.at("test/loss"));
  CHECK(alone.steps < 12 * 3);
  options.trainers = 3;
  options.loaders = 2;
  options.chaos = {{ChaosStep::What::kKillTrainer, 2, 1}};
  CHECK(outcome_of(session, CloudJob<true>{}, options) == alone);
  CHECK(values == values_alone);
  CHECK_THROWS_WITH(train::run(session, CloudJob<false>{}, options),
                    Catch::Contains("validation/loss") && Catch::Contains("has no validation set") &&
                        Catch::Contains("kHasValidation"));
  auto same = options_of(4, 2);
  auto with = outcome_of(session, CloudJob<true>{}, same);
  std::erase_if(with.metrics, [](const auto& metric) { return metric.first.starts_with("validation/"); });
  CHECK(with == without);
}

TEST_CASE("a dataset of LibTorch's gives its examples, through its transforms, stacked or not",
          "[training]") {
  namespace transforms = torch::data::transforms;
  const auto at = [](const data::Dataset& dataset, std::int64_t index) {
    data::Random random({}, index);
    return dataset.get(index, random);
  };
  const auto input = [](const data::Sample& sample) { return static_cast<torch::Tensor>(sample["input"]); };
  const auto plain = data::from_torch(Clouds(6));
  CHECK(plain.size() == 6);
  CHECK(torch::equal(input(at(plain, 3)), Clouds(6).get(3).data));
  CHECK(at(plain, 3)["target"].values<std::int64_t>()[0] == 1);
  const transforms::TensorLambda<> halve([](const torch::Tensor& x) { return x / 2; });
  const auto scaled = data::from_torch(Clouds(6).map(halve));
  CHECK(torch::equal(input(at(scaled, 4)), Clouds(6).get(4).data / 2));
  const auto stacked = data::from_torch(Clouds(6).map(transforms::Stack<>()));
  CHECK(torch::equal(input(at(stacked, 5)), Clouds(6).get(5).data));
  CHECK(at(stacked, 5)["target"].shape().empty());
  const auto bare = data::from_torch(Bare());
  CHECK(at(bare, 2).fields().size() == 1);
  CHECK(input(at(bare, 2))[1].item<float>() == 2);
  Bare unknown;
  unknown.known = false;
  CHECK_THROWS_WITH(data::from_torch(unknown), Catch::Contains("does not know"));
  CHECK_THROWS(at(plain, 0)["other"]);
}

TEST_CASE("weights draw what torch.multinomial draws", "[training]") {
  for (const std::uint64_t seed : {0ULL, 7ULL, 12345678901ULL}) {
    for (const std::int64_t n : {1, 2, 5, 1000}) {
      torch::manual_seed(seed + 1);
      const auto weights = torch::rand({n}, torch::kFloat64) * 3;
      if (n > 4) weights[2] = 0;
      auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      const auto theirs = torch::multinomial(weights, 5000, true, generator);
      const auto ours =
          data::multinomial({weights.data_ptr<double>(), static_cast<std::size_t>(n)}, 5000, seed);
      CHECK(std::equal(ours.begin(), ours.end(), theirs.data_ptr<std::int64_t>()));
    }
  }
}

TEST_CASE("torch tensors become fields and fields torch tensors, without a copy", "[training]") {
  const auto image = torch::randn({3, 4});
  const data::Tensor ours = image;
  CHECK(ours.shape() == data::Shape{3, 4});
  CHECK(ours.bytes().data() == static_cast<const std::byte*>(image.data_ptr()));
  const torch::Tensor back = ours;
  CHECK(back.data_ptr() == image.data_ptr());
  const data::Tensor turned = image.t();
  CHECK(torch::equal(static_cast<torch::Tensor>(turned), image.t()));
  for (const auto& [mine, theirs] : data::kTorchDTypes) {
    const data::Tensor one = torch::ones({2}, theirs);
    CHECK(one.dtype() == mine);
    CHECK(static_cast<torch::Tensor>(one).scalar_type() == theirs);
  }
  CHECK_THROWS_AS(data::Tensor(torch::ones({2}, torch::kComplexFloat)), BadConfig);
  CHECK_THROWS_AS(data::Tensor(torch::Tensor()), BadConfig);
  const data::Batch batch{image, torch::ones({3}, torch::kLong)};
  CHECK(batch.size() == 3);
  CHECK(batch["input"].data_ptr() == image.data_ptr());
  CHECK_THROWS_WITH(batch["tokens"], Catch::Contains("'tokens'") && Catch::Contains("'input' 'target'"));
}

namespace {

/// Samples of 72 MB.
struct Films {
  std::int64_t size() const { return 4; }
  data::Sample get(std::int64_t index, data::Random&) const {
    data::Tensor frames(data::DType::kFloat32, {6, 3, 1000, 1000});
    auto values = frames.fill<float>();
    values.front() = values.back() = static_cast<float>(index + 1);
    return {{"input", frames}, {"target", index % 2}};
  }
};
struct FilmJob {
  torch::nn::Linear model() const { return torch::nn::Linear(2, 2); }
  auto optimizer(torch::nn::Linear& net) const { return torch::optim::SGD(net->parameters(), 0.01); }
  torch::Tensor loss(torch::nn::Linear& net, const data::Batch& batch) const {
    const auto flat = batch.input.flatten(1);
    const auto ends = torch::stack({flat.select(1, 0), flat.select(1, flat.size(1) - 1)}, 1);
    return torch::nn::functional::cross_entropy(net->forward(ends), batch.target);
  }
  torch::Tensor correct(torch::nn::Linear&, const data::Batch& batch) const { return batch.target.eq(0); }
  Films dataset(data::Split) const { return {}; }
};

}  // namespace

// Was: "cannot send a batch of 72000256 bytes", told as the dataset's own error. The third ended the job.
TEST_CASE("batches of more bytes than a message holds reach trainers on another node", "[training]") {
  auto options = options_of(2, 1);
  options.micro_batch = 1;
  options.epochs = 1;
  Trained alone;
  {
    auto session = init(0, nullptr);
    alone = outcome_of(session, FilmJob{}, options);
  }
  auto session = init(0, nullptr, {.nodes = 2});
  options.trainers = 2;  // one of them is not on the loader's node
  CHECK(outcome_of(session, FilmJob{}, options) == alone);
}

}  // namespace training_data_test
