// What a loop brings beside its steps, on real processes: a length and evaluations in steps, schedules that
// know the run, a plateau, averaged weights, a begin from other jobs' files, evaluation alone. Small nets,
// with BatchNorm and dropout.
#include <torch/serialize.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/data/digits.hpp"
#include "actors/data/torch.hpp"
#include "actors/train/api/predict.hpp"
#include "actors/train/api/train.hpp"
#include "actors/train/api/weights.hpp"
#include "tests/e2e/small_net.hpp"
#include "tests/e2e/support.hpp"

namespace training_loop_test {

using namespace troupe;
using Catch::Contains;
using e2e::TempFolder;
using train::ChaosStep;

namespace {

using Net = e2e::SmallNet;

/// 40 steps an epoch of two leaves, or 20 of four.
struct Cosine {
  double lr = 0.05;
  std::int64_t steps = 0;  ///< of the schedule; 0: the run's
  std::int64_t classes = 10;

  Net model() const { return Net(classes); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  auto scheduler(torch::optim::SGD& o) const { return train::cosine(o, {.warmup_steps = 5, .steps = steps}); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target.remainder(classes));
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 400 : 600});
  }
};

/// The rate goes down whenever an evaluation is no better; evaluations use an average of the weights.
struct Plateau {
  double lr = 0.05;
  Net model() const { return Net(10); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  auto scheduler(torch::optim::SGD& o) const {
    return train::reduce_on_plateau(o, {.metric = "test/noise", .factor = 0.5, .patience = 0});
  }
  train::Ema ema() const { return {.decay = 0.9}; }
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  torch::Tensor evaluate(Net& net, const data::Batch& batch, train::Leaf& at) const {
    const auto logits = net->forward(batch.input);
    train::count_confusion(at, logits, batch.target, 10);
    train::count_top_k(at, logits, batch.target, 3);
    at.count("noise", logits.abs().max(), 1);
    return torch::nn::functional::cross_entropy(logits, batch.target);
  }
  data::Digits dataset(data::Split split) const { return Cosine().dataset(split); }
};

/// A model that is made once training has begun is another one. Each that is is noted by its process.
struct Changing {
  std::string folder;  ///< empty: it is always the same

  Net model() const {
    const bool other = !folder.empty() && std::filesystem::exists(folder + "/trains");
    if (other) std::ofstream(folder + "/made-by-" + std::to_string(::getpid())).close();
    return Net(other ? 11 : 10);
  }
  auto optimizer(Net& net) const { return Cosine().optimizer(net); }
  /// Behind the kill it waits until another model was refused, and one more made.
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    static std::atomic<int> calls = 0;
    if (!folder.empty()) std::ofstream(folder + "/trains").close();
    if (!folder.empty() && ++calls > 30) {
      const auto made = [&] {
        const std::filesystem::directory_iterator all(folder);
        return std::distance(begin(all), end(all)) - 1;
      };
      if (!e2e::eventually([&] { return made() >= 2; }, std::chrono::seconds(90)))
        throw std::runtime_error("no replacement came");
    }
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  data::Digits dataset(data::Split split) const { return Cosine().dataset(split); }
};

train::TrainOptions small(int trainers, int leaves = 2) {
  return {.logical_ranks = leaves,
          .micro_batch = 5,
          .epochs = 1,
          .trainers = trainers,
          .seed = 5,
          .show_progress = false};
}

std::vector<ChaosStep> kills(std::initializer_list<std::int64_t> steps) {
  std::vector<ChaosStep> chaos;
  for (const std::int64_t step : steps) chaos.push_back({ChaosStep::What::kKillTrainer, step, -1});
  return chaos;
}

template <class Job>
std::string failure_of(const DriverSession& session, const Job& job, const train::TrainOptions& options) {
  return e2e::message_of([&] { train::run(session, job, options); });
}

/// Warnings and where a run begins.
struct Told {
  std::string text;
  std::vector<std::int64_t> evaluated;
  std::vector<double> rates;
  auto listener() {
    return [this](const report::Event& event) {
      if (const auto* warning = std::get_if<report::Warning>(&event)) text += warning->text + "\n";
      if (const auto* resumed = std::get_if<report::Resumed>(&event))
        text += "begins at " + std::to_string(resumed->global_step) + " from " + resumed->path + "\n";
      if (const auto* within = std::get_if<report::Evaluated>(&event))
        evaluated.push_back(within->global_step);
      if (const auto* step = std::get_if<report::StepDone>(&event))
        rates.push_back(step->values.at("learning_rate"));
    };
  }
};

/// Those of the sets that are evaluated.
report::Metrics of_test(const report::Metrics& all) {
  report::Metrics some;
  for (const auto& [name, value] : all) {
    if (name.starts_with("test/")) some[name] = value;
  }
  return some;
}

}  // namespace

