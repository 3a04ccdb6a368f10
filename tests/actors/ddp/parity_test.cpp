// 100 steps of PyTorch's, against ours. golden/make_ddp_golden.py trains with DistributedDataParallel and
// each of its features, with 2 ranks over gloo, and writes golden/ddp_golden.txt;
// make_sync_batch_norm_golden.py with BatchNorm on the batches of all ranks, and make_horovod_golden.py with
// what a DistributedOptimizer reduces.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "actors/ddp/autocast.hpp"
#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/distributed_optimizer.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/ddp/sync_batch_norm.hpp"
#include "tests/actors/ddp/golden_losses.hpp"
#include "tests/actors/ddp/normed_net.hpp"
#include "tests/actors/ddp/support.hpp"
#include "tests/actors/ddp/tower.hpp"

namespace troupe::train::testing {
namespace {

constexpr int kSteps = 100;
constexpr int kBatch = 6;
constexpr double kTolerance = 1e-5;

/// The goldens are of torch 2.13. LibTorch 1.13 adds products of bfloat16 in another way: its own difference,
/// of one rounding to 8 bits here and there.
double tolerance_of(const std::string& name) {
  return name == "autocast" && TORCH_VERSION_MAJOR < 2 ? 5e-3 : kTolerance;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool with_norm) {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
    register_module("spare", spare);
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(16));
    const torch::NoGradGuard no_grad;
    int position = 0;
    for (auto& item : named_parameters()) {
      ++position;
      if (item.key().rfind("norm", 0) == 0) continue;  // stays 1 and 0
      set_golden_values(item.value(), position, 0.25);
    }
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_spare) {
    torch::Tensor hidden = a->forward(x);
    if (norm) hidden = norm->forward(hidden);
    hidden = torch::tanh(hidden);
    if (with_spare) hidden = hidden + 0.1 * torch::tanh(spare->forward(x));
    return c->forward(torch::tanh(b->forward(hidden)));
  }
  torch::nn::Linear a{12, 16}, b{16, 16}, c{16, 4}, spare{12, 16};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

struct Batch {
  torch::Tensor x, y;
};
Batch batch_of(int step, int rank) {
  Batch batch{torch::empty({kBatch, 12}), torch::empty({kBatch}, torch::kInt64)};
  for (int i = 0; i < kBatch * 12; ++i)
    batch.x.data_ptr<float>()[i] = static_cast<float>(std::sin(0.37 * i + 1.7 * step + 0.9 * rank));
  for (int i = 0; i < kBatch; ++i) batch.y.data_ptr<std::int64_t>()[i] = (i * 3 + step + rank) % 4;
  return batch;
}

bool uses_spare(const std::string& name, int step, int rank) {
  if (name != "unused") return true;
  return step % 3 == 2 || (step % 3 == 1 && rank == 1);
}

/// One rank of one case: its losses, and the scales of its scaler.
class Case {
 public:
  Case(std::string name, std::shared_ptr<collectives::ProcessGroup> group)
      : name_(std::move(name)),
        group_(std::move(group)),
        net_(name_ == "ddp"),
        ddp_(net_, group_, options()),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(0.02).momentum(0.5)),
        scaler_(scaler_options(), group_) {
    losses_.precision(10);
    scales_.precision(10);
    if (name_ == "allreduce") ddp_.register_comm_hook(allreduce());
    if (name_ == "fp16") ddp_.register_comm_hook(fp16_compress());
    if (name_ == "bf16") ddp_.register_comm_hook(bf16_compress());
    if (name_ == "power_sgd") ddp_.register_comm_hook(power_sgd({.start_iteration = 2}));
    if (name_ == "power_sgd_2") {
      ddp_.register_comm_hook(
          power_sgd({.matrix_approximation_rank = 2, .start_iteration = 2, .min_compression_rate = 1.5}));
    }
  }

