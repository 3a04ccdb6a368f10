// Trains MNIST's or CIFAR-10's ConvNet of the examples, by a job of troupe's, by DistributedDataParallel or
// FullyShardedDataParallel by hand or by a loop of plain LibTorch, on the CPU or on GPUs: gpu_training
// mnist|cifar10 [--plain | --by-hand RANKS [--sharded] | --sync-batch-norm] [--gpus SHARE] ... Prints how
// fast it was, for compare.py:
//   samples_per_s 12345.6              from a tenth of the steps to the last
//   measured from 1700000000.1 to 1700000009.2   in seconds of Unix time
//   loss 0.1234                        of the last step
//   state sha256 01ab...          by a job: of all that a step changes
// Exits with 77 where the files of CIFAR-10 are not there. (MNIST's digits are rendered then.)
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <variant>

#include "actors/data/find_mnist.hpp"
#include "actors/ddp/sync_batch_norm.hpp"
#include "examples/cifar10/pictures.hpp"
#include "examples/mnist/digits.hpp"
#include "tests/gpu/training/loop.hpp"

namespace {

namespace data = troupe::data;
namespace train = troupe::train;
using troupe::gpu::Speed;

struct Options {
  std::string net = "mnist";
  std::string folder;
  bool plain = false;
  int by_hand = 0;
  bool sharded = false;
  bool synced = false;
  double gpus = 0;
  int trainers = 1;
  int logical_ranks = 4;
  std::int64_t batch = 25;
  int epochs = 1;
  std::int64_t samples = 0;
  std::int64_t kill_at = 0;
};

/// Digits whose BatchNorm is over all leaves of a step.
struct SyncedDigits {
  Digits digits;