// Was: all of it was read, and sent to a replica.
TEST_CASE("a file that is none of weights is refused by its first bytes, however large it is") {
  const e2e::TempFolder folder;
  const std::string path = folder / "w";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, std::uintmax_t{8} << 40);  // zeros, which take no room
  CHECK_THROWS_WITH(train::read_weights(path),
                    Catch::Contains("cannot use safetensors file '" + path + "'") &&
                        Catch::Contains("its header does not begin with '{'"));
  CHECK_THROWS_WITH(train::read_weights(folder.path()), Catch::Contains("it is no file"));
  CHECK_THROWS_WITH(train::read_weights("/dev/zero"), Catch::Contains("it is no file"));
}

TEST_CASE("steps, evaluations within epochs, a plateau and averages: one hash, one set of figures",
          "[training]") {
  auto session = init(0, nullptr);
  auto options = small(1);
  options.max_steps = 53;
  options.evaluate_every = 7;
  options.evaluation_samples = 550;  // of 600, in pieces of 250
  Told told;
  options.on_event = told.listener();
  const auto alone = train::run(session, Plateau{}, options);
  CHECK(alone.steps == 53);
  CHECK_FALSE(alone.stopped);
  CHECK(told.evaluated ==
        std::vector<std::int64_t>{7, 14, 21, 28, 35, 42, 49, 53});  // and the epoch's end, 40
  CHECK(told.rates.back() < told.rates.front());
  const auto& confusion = alone.confusion.at("test/");
  CHECK(confusion.size() == 100);
  CHECK(std::accumulate(confusion.begin(), confusion.end(), 0.0) == 550);
  for (const char* name :
       {"test/f1", "test/precision", "test/recall", "test/top3", "test/loss", "train/loss"})
    CHECK(alone.metrics.contains(name));

  options.on_event = {};
  options.trainers = 2;
  CHECK(train::run(session, Plateau{}, options).state_hash == alone.state_hash);
  // At an evaluation, behind it, and while a newcomer follows.
  options.chaos = kills({7, 15, 21, 40});
  const auto killed = train::run(session, Plateau{}, options);
  CHECK(killed.faults >= 3);
  CHECK(killed.state_hash == alone.state_hash);
  CHECK(killed.metrics == alone.metrics);
  CHECK(killed.confusion == alone.confusion);

  // What the state of a checkpoint came to is in its manifest: the schedule sees it before the next step.
  const TempFolder folder;
  options.chaos.clear();
  options.checkpoint_folder = folder.path();
  options.max_steps = 28;
  train::run(session, Plateau{}, options);
  options.max_steps = 53;
  options.resume = true;
  options.trainers = 1;
  const auto resumed = train::run(session, Plateau{}, options);
  CHECK(resumed.state_hash == alone.state_hash);

  SECTION("the averages come back") {
    const auto averaged = resumed.load_averaged(Plateau{}.model());
    const auto weights = resumed.load(Plateau{}.model());
    CHECK_FALSE(torch::equal(averaged->out->weight, weights->out->weight));
    CHECK(torch::equal(averaged->norm->running_mean, weights->norm->running_mean));
    const auto plain = train::run(session, Cosine{}, small(1));
    CHECK_THROWS_WITH(plain.load_averaged(Cosine{}.model()), Contains("no averaged weights"));
  }
  SECTION("weights are evaluated alone, to the same figures") {
    auto evaluates = small(2);
    evaluates.evaluation_samples = 550;
    evaluates.events_json = folder.path() + "/events.json";
    e2e::write_file(evaluates.events_json, "the run's");
    CHECK(train::evaluate(session, Plateau{}, resumed, evaluates) == of_test(resumed.metrics));
    CHECK(e2e::read_file(evaluates.events_json) == "the run's");
    evaluates.trainers = 1;
    CHECK(train::evaluate(session, Plateau{}, folder.path(), evaluates) == of_test(resumed.metrics));
    evaluates.evaluation_samples = 0;
    CHECK(train::evaluate(session, Plateau{}, resumed, evaluates) != of_test(resumed.metrics));
    CHECK_THROWS_WITH(train::evaluate(session, Plateau{}, train::RunResult{}, evaluates),
                      Contains("there are no weights"));
  }
}

