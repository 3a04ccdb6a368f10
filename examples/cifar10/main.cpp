// Trains a ConvNet on CIFAR-10. The user's part is pictures.hpp.
#include <cstdio>
#include <stdexcept>

#include "pictures.hpp"

int main(int argc, char** argv) try {
  Pictures job;
  troupe::train::TrainOptions options{
      .logical_ranks = 2, .micro_batch = 50, .epochs = 3, .trainers = 2, .seed = 7};
  troupe::configure(argc, argv, {job, options}, "Trains a ConvNet on CIFAR-10");
  auto session = troupe::init(argc, argv);
  const auto found = troupe::data::find_cifar10(troupe::data::default_mnist_search(job.folder));
  if (found.folder.empty()) throw std::runtime_error(found.reason + ": name its --folder");
  job.folder = found.folder;
  return troupe::train::run(session, job, options).exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "cifar10: %s\n", error.what());
  return 1;
}