  ConvNet model() const { return train::convert_sync_batchnorm(digits.model()); }
  auto optimizer(ConvNet& net) const { return digits.optimizer(net); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return digits.criterion(output, batch);
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const { return digits.dataset(split); }
};

template <class Job>
int train_by_troupe(troupe::DriverSession& session, const Job& job, const Options& o, std::int64_t size) {
  std::vector<train::ChaosStep> chaos;
  if (o.kill_at > 0) chaos.push_back({train::ChaosStep::What::kKillTrainer, o.kill_at});
  const std::int64_t a_step = o.logical_ranks * o.batch;
  Speed speed(o.epochs * (size / a_step), a_step);
  bool killed = false;
  const auto result = train::run(session, job,
                                 {.logical_ranks = o.logical_ranks,
                                  .micro_batch = o.batch,
                                  .epochs = o.epochs,
                                  .trainers = o.trainers,
                                  .seed = 7,
                                  .evaluate = false,
                                  .min_trainers = o.synced ? o.trainers : 1,  // on a GPU one leaf each
                                  .trainer_gpus = o.gpus,
                                  .chaos = chaos,
                                  .on_event = [&](const troupe::report::Event& event) {
                                    if (const auto* done = std::get_if<troupe::report::StepDone>(&event))
                                      speed.step(done->loss);
                                    killed = killed || std::holds_alternative<troupe::report::Fault>(event);
                                  }});
  if (o.kill_at > 0 && !killed) throw std::runtime_error("no trainer died: --kill-at is after the last step");
  speed.print();
  return result.exit_code();
}

troupe::gpu::LoopOptions loop_options(const Options& o) {
  return {.on_gpu = o.gpus > 0,
          .micro_batches = o.logical_ranks,
          .batch = o.batch,
          .epochs = o.epochs,
          .sharded = o.sharded};
}

template <class Job>
int train_net(troupe::DriverSession& session, const Job& job, const Options& o) {
  const auto dataset = data::share(job.dataset(data::Split::kTrain));
  if (!o.plain) return train_by_troupe(session, job, o, dataset->size());
  troupe::gpu::train_in_a_loop(job, loop_options(o), *dataset, nullptr);
  return 0;
}

/// One rank, in its process.
template <class Job>
void train_by_hand(const Job& job, const Options& o, const std::string& url, int rank) {
  const bool on_gpu = o.gpus > 0;
  const auto group = troupe::collectives::init_process_group(
      on_gpu ? "nccl" : "native", url, {.rank = rank, .size = o.by_hand, .share_gpu = on_gpu && o.gpus < 1});
  const auto dataset = data::share(job.dataset(data::Split::kTrain));
  troupe::gpu::train_in_a_loop(job, loop_options(o), *dataset, group);
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a net of the examples, and prints how fast.");
  app.add_option("net", o.net, "mnist or cifar10")->check(CLI::IsMember({"mnist", "cifar10"}));
  app.add_option("--data", o.folder,
                 "Folder with the files [default: searched; MNIST: else rendered digits]");
  app.add_flag("--plain", o.plain, "By a loop of plain LibTorch in this process");
  app.add_option(
      "--by-hand", o.by_hand,
      "By DistributedDataParallel in so many processes, a divisor of --logical-ranks: the micro-batches "
      "of a step; with --gpus below 1 they share one");
  app.add_flag("--sharded", o.sharded, "--by-hand: by FullyShardedDataParallel");
  app.add_flag("--sync-batch-norm", o.synced,
               "MNIST by a job: BatchNorm over all leaves of a step; on GPUs as many trainers as leaves");
  app.add_option("--gpus", o.gpus, "That each trainer holds: 0 (the CPU), 1, or a part of one")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--trainers", o.trainers, "Processes that compute")->capture_default_str();
  app.add_option("--logical-ranks", o.logical_ranks, "Leaves a step")->capture_default_str();
  app.add_option("--batch", o.batch, "Samples a leaf")->capture_default_str();
  app.add_option("--epochs", o.epochs, "Passes over the data")->capture_default_str();
  app.add_option("--samples", o.samples, "MNIST: train on the first so many; 0: on all")
      ->capture_default_str();
  app.add_option("--kill-at", o.kill_at, "Kill a trainer when so many steps are committed; 0: none");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options o = parse(argc, argv);
  if (o.by_hand < 0 || (o.by_hand > 0 && o.logical_ranks % o.by_hand != 0)) {
    std::fprintf(stderr, "gpu_training: --by-hand %d does not divide --logical-ranks %d\n", o.by_hand,
                 o.logical_ranks);
    return 2;
  }
  if (o.synced && (o.net != "mnist" || o.plain || o.by_hand > 0)) {
    std::fprintf(stderr, "gpu_training: --sync-batch-norm is of mnist by a job\n");
    return 2;
  }
  const auto search = data::default_mnist_search(o.folder);
  const auto found = o.net == "mnist" ? data::find_mnist(search) : data::find_cifar10(search);
  const std::string folder = found.folder.empty() ? "" : std::filesystem::absolute(found.folder).string();
  const bool mnist = o.net == "mnist";
  if (!mnist && folder.empty()) {
    std::printf("skipped: %s\n", found.reason.c_str());
    return 77;
  }
  const Digits digits{.folder = folder, .samples = o.samples};
  if (o.by_hand > 0) {
    const std::string url = "file://" + (std::filesystem::temp_directory_path() / "gpu_training_").string() +
                            std::to_string(::getpid());
    return troupe::gpu::run_in_processes(o.by_hand, [&](int rank) {
      mnist ? train_by_hand(digits, o, url, rank) : train_by_hand(Pictures{folder}, o, url, rank);
    });
  }
  auto session = troupe::init(argc, argv);
  if (o.synced)
    return train_by_troupe(session, SyncedDigits{digits}, o,
                           data::share(digits.dataset(data::Split::kTrain))->size());
  return mnist ? train_net(session, digits, o) : train_net(session, Pictures{folder}, o);
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_training: %s\n", error.what());
  return 1;
}
