// Weights of a run that trains on, in a deployment of the same program: updates while requests flow. The net
// says in its answers at which step its weights are, and whether all of them are of the same one.
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/data/digits.hpp"
#include "actors/serve/serve.hpp"
#include "actors/train/api/train.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/support.hpp"

namespace live_weights_test {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr std::int64_t kSteps = 600;
/// More than a piece in which weights travel.
constexpr std::int64_t kElements = 1'200'000;

/// Each step takes 1 of every weight: the least and the most of them say the step.
struct CountdownImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::NoGradGuard no_grad;
    return torch::stack({weight.min(), weight.max()}).expand({x.size(0), 2});
  }
  torch::Tensor weight = register_parameter("weight", torch::zeros({kElements}));
};
TORCH_MODULE(Countdown);

struct Counts {
  std::string folder;  ///< until "done" is there, the job takes its time
  Countdown model() const { return Countdown(); }
  torch::optim::SGD optimizer(Countdown& net) const { return torch::optim::SGD(net->parameters(), 1.0); }
  torch::Tensor loss(Countdown& net, const data::Batch&) const {
    const auto is_done = [&] { return ::access((folder + "/done").c_str(), F_OK) == 0; };
    if (!is_done()) std::this_thread::sleep_for(20ms);
    const bool nearly = net->weight[0].item<double>() < -static_cast<double>(kSteps) + 50;
    if (nearly) e2e::eventually(is_done);  // not before the test has seen what it wants
    return net->weight.sum();
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 100 : 10});
  }
  data::FieldSpec input() const { return {.shape = {1}}; }
};
struct Averaged {
  Counts job{};
  Countdown model() const { return job.model(); }
  torch::optim::SGD optimizer(Countdown& net) const { return job.optimizer(net); }
  torch::Tensor loss(Countdown& net, const data::Batch& batch) const { return job.loss(net, batch); }
  data::Digits dataset(data::Split split) const { return job.dataset(split); }
  data::FieldSpec input() const { return job.input(); }
  train::Ema ema() const { return {.decay = 0.5}; }
};
/// Weights of another name.
struct OtherImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + bias; }
  torch::Tensor bias = register_parameter("bias", torch::zeros({1}));
};
TORCH_MODULE(Other);
struct OtherJob {
  Other model() const { return Other(); }
  data::FieldSpec input() const { return {.shape = {1}}; }
};

train::TrainOptions counting() {
  return {.logical_ranks = 2,
          .micro_batch = 5,
          .max_steps = kSteps,
          .trainers = 2,
          .evaluate = false,
          .show_progress = false};
}

/// "step 120 of Counts{...}"
std::int64_t step_in(const std::string& from) {
  return from.starts_with("step ") ? std::stoll(from.substr(5)) : -1;
}

/// Asks on and on: what each version has answered, and what went wrong.
struct Asker {
  int answers = 0;
  std::map<std::uint64_t, std::set<std::pair<double, double>>> by_version;
  std::string wrong;
  void ask(int port, const std::atomic<bool>& stop) {
    http::RawClient client(port);
    while (!stop) {
      const auto response = client.ask(http::post("/v1/counts", R"({"inputs": [[1]]})"));
      if (response.status != 200) return void(wrong = std::to_string(response.status) + response.body);
      const auto output = nlohmann::json::parse(response.body)["outputs"][0];
      by_version[std::stoull(response.headers.at("weights-version"))].emplace(output[0], output[1]);
      ++answers;
    }
  }
};

wire::Bytes zeros(const std::string& name, std::int64_t elements) {
  const torch::Tensor weight = torch::zeros({elements});
  const std::vector<checkpoint::TensorView> views{
      {name,
       checkpoint::DType::kF32,
       {elements},
       {static_cast<const std::byte*>(weight.data_ptr()), static_cast<std::size_t>(weight.nbytes())}}};
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(views).value());
}

}  // namespace

