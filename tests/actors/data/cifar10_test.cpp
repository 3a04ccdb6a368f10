#include "actors/data/cifar10.hpp"

#include <filesystem>

#include "actors/data/find_mnist.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/data/idx_files.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

namespace {

constexpr std::size_t kRecord = 3073;

/// Samples of the given classes; every pixel of sample i is i.
Bytes cifar_file(const std::vector<int>& classes) {
  Bytes bytes;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    bytes.push_back(std::byte(classes[i]));
    bytes.insert(bytes.end(), kRecord - 1, std::byte(i));
  }
  return bytes;
}

std::string why(const std::string& folder, Split split = Split::kTrain) {
  try {
    const Cifar10 dataset(folder, split);
  } catch (const Error& error) {
    return error.info().why;
  }
  return "it is fine";
}

}  // namespace

TEST_CASE("a folder of CIFAR-10's binary files is a dataset of bytes and classes") {
  const Folder folder;
  folder.file("data_batch_1.bin", cifar_file({3, 9}));
  folder.file("data_batch_2.bin.gz", gzip(cifar_file({0, 1, 2})));
  folder.file("test_batch.bin", cifar_file({5}));
  const Cifar10 train(folder.path(), Split::kTrain);
  CHECK(train.size() == 5);
  CHECK(Cifar10(folder.path(), Split::kTest).size() == 1);
  data::Random random({}, 4);
  const auto sample = train.get(4, random);
  CHECK(sample["input"].shape() == Shape{3, 32, 32});
  CHECK(sample["input"].values<std::uint8_t>()[3071] == 2);
  CHECK(sample["target"].values<std::int64_t>()[0] == 2);
}

TEST_CASE("a folder that is no CIFAR-10 says why") {
  const Folder folder;
  CHECK(why(folder.path()) == "neither data_batch_1.bin nor data_batch_1.bin.gz is there");
  CHECK(why(folder.path(), Split::kTest) == "neither test_batch.bin nor test_batch.bin.gz is there");
  folder.file("data_batch_3.bin", cifar_file({1}));
  CHECK(why(folder.path()) == "data_batch_3.bin is there, but data_batch_1.bin is not");
  folder.file("test_batch.bin", cifar_file({1, 10}));
  CHECK(why(folder.path(), Split::kTest) == "class 10 of sample 1 is above 9");
  folder.file("test_batch.bin");
  CHECK(why(folder.path(), Split::kTest) == "it holds no samples");
  auto torn = cifar_file({1, 2});
  torn.resize(torn.size() - 1);
  folder.file("test_batch.bin", torn);
  CHECK(why(folder.path(), Split::kTest) == "6145 bytes are no multiple of a record's 3073");
  auto packed = gzip(cifar_file({1, 2}));
  packed.resize(packed.size() - 9);
  CHECK(decode_cifar10("x", packed).error().why == "the gzip stream is cut off");
  packed = gzip(cifar_file({1}));
  packed.push_back(std::byte{0});
  CHECK(decode_cifar10("x", packed).error().why == "1 bytes follow the gzip stream");
}

TEST_CASE("the part of CIFAR-10 that is here reads whole") {
  const auto mnist = find_mnist(default_mnist_search(""));
  const auto folder = std::filesystem::path(mnist.folder).parent_path() / "cifar10";
  if (mnist.folder.empty() || !std::filesystem::exists(folder)) {
    WARN("skipped: no cifar10 beside " << mnist.reason);
    return;
  }
  const Cifar10 train(folder.string(), Split::kTrain);
  CHECK(train.size() % 10'000 == 0);
  std::vector<int> of_class(10);
  for (std::int64_t i = 0; i < train.size(); ++i) {
    data::Random random({}, i);
    ++of_class[static_cast<std::size_t>(train.get(i, random)["target"].values<std::int64_t>()[0])];
  }
  for (const int count : of_class) CHECK(count > train.size() / 11);
}
