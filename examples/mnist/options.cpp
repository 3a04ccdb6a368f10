#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <troupe/error.hpp>

namespace {

constexpr const char* kChaosHelp =
    "Faults on purpose, each when STEP steps are committed: kill-trainer@STEP, stop-trainer@STEP, "
    "kill-loader@STEP, "
    "kill-head@STEP, kill-node@STEP; separated by commas. A rank may be named: kill-trainer:0@100";

// CLI11's own check prints the largest double in full.
const CLI::Validator kNotNegative(
    [](std::string& text) {
      return text.starts_with('-') ? std::string("must not be negative") : std::string();
    },
    "");

}  // namespace

MnistOptions parse_options(int argc, char** argv) {
  MnistOptions options;
  CLI::App app(
      "Trains a ConvNet on MNIST (or, where its files are not found, on rendered digits) with trainer and "
      "loader actors.\n"
      "The result depends on --logical-ranks, --batch, --seed, --epochs and the data alone: try other "
      "numbers of trainers,\n"
      "loaders and nodes, kill some, and compare the last line.\n");
  app.add_option("--data", options.data,
                 "Folder with the MNIST files, plain or .gz [default: searched, see README]");
  app.add_option("--epochs", options.epochs, "Passes over the data")->capture_default_str();
  app.add_option("--max-steps", options.max_steps, "End after so many steps instead; 0: after the epochs")
      ->check(kNotNegative);
  app.add_option("--evaluate-every", options.evaluate_every, "Evaluate after so many steps, too")
      ->check(kNotNegative);
  app.add_option("--from", options.from, "Begin with these weights: a checkpoint folder or a safetensors file");
  app.add_option("--trainers", options.trainers, "Processes that compute; at most one a logical rank")
      ->capture_default_str();
  app.add_option("--logical-ranks", options.logical_ranks, "Micro-batches a step: part of the job's identity")
      ->capture_default_str();
  app.add_option("--loaders", options.loaders, "Processes that read and normalise")->capture_default_str();
  app.add_option("--nodes", options.nodes, "Nodes of the embedded cluster")->capture_default_str();
  app.add_option("--trainer-gpus", options.trainer_gpus,
                 "GPUs that each trainer holds and computes on: 0, 1 or a part of one (see docs/gpu.md)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--address", options.address,
                 "HOST:PORT: run on the cluster that `troupe start` made there");
  app.add_option("--batch", options.batch, "Samples a logical rank a step")->capture_default_str();
  app.add_option("--seed", options.seed, "Of weights and the order of samples")
      ->capture_default_str()
      ->check(kNotNegative);
  app.add_option("--lr", options.lr, "Learning rate of SGD with momentum 0.9")->capture_default_str();
  app.add_option("--samples", options.samples, "Train on the first so many samples; 0: on all")
      ->capture_default_str()
      ->check(kNotNegative);
  app.add_option("--chaos", options.chaos, kChaosHelp);
  app.add_option("--checkpoint", options.checkpoint, "Folder for checkpoints, written after every epoch");
  app.add_flag("--resume", options.resume, "Take up at the newest checkpoint in that folder");
  app.add_option("--json", options.json, "Write every event as a line of JSON to this file");
  app.add_option("--csv", options.csv, "Write every figure as a row of CSV to this file");
  app.add_option("--tensorboard", options.tensorboard, "Write figures for TensorBoard into this folder");
  app.footer("Example: mnist --trainers 3 --epochs 1 --chaos kill-trainer@200,kill-loader@300");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  if (!std::isfinite(options.lr) || options.lr <= 0)
    throw troupe::BadConfig("cannot train with --lr " + std::to_string(options.lr),
                            "it is no positive number", "try 0.02");
  return options;
}