TEST_CASE(
    "a deployment takes weights from a run that trains on: no request fails, and the run ends as another",
    "[serving]") {
  auto session = init(0, nullptr);
  const e2e::TempFolder folder, undisturbed;
  e2e::write_file(undisturbed / "done", "");
  const auto alone = train::run(session, Counts{undisturbed.path()}, counting());

  const Counts job{folder.path()};
  auto run = train::start(session, job, counting());
  auto served = serve::run(session, "counts", job, zeros("weight", kElements), {.replicas = 2, .port = 0});
  std::atomic<bool> stop = false;
  std::vector<Asker> askers(2);
  std::vector<std::thread> threads;
  for (Asker& asker : askers) threads.emplace_back([&] { asker.ask(served.port(), stop); });

  std::map<std::uint64_t, std::int64_t> steps{{1, 0}};
  for (std::uint64_t version = 2; version <= 3; ++version) {
    REQUIRE(served.update(run) == version);
    steps[version] = step_in(served.weights_from());
    CHECK_THAT(served.weights_from(), Contains("Counts{"));
    CHECK(steps[version] > steps[version - 1]);
    CHECK(steps[version] < kSteps);
  }
  CHECK(served.rollback() == 2);
  CHECK(step_in(served.weights_from()) == steps[2]);

  // What the net cannot take leaves what answers.
  auto other = serve::run(session, "other", OtherJob{}, zeros("bias", 1), {.port = 0});
  CHECK_THROWS_WITH(other.update(run), Contains("weights 1 go on") && Contains("bias"));

  e2e::write_file(folder / "done", "");
  const auto result = run.wait();
  CHECK_THROWS_WITH(served.update(run), Contains("it has ended") || Contains("the run has ended"));
  CHECK(result.state_hash == alone.state_hash);
  CHECK(result.steps == kSteps);
  stop = true;
  for (auto& thread : threads) thread.join();
  for (const Asker& asker : askers) {
    CHECK(asker.wrong == "");
    CHECK(asker.answers > 0);
    for (const auto& [version, outputs] : asker.by_version) {
      const double at = -static_cast<double>(steps.at(version));
      CHECK(outputs == std::set<std::pair<double, double>>{{at, at}});
    }
  }
}

TEST_CASE("of a job with ema() the averages answer, and sharded parameters are refused", "[serving]") {
  auto session = init(0, nullptr);
  const e2e::TempFolder folder;
  const Averaged job{{folder.path()}};
  auto run = train::start(session, job, counting());
  const train::RunWeights first = run.weights();
  CHECK(first.step > 0);  // asked before the first step: it waits for that
  REQUIRE(e2e::eventually([&] { return run.weights().step > first.step + 3; }));
  const auto served = serve::run(session, "averaged", job, run, {.port = 0});
  const std::int64_t step = step_in(served.weights_from());
  double average = -1;  // after the first step the weights themselves
  for (std::int64_t k = 2; k <= step; ++k) average = (average - static_cast<double>(k)) / 2;
  const torch::Tensor answer = served.predict(torch::zeros({1, 1}));
  CHECK(answer[0][0].item<double>() == Approx(average));
  CHECK(answer[0][1].item<double>() == Approx(average));
  run.stop();
  e2e::write_file(folder / "done", "");
  run.wait();

  auto sharded = counting();
  sharded.shard = train::Shard::kParameters;
  const auto cut = train::start(session, Counts{folder.path()}, sharded);
  CHECK_THROWS_WITH(cut.weights(), Contains("sharded over its trainers"));
}

// Was: weights were read from files by name, and written by a job's result alone.
TEST_CASE("what a loop of one's own has trained is written to a file, and read again") {
  const e2e::TempFolder folder;
  const std::string file = folder.path() + "/net.safetensors";
  const auto make = [] { return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)); };
  const torch::nn::Sequential net = make(), other = make();
  train::save_weights(file, net);
  const torch::nn::Sequential read = train::load_weights(file, make());
  const auto same = [&](const torch::nn::Sequential& to) {
    const auto a = train::named_tensors(net), b = train::named_tensors(to);
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& two) {
      return one.name == two.name && torch::equal(one.tensor, two.tensor);
    });
  };
  CHECK(train::named_tensors(net).size() == 7);
  CHECK(same(read));
  CHECK_FALSE(same(other));

  const torch::Tensor odd = torch::arange(6).view({2, 3}).t();  // not contiguous
  train::save_tensors(file, std::map<std::string, torch::Tensor>{{"odd", odd}, {"none", torch::empty({0})}});
  const torch::Tensor to = torch::zeros({3, 2}, torch::kInt64);
  train::copy_weights_from(file, "", {{"odd", to}});
  CHECK(torch::equal(to, odd));
  torch::OrderedDict<std::string, torch::Tensor> dict;  // as full_state_dict() has it
  dict.insert("odd", 2 * odd);
  train::save_tensors(file, dict);
  train::copy_weights_from(file, "", {{"odd", to}});
  CHECK(torch::equal(to, 2 * odd));

  CHECK_THROWS_WITH(train::save_tensors(file, {{"a", odd}, {"a", odd}}), Contains("'a'"));
  CHECK_THROWS_WITH(train::save_tensors(file, {{"a", torch::Tensor()}}), Contains("it is undefined"));
  CHECK_THROWS_WITH(train::save_tensors(file, {{"a", odd.to(torch::kComplexFloat)}}),
                    Contains("cannot be written") && Contains("ComplexFloat"));
  CHECK_THROWS_AS(train::save_tensors(folder.path() + "/no/file", {{"a", odd}}), IoError);
  to.zero_();
  train::copy_weights_from(file, "", {{"odd", to}});  // what was refused has left the former file
  CHECK(torch::equal(to, 2 * odd));
}

}  // namespace live_weights_test