// Was: what the state had come to at the hold was lost, so the rate went down one evaluation later.
TEST_CASE("a run that goes on from its state at a hold reduces rates, and stops, where it had not stopped",
          "[training]") {
  auto session = init(0, nullptr);
  auto options = small(1);
  options.epochs = 6;
  options.stop_early = {.metric = "test/noise", .patience = 2, .mode = train::Mode::kMin};
  const auto whole = train::run(session, Plateau{}, options);
  REQUIRE(whole.stopped_early);
  REQUIRE(whole.steps == 120);  // the first evaluation was the best
  auto holding = options;
  holding.hold = true;
  auto held = train::start(session, Plateau{}, holding);
  const auto first = held.snapshot();
  held.stop();
  held.wait();
  REQUIRE(first.step() == 40);
  const auto gone_on = train::start(session, Plateau{}, options, first).wait();
  CHECK(gone_on.state_hash == whole.state_hash);
  CHECK(gone_on.steps == 120);
  CHECK(gone_on.metrics == whole.metrics);

  // Another seed is another job: its patience begins here, and its rate knows what the state came to.
  options.seed = 6;
  Told told;
  options.on_event = told.listener();
  train::start(session, Plateau{}, options, first).wait();
  REQUIRE(told.rates.size() == 120);
  CHECK(told.rates[39] == 0.05);
  CHECK(told.rates[40] == 0.025);
}

// One replacement on another kind of host ended the whole job.
TEST_CASE("a replacement that is not like the others is its host's fault: the others train on",
          "[training]") {
  auto session = init(0, nullptr);
  auto options = small(2);
  options.rehearse = false;  // a copy in the trainer that trains would be another model, too
  const auto alike = train::run(session, Changing{}, options);
  const TempFolder folder;
  Told told;
  options.on_event = told.listener();
  options.chaos = kills({10});
  const auto result = train::run(session, Changing{folder.path()}, options);
  CHECK(result.steps == 40);
  CHECK(result.state_hash == alike.state_hash);
  CHECK_THAT(told.text, Contains("a trainer could not be started: two trainers made other models"));
}

TEST_CASE("a schedule by name knows how long the run is, and may not be longer", "[training]") {
  auto session = init(0, nullptr);
  Told told;
  auto options = small(2);
  options.on_event = told.listener();
  const auto result = train::run(session, Cosine{}, options);
  REQUIRE(told.rates.size() == 40);
  CHECK(told.rates[0] == 0);
  CHECK(told.rates[1] == Approx(0.05 / 5));
  CHECK(told.rates[5] == Approx(0.05));
  CHECK(told.rates[39] == Approx(0.05 * 0.5 * (1 + std::cos(M_PI * 34 / 35))));
  options.on_event = {};
  options.chaos = kills({3, 20});
  CHECK(train::run(session, Cosine{}, options).state_hash == result.state_hash);
  CHECK_THAT(failure_of(session, Cosine{.steps = 41}, small(2)),
             Contains("Cosine::scheduler") && Contains("cosine() has 41 steps, and the run 40"));
}

