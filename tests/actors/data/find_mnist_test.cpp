#include "actors/data/find_mnist.hpp"

#include "runtime/core/error.hpp"
#include "tests/actors/data/idx_files.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

namespace {

void put_mnist(const Folder& folder, const std::string& below) {
  folder.file(below + "/train-images-idx3-ubyte.gz");
  folder.file(below + "/train-labels-idx1-ubyte");
  folder.file(below + "/t10k-images-idx3-ubyte");
  folder.file(below + "/t10k-labels-idx1-ubyte.gz");
}

}  // namespace

TEST_CASE("the nearest folder with all four files wins") {
  const Folder folder;
  const std::string root = std::filesystem::canonical(folder.path()).string();
  MnistSearch search;
  search.data_dir = root + "/env";
  search.working_dir = root + "/project/work";
  search.executable = root + "/other/build/release/bin/mnist";
  std::filesystem::create_directories(search.working_dir);

  const auto none = find_mnist(search);
  CHECK(none.folder.empty());
  CHECK_THAT(none.reason, Catch::StartsWith("no MNIST in '" + root + "/env/mnist', '" + root + "/env', '" +
                                            root + "/project/shared/data/mnist'"));
  put_mnist(folder, "other/shared/data/mnist");
  CHECK(find_mnist(search).folder == root + "/other/shared/data/mnist");
  put_mnist(folder, "project/shared/data/mnist");
  CHECK(find_mnist(search).folder == root + "/project/shared/data/mnist");
  put_mnist(folder, "env");
  CHECK(find_mnist(search).folder == root + "/env");
  put_mnist(folder, "env/mnist");
  CHECK(find_mnist(search).folder == root + "/env/mnist");
  CHECK(find_mnist(search).reason == "found in " + root + "/env/mnist");
  put_mnist(folder, "mine");
  search.explicit_folder = root + "/mine";
  CHECK(find_mnist(search).folder == root + "/mine");
}

TEST_CASE("a folder that was asked for and lacks a file is an error") {
  const Folder folder;
  put_mnist(folder, "env/mnist");
  folder.file("mine/train-images-idx3-ubyte");
  MnistSearch search;
  search.data_dir = folder.path() + "/env";
  search.explicit_folder = folder.path() + "/mine";
  CHECK_THROWS_WITH(
      find_mnist(search),
      "no MNIST in '" + folder.path() +
          "/mine': it lacks train-labels-idx1-ubyte[.gz], t10k-images-idx3-ubyte[.gz], "
          "t10k-labels-idx1-ubyte[.gz] (put MNIST's IDX files there, or leave --data out to train on "
          "rendered digits)");
}
