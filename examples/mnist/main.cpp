// Trains a ConvNet on MNIST on a cluster of actors. The user's part is digits.hpp; this file reads the
// command line.
#include <cstdio>
#include <filesystem>

#include "actors/data/find_mnist.hpp"
#include "actors/train/api/train.hpp"
#include "examples/mnist/digits.hpp"
#include "examples/mnist/options.hpp"

int main(int argc, char** argv) try {
  const MnistOptions o = parse_options(argc, argv);
  auto session = troupe::init(argc, argv, {.nodes = o.nodes, .address = o.address});
  std::string folder = troupe::data::find_mnist(troupe::data::default_mnist_search(o.data)).folder;
  // Loaders run elsewhere, with another working directory.
  if (!folder.empty()) folder = std::filesystem::absolute(folder).string();
  const auto result = troupe::train::run(
      session, Digits{folder, o.lr, o.samples},
      {.logical_ranks = o.logical_ranks,
       .micro_batch = o.batch,
       .epochs = o.epochs,
       .trainers = o.trainers,
       .loaders = o.loaders,
       .seed = o.seed,
       .checkpoint_folder = o.checkpoint,
       .resume = o.resume,
       .trainer_gpus = o.trainer_gpus,
       .chaos = o.chaos,
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