TEST_CASE("a job begins with another one's weights, from a folder or a file, under kills, too",
          "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder, files;
  std::filesystem::create_directory(files.path());
  auto options = small(1);
  options.checkpoint_folder = folder.path();
  const auto first = train::run(session, Cosine{}, options);

  Told told;
  auto second = small(1);
  second.from = folder.path();
  second.on_event = told.listener();
  const Cosine slower{.lr = 0.01};
  const auto alone = train::run(session, slower, second);
  CHECK_THAT(told.text, Contains("begins at 0 from " + folder.path() + "/"));
  CHECK(told.rates.size() == 40);
  CHECK(told.rates[5] == Approx(0.01));
  CHECK(alone.state_hash != first.state_hash);
  second.trainers = 2;
  second.chaos = kills({2, 20});
  second.on_event = {};
  CHECK(train::run(session, slower, second).state_hash == alone.state_hash);

  const std::string file = files.path() + "/weights.safetensors";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(first.weights.data()),
             static_cast<std::streamsize>(first.weights.size()));
  auto from_file = small(2);
  from_file.from = file;
  CHECK(train::run(session, slower, from_file).state_hash == alone.state_hash);

  // As torch.save writes a dict.
  c10::Dict<std::string, at::Tensor> dict;
  const auto net = first.load(Cosine{}.model());
  for (const auto& tensor : train::named_tensors(net)) dict.insert(tensor.name, tensor.tensor.detach());
  const auto pickled = torch::pickle_save(c10::IValue(dict));
  from_file.from = files.path() + "/weights.pt";
  std::ofstream(from_file.from, std::ios::binary)
      .write(pickled.data(), static_cast<std::streamsize>(pickled.size()));
  CHECK(train::run(session, slower, from_file).state_hash == alone.state_hash);

  // As DistributedDataParallel of PyTorch names them.
  auto parts = checkpoint::read_safetensors("weights", first.weights).value().tensors;
  for (auto& part : parts) part.name = "module." + part.name;
  const auto wrapped = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
  from_file.from = files.path() + "/wrapped.safetensors";
  std::ofstream(from_file.from, std::ios::binary)
      .write(reinterpret_cast<const char*>(wrapped.data()), static_cast<std::streamsize>(wrapped.size()));
  CHECK(train::run(session, slower, from_file).state_hash == alone.state_hash);
  from_file.from = files.path() + "/weights.pt";

  // Another head: what fits is taken, and the rest told.
  Told partly;
  from_file.from_partial = true;
  from_file.on_event = partly.listener();
  train::run(session, Cosine{.classes = 5}, from_file);
  CHECK_THAT(partly.text, Contains("left out of '" + from_file.from +
                                   "': of another shape or type: out.weight ([10, 24] there, ") &&
                              Contains("out.bias"));
  from_file.from_partial = false;
  CHECK_THAT(
      failure_of(session, Cosine{.classes = 5}, from_file),
      Contains("do not fit the module") && Contains("out.weight ([10, 24] there, the module's is [5, 24])"));

  from_file.resume = true;
  from_file.checkpoint_folder = folder.path();
  CHECK_THAT(failure_of(session, Cosine{}, from_file), Contains("or resume"));
  auto none = small(1);
  none.from = files.path();
  CHECK_THAT(failure_of(session, Cosine{}, none), Contains("there is no checkpoint in that folder"));
  none.from = file;
  none.from_state = true;
  CHECK_THAT(failure_of(session, Cosine{}, none), Contains("it has weights and no whole state"));
  none.from = "";
  CHECK_THAT(failure_of(session, Cosine{}, none), Contains("from_state"));
}

TEST_CASE("a job goes on from another one's whole state with another rate and length, as a clone would",
          "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder;
  auto options = small(1);
  options.checkpoint_folder = folder.path();
  train::Run first = train::start(session, Cosine{}, options);
  const train::Snapshot at_end = first.pause_at_end();
  auto longer = small(1);
  longer.epochs = 2;
  const Cosine slower{.lr = 0.01};
  const auto clone = train::start(session, slower, longer, at_end).wait();
  CHECK(clone.steps == 80);

  Told told;
  longer.from = folder.path();
  longer.from_state = true;
  longer.on_event = told.listener();
  CHECK(train::run(session, slower, longer).state_hash == clone.state_hash);
  CHECK_THAT(told.text, Contains("begins at 40 from "));
  CHECK(told.rates.size() == 40);
  CHECK(told.rates[0] == Approx(0.01 * 0.5 * (1 + std::cos(M_PI * 35 / 75))));  // step 40 of 80
  longer.on_event = {};
  longer.trainers = 2;
  longer.chaos = kills({45, 60});
  CHECK(train::run(session, slower, longer).state_hash == clone.state_hash);

  // Another kind of schedule begins where it would be; what the other job kept beside is left out.
  Told other;
  longer.chaos.clear();
  longer.on_event = other.listener();
  train::run(session, Plateau{}, longer);
  CHECK_THAT(other.text, Contains("not in the file: user/"));
  CHECK(other.rates.size() == 40);
  CHECK(other.rates[0] == Approx(0.05));
  auto unlike = longer;
  unlike.micro_batch = 4;
  CHECK_THAT(failure_of(session, slower, unlike), Contains("micro-batch 5, this run has 4"));
}