  std::string run() {
    const bool joins = name_.rfind("join", 0) == 0;
    const int steps = joins && group_->rank() == 1 ? 60 : kSteps;
    const auto train = [&] {
      for (int i = 0; i < steps; ++i) step(i);
    };
    if (joins) {
      ddp_.join(train, {.divide_by_initial_world_size = name_ == "join"});
    } else {
      train();
    }
    const torch::NoGradGuard no_grad;
    net_->eval();
    const Batch last = batch_of(5000, 0);
    losses_ << torch::nn::functional::cross_entropy(net_->forward(last.x, true), last.y).item<double>();
    return losses_.str() + "\n" + scales_.str();
  }

 private:
  DdpOptions options() const { return {.find_unused_parameters = name_ == "unused"}; }
  GradScalerOptions scaler_options() const { return {.growth_interval = 5, .enabled = name_ == "scaler"}; }

  torch::Tensor loss(int step) {
    const Batch batch = batch_of(step, group_->rank());
    torch::Tensor output;
    {
      const Autocast autocast(torch::kCPU, torch::kBFloat16, name_ == "autocast");
      output = ddp_->forward(batch.x, uses_spare(name_, step % kSteps, group_->rank()));
    }
    return torch::nn::functional::cross_entropy(output.to(torch::kFloat32), batch.y);
  }

  void step(int i) {
    for (auto& parameter : net_->parameters()) parameter.mutable_grad() = torch::Tensor();
    if (name_ == "no_sync") {
      const auto guard = ddp_.no_sync();
      loss(i + 1000).backward();
    }
    torch::Tensor value = loss(i);
    if (name_ == "scaler" && i % 17 == 10 && group_->rank() == 1) value = value * INFINITY;
    losses_ << value.item<double>() << ' ';
    scaler_.scale(value).backward();
    scaler_.step(optimizer_);
    scaler_.update();
    if (name_ == "scaler") scales_ << scaler_.get_scale() << ' ';
  }

  std::string name_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  Net net_;
  DistributedDataParallel<Net> ddp_;
  torch::optim::SGD optimizer_;
  GradScaler scaler_;
  std::ostringstream losses_, scales_;
};

std::vector<double> numbers(const std::string& text) {
  std::istringstream words(text);
  std::vector<double> found;
  for (std::string word; words >> word;) found.push_back(std::stod(word));  // inf, too
  return found;
}

/// By "case rank": losses.
std::map<std::string, std::vector<double>> goldens() {
  std::ifstream file(TROUPE_GOLDEN_DIR "/ddp_golden.txt");
  std::map<std::string, std::vector<double>> found;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(" : ");
    found[line.substr(0, colon)] = numbers(line.substr(colon + 3));
  }
  return found;
}

double largest_difference(const std::vector<double>& ours, const std::vector<double>& theirs) {
  if (ours.size() != theirs.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i] != theirs[i]) worst = std::max(worst, std::abs(ours[i] - theirs[i]));
  }
  return worst;
}

TEST_CASE("100 steps agree with PyTorch's") {
  torch::set_num_threads(1);
  const auto golden = goldens();
  REQUIRE(golden.size() == 25);
  const std::string name =
      GENERATE(as<std::string>(), "ddp", "allreduce", "fp16", "bf16", "power_sgd", "power_sgd_2", "no_sync",
               "unused", "join", "join_current", "scaler", "autocast");
  const auto said = fork_ddp(2, [&](auto group) { return Case(name, group).run(); });
  for (int rank = 0; rank < 2; ++rank) {
    const std::string& text = said[static_cast<std::size_t>(rank)];
    CAPTURE(name, rank);
    if (text.rfind("threw", 0) == 0) FAIL(text);
    const std::size_t line = text.find('\n');
    const double worst =
        largest_difference(numbers(text.substr(0, line)), golden.at(name + " " + std::to_string(rank)));
    CHECK(worst < tolerance_of(name));
    if (std::getenv("TROUPE_SHOW_PARITY")) WARN(name << " rank " << rank << ": largest difference " << worst);
    if (name == "scaler") CHECK(numbers(text.substr(line)) == golden.at("scaler scale"));
  }
}

/// Holds each rank's losses to the golden's.
void check_losses(const std::vector<std::string>& said, const std::vector<double>& golden) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    CAPTURE(rank, said[rank]);
    REQUIRE(said[rank].find("threw") == std::string::npos);
    CHECK(largest_difference(numbers(said[rank]), golden) < kTolerance);
  }
}

