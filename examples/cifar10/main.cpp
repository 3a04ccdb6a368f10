// Trains a ConvNet on CIFAR-10. The user's part is pictures.hpp.
#include <cstdio>
#include <stdexcept>

#include "pictures.hpp"

int main(int argc, char** argv) try {
  if (argc > 1 && std::string(argv[1]) == "--help")
    return std::puts("usage: cifar10 [FOLDER of the CIFAR-10 files]") < 0 ? 1 : 0;
  auto session = troupe::init(argc, argv);
  const auto found = troupe::data::find_cifar10(troupe::data::default_mnist_search(argc > 1 ? argv[1] : ""));
  if (found.folder.empty()) throw std::runtime_error(found.reason + ": name its folder");
  const auto result =
      troupe::train::run(session, Pictures{found.folder},
                         {.logical_ranks = 2, .micro_batch = 50, .epochs = 3, .trainers = 2, .seed = 7});
  return result.exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "cifar10: %s\n", error.what());
  return 1;
}