TEST_CASE("a prediction is of each sample in its order, whoever computes it", "[training]") {
  auto session = init(0, nullptr);
  const auto trained = train::run(session, Cosine{}, small(1));
  auto net = trained.load(Cosine{}.model());
  net->eval();
  const auto digits = Cosine{}.dataset(data::Split::kTest);
  std::vector<torch::Tensor> inputs;
  for (std::int64_t i = 0; i < digits.size(); ++i) {
    data::Random random({}, i);
    inputs.push_back(digits.get(i, random)["input"]);
  }
  const torch::NoGradGuard no_grad;
  const auto expected = net->forward(torch::stack(inputs));
  const auto predicted = train::predict(session, Cosine{}, trained, {.batch = 70});
  CHECK(predicted.sizes() == expected.sizes());
  CHECK(torch::allclose(predicted, expected, 1e-5, 1e-6));
  CHECK(torch::equal(train::predict(session, Cosine{}, trained, {.batch = 70}), predicted));
  CHECK_THROWS_WITH(train::predict(session, Cosine{.classes = 5}, trained),
                    Contains("do not fit the module"));
  CHECK_THROWS_WITH(train::predict(session, Cosine{}, trained, {.split = data::Split::kValidation}),
                    Contains("no samples of that split"));
}

TEST_CASE("lengths and evaluations that make no sense are refused by name", "[training]") {
  auto session = init(0, nullptr);
  auto options = small(1);
  options.max_steps = -1;
  CHECK_THAT(failure_of(session, Cosine{}, options), Contains("max_steps = -1"));
  options = small(1);
  options.evaluate_every = 5;
  options.evaluate = false;
  CHECK_THAT(failure_of(session, Cosine{}, options),
             Contains("evaluate_every of a run without an evaluation"));
}

// Was: "b.weight ([2, 3] there, the module's is [2, 3])", and with from_partial the seed's weights.
TEST_CASE("weights of another floating-point type are converted, of any other named with both types") {
  const torch::NoGradGuard no_grad;
  const auto file_of = [](const torch::Tensor& weight, const torch::Tensor& bias) {
    std::vector<checkpoint::TensorView> parts;
    for (const auto& [name, tensor] : {std::pair("weight", weight), std::pair("bias", bias)}) {
      const auto type = tensor.scalar_type() == torch::kDouble ? checkpoint::DType::kF64
                        : tensor.scalar_type() == torch::kHalf ? checkpoint::DType::kF16
                                                               : checkpoint::DType::kI64;
      parts.push_back({name,
                       type,
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
    }
    return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
  };
  const auto weight = torch::tensor({{0.5, 1.25, -2.0}, {4.0, 0.0, 8.0}}, torch::kDouble);
  const auto bias = torch::tensor({0.25, -1.0}, torch::kDouble);
  torch::nn::Linear net(3, 2);
  const auto tensors = train::named_tensors(net);
  const auto converted = train::copy_weights("f", file_of(weight, bias.to(torch::kHalf)), "", tensors);
  CHECK(torch::equal(net->weight, weight.to(torch::kFloat)));
  CHECK(torch::equal(net->bias, bias.to(torch::kFloat)));
  CHECK(net->weight.scalar_type() == torch::kFloat);
  CHECK(train::text_of_converted(converted) == "1 tensor of Double to Float, 1 tensor of Half to Float");
  CHECK(to_string(converted).empty());

  const auto whole = file_of(weight, bias.to(torch::kLong));
  CHECK_THROWS_WITH(train::copy_weights("f", whole, "", tensors),
                    Contains("bias ([2] of Long there, the module's is [2] of Float)"));
  CHECK(train::copy_matching_weights("f", whole, "", tensors).other.size() == 1);
}

}  // namespace training_loop_test