/// The sum over the ranks.
double summed(collectives::ProcessGroup& group, double value) {
  std::vector<double> all{value};
  group.all_reduce(all)->wait();
  return all[0];
}

std::string normed_losses(const Group& group, const std::string& kind) {
  normed::NormedNet net = convert_sync_batchnorm(normed::NormedNet(kind), group);
  DistributedDataParallel ddp(net, group);
  torch::optim::SGD optimizer = normed::optimizer_of(net);
  std::ostringstream losses;
  losses.precision(10);
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = normed::part_of_batch(kind, step, group->rank(), group->size());
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        ddp(x), y, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    ddp.backward(loss, static_cast<double>(x.size(0)));
    optimizer.step();
    losses << summed(*group, loss.item<double>()) / normed::kBatch << ' ';
  }
  net->eval();
  const auto [x, y] = normed::whole_batch(kind, 5000);
  losses << torch::nn::functional::cross_entropy(net->forward(x), y).item<double>();
  return losses.str();
}

TEST_CASE("100 steps with SyncBatchNorm agree with PyTorch's BatchNorm on the batches of all ranks") {
  torch::set_num_threads(1);
  const std::string kind = GENERATE(as<std::string>(), "flat", "1d", "2d", "3d");
  const int ranks = GENERATE(2, 3);
  CAPTURE(kind, ranks);
  const auto golden = golden_losses(TROUPE_GOLDEN_DIR "/sync_batch_norm_golden.txt").at(kind);
  REQUIRE(golden.size() == kSteps + 1);
  check_losses(fork_ddp(ranks, [&](const Group& group) { return normed_losses(group, kind); }), golden);
}

/// As in make_horovod_golden.py.
using OptimizerOf = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<torch::Tensor>);
struct HorovodCase {
  std::string name;
  int ranks;
  DistributedOptimizerOptions options;
  OptimizerOf make;
};

std::string horovod_losses(const Group& group, const HorovodCase& of) {
  fsdp::Tower net;
  const auto inner = of.make(net->parameters());
  DistributedOptimizer optimizer(*inner, net->named_parameters(), group, of.options);
  const int passes = of.options.backward_passes_per_step;
  std::ostringstream losses;
  losses.precision(10);
  for (int step = 0; step < kSteps; ++step) {
    double told = 0;
    optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const auto [x, y] = fsdp::batch_of(step * passes + pass, group->rank(), of.ranks);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), y);
      loss.backward();
      told += loss.item<double>() / passes / of.ranks;
    }
    optimizer.step();
    losses << summed(*group, told) << ' ';
  }
  return losses.str();
}

TEST_CASE("100 steps of a DistributedOptimizer agree with PyTorch's nets, reduced as Horovod does") {
  torch::set_num_threads(1);
  const OptimizerOf sgd =
      [](std::vector<torch::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.005).momentum(0.5));
  };
  const OptimizerOf small_sgd =
      [](std::vector<torch::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 1e-3);
  };
  const OptimizerOf adamw = [](std::vector<torch::Tensor> parameters) {
    return fsdp::make_optimizer("adamw", std::move(parameters));
  };
  const auto of = GENERATE_COPY(
      HorovodCase{"adasum", 2, {.op = GradientOp::kAdasum}, sgd},
      HorovodCase{"adasum_of_small_changes", 4, {.op = GradientOp::kAdasum}, small_sgd},
      HorovodCase{"adasum_of_2_passes", 4, {.backward_passes_per_step = 2, .op = GradientOp::kAdasum}, adamw},
      HorovodCase{"average_of_3_passes", 2, {.backward_passes_per_step = 3}, sgd});
  CAPTURE(of.name);
  const auto golden = golden_losses(TROUPE_GOLDEN_DIR "/horovod_golden.txt").at(of.name);
  REQUIRE(golden.size() == kSteps);
  check_losses(fork_ddp(of.ranks, [&](const Group& group) { return horovod_losses(group, of); }), golden);
}

}  // namespace
}  // namespace troupe::train::testing
