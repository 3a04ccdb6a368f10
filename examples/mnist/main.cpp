// Trains a ConvNet on MNIST on a cluster of actors. The user's part is digits.hpp; this file says what the
// command line, or a TOML file, may set.
#include <cstdio>
#include <filesystem>

#include "chaos.hpp"
#include "digits.hpp"

/// What neither the job nor its options have.
struct Own {
  std::string data;
  std::string chaos;  ///< chaos.hpp reads it
};

constexpr const char* kAbout =
    "Trains a ConvNet on MNIST (or, where its files are not found, on rendered digits) with trainer and "
    "loader "
    "actors.\n"
    "The result depends on --logical-ranks, --micro-batch, --seed, --epochs and the data alone: try other "
    "numbers of\n"
    "trainers, loaders and nodes, kill some, and compare the last line.\n"
    "Example: mnist --trainers 3 --epochs 1 --chaos kill-trainer@200,kill-loader@300";
constexpr const char* kChaosHelp =
    "Faults on purpose, each when STEP steps are committed: kill-trainer@STEP, stop-trainer@STEP, "
    "kill-loader@STEP, kill-head@STEP, kill-node@STEP; separated by commas. A rank may be named: "
    "kill-trainer:0@100";

int main(int argc, char** argv) try {
  Own own;
  Digits job;
  troupe::train::TrainOptions options{
      .logical_ranks = 4, .micro_batch = 25, .epochs = 3, .trainers = 2, .seed = 7};
  troupe::InitOptions cluster;
  troupe::configure(argc, argv,
                    {{job,
                      {{&Digits::lr, "Learning rate of SGD with momentum 0.9"},
                       {&Digits::samples, "Train on the first so many samples; 0: on all"}}},
                     {own,
                      {{&Own::data, "Folder with the MNIST files, plain or .gz; else searched, see README"},
                       {&Own::chaos, kChaosHelp}}},
                     options,
                     cluster},
                    kAbout);
  options.chaos = parse_chaos(own.chaos);
  auto session = troupe::init(argc, argv, cluster);
  job.folder = troupe::data::find_mnist(troupe::data::default_mnist_search(own.data)).folder;
  // Loaders run elsewhere, with another working directory.
  if (!job.folder.empty()) job.folder = std::filesystem::absolute(job.folder).string();
  if (options.title.empty()) {
    options.title =
        "ConvNet on " +
        (job.folder.empty() ? "rendered digits (no MNIST found: --data names its folder)" : job.folder);
  }
  return troupe::train::run(session, job, options).exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "mnist: %s\n", error.what());
  return 1;
}
