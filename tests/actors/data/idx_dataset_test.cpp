#include "actors/data/idx_dataset.hpp"

#include <array>

#include "actors/data/find_mnist.hpp"
#include "tests/actors/data/idx_files.hpp"

using namespace troupe;
using namespace troupe::data;
using namespace troupe::data::testing;

TEST_CASE("a folder of IDX files is a dataset") {
  const Folder folder;
  folder.file("train-images-idx3-ubyte.gz", gzip(image_file(3, 2, 2)));
  folder.file("train-labels-idx1-ubyte", label_file({4, 5, 6}));
  const Idx dataset(folder.path(), Split::kTrain, {.mean = 0.1307, .std = 0.3081});
  CHECK(dataset.size() == 3);
  CHECK(dataset.fields()[0] == FieldSpec{"input", DType::kFloat32, {1, 2, 2}});
  data::Random random({}, 2);
  const auto sample = dataset.get(2, random);
  const auto out = sample["input"].values<float>();
  CHECK(sample["target"].values<std::int64_t>()[0] == 6);
  for (std::size_t i = 0; i < 4; ++i) {
    const float pixel = static_cast<float>((8 + i) * 7);
    CHECK(out[i] == Approx((pixel / 255.0F - 0.1307F) / 0.3081F).epsilon(1e-6));
  }
}

TEST_CASE("a folder that is no dataset says why") {
  const Folder folder;
  const auto why = [&] {
    try {
      const Idx dataset(folder.path(), Split::kTest);
    } catch (const Error& error) {
      return error.info().why;
    }
    return std::string();
  };
  CHECK(why() == "neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte.gz is there");
  folder.file("t10k-images-idx3-ubyte", image_file(3, 2, 2));
  folder.file("t10k-labels-idx1-ubyte", label_file({1, 2}));
  CHECK(why() == "3 images but 2 labels");
  folder.file("t10k-labels-idx1-ubyte", label_file({1, 10, 2}));
  CHECK(why() == "label 10 of sample 1 is outside [0, 10)");
  folder.file("t10k-images-idx3-ubyte", image_file(0, 2, 2));
  folder.file("t10k-labels-idx1-ubyte", label_file({}));
  CHECK(why() == "it holds no pixels");
  CHECK_THROWS_AS(Idx(folder.path(), Split::kTest, {.std = 0}), BadConfig);
}

TEST_CASE("real MNIST reads whole") {
  const auto found = find_mnist(default_mnist_search(""));
  if (found.folder.empty()) {
    WARN("skipped: " << found.reason);
    return;
  }
  for (const auto split : {Split::kTrain, Split::kTest}) {
    const Idx dataset(found.folder, split);
    REQUIRE(dataset.size() == (split == Split::kTrain ? 60'000 : 10'000));
    CHECK(dataset.fields()[0].shape == Shape{1, 28, 28});
    std::vector<int> of_class(10);
    double sum = 0;
    std::vector<float> pixels(784);
    std::int64_t label = 0;
    const std::array places{std::as_writable_bytes(std::span(pixels)),
                            std::as_writable_bytes(std::span(&label, 1))};
    for (std::int64_t i = 0; i < dataset.size(); ++i) {
      data::Random random({}, i);
      dataset.write(i, random, places);
      ++of_class[static_cast<std::size_t>(label)];
      for (const float pixel : pixels) sum += pixel;
    }
    if (split == Split::kTrain) {
      CHECK(of_class == std::vector<int>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949});
      CHECK(sum / 784 / 60'000 == Approx(0.1307).margin(5e-5));
    }
  }
}
