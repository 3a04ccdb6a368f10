// Trains a ConvNet on MNIST on a cluster of actors. The user's part is digits.hpp; this file reads the
// command line.
#include <cstdio>
#include <filesystem>

#include "chaos.hpp"
#include "digits.hpp"
#include "options.hpp"

int main(int argc, char** argv) try {
  const MnistOptions o = parse_options(argc, argv);
  const auto chaos = parse_chaos(o.chaos);
  auto session = troupe::init(argc, argv, {.nodes = o.nodes, .address = o.address});
  std::string folder = troupe::data::find_mnist(troupe::data::default_mnist_search(o.data)).folder;
  // Loaders run elsewhere, with another working directory.
  if (!folder.empty()) folder = std::filesystem::absolute(folder).string();
  const auto result = troupe::train::run(
      session, Digits{folder, o.lr, o.samples},
      {.logical_ranks = o.logical_ranks,
       .micro_batch = o.batch,
       .epochs = o.epochs,
       .max_steps = o.max_steps,
       .trainers = o.trainers,
       .loaders = o.loaders,
       .seed = o.seed,
       .evaluate_every = o.evaluate_every,
       .checkpoint_folder = o.checkpoint,
       .resume = o.resume,
       .from = o.from,
       .trainer_gpus = o.trainer_gpus,
       .chaos = chaos,
       .title = "ConvNet on " +
                (folder.empty() ? "rendered digits (no MNIST found: --data names its folder)" : folder),
       .events_json = o.json,
       .metrics_csv = o.csv,
       .tensorboard_folder = o.tensorboard});
  return result.exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "mnist: %s\n", error.what());
  return 1;
}
