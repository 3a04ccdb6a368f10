/// Where MNIST and CIFAR-10 lie on this machine, without a network.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace troupe::data {

/// What the search may look at; the defaults are the process's own.
struct MnistSearch {
  std::string explicit_folder;        ///< --data; empty: not given
  std::string data_dir;               ///< $TROUPE_DATA_DIR; empty: not set
  std::filesystem::path working_dir;  ///< its `../shared/data/NAME` is a candidate
  std::filesystem::path executable;   ///< `shared/data/NAME` beside each folder above it is a candidate
};

/// The search of this process: $TROUPE_DATA_DIR, the working directory and /proc/self/exe.
MnistSearch default_mnist_search(std::string explicit_folder);

/// What was found.
struct FoundMnist {
  std::string folder;  ///< absolute; empty when no candidate has all four files
  std::string reason;  ///< one line for the user: why this folder, or where MNIST was looked for
};

/// The first folder with all four files (plain or .gz) of: the explicit folder, $TROUPE_DATA_DIR/mnist,
/// $TROUPE_DATA_DIR, ../shared/data/mnist, shared/data/mnist of each folder above the executable. Looks at
/// names only. Throws BadConfig when an explicit folder lacks a file: a user who names one wants that one.
FoundMnist find_mnist(const MnistSearch& search);

/// The same for CIFAR-10's binary files, of which a first training file and the test file must be there; in
/// folders of the name cifar10.
FoundMnist find_cifar10(const MnistSearch& search);

}  // namespace troupe::data
