/// Python's safetensors package reads what we write, and we read what it writes.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "actors/checkpoint/file_system.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::checkpoint;
using troupe::test::TempFolder;

namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TEST_CASE("safetensors files go to Python and come back") {
  std::vector<float> weight(24);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i) / 8;
  const std::vector<std::uint16_t> half{0x0000, 0x3c00, 0x4000, 0x4200, 0x4400};  // 0 to 4
  const std::vector<double> variance{1.5, -2.5};
  const std::vector<std::int64_t> tracked{77};
  const std::vector<std::uint8_t> mask{1, 0, 1};
  const std::vector<std::uint8_t> small{0, 127, 255};
  const std::vector<TensorView> tensors{{"conv1.weight", DType::kF32, {2, 3, 4}, bytes_of(weight)},
                                        {"conv1.half", DType::kF16, {5}, bytes_of(half)},
                                        {"bn.running_var", DType::kF64, {2}, bytes_of(variance)},
                                        {"bn.num_batches_tracked", DType::kI64, {}, bytes_of(tracked)},
                                        {"mask", DType::kBool, {3}, bytes_of(mask)},
                                        {"bytes", DType::kU8, {3}, bytes_of(small)},
                                        {"empty", DType::kF32, {0, 4}, {}}};
  const auto layout = lay_out_safetensors(tensors, {{"format", "pt"}});
  REQUIRE(layout.ok());
  const TempFolder folder;
  PosixFileSystem files;
  const std::string ours = folder.path() + "/ours.safetensors";
  const std::string theirs = folder.path() + "/theirs.safetensors";
  REQUIRE((*files.create(ours))->append(write_safetensors(*layout)).ok());

  const char* named = std::getenv("TROUPE_PYTHON");
  const std::string python = named == nullptr ? "python3" : named;
  const std::string command = "'" + python + "' '" TROUPE_INTEROP_SCRIPT "' '" + ours + "' '" + theirs + "'";
  const int status = std::system(command.c_str());  // NOLINT: a test starts Python
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 127) {
    WARN("skipped: " << python << " has no safetensors and numpy; name one that has by TROUPE_PYTHON");
    return;
  }
  REQUIRE(WEXITSTATUS(status) == 0);

  const auto file = files.read(theirs, 1 << 20);
  REQUIRE(file.ok());
  const auto decoded = read_safetensors(theirs, *file);
  REQUIRE(decoded.ok());
  CHECK(decoded->metadata == Metadata{{"format", "pt"}});
  REQUIRE(decoded->tensors.size() == tensors.size());
  for (const auto& want : tensors) {
    const auto* got = decoded->find(want.name);
    REQUIRE(got != nullptr);
    CHECK(got->dtype == want.dtype);
    CHECK(got->shape == want.shape);
    CHECK(std::equal(got->bytes.begin(), got->bytes.end(), want.bytes.begin(), want.bytes.end()));
  }
}
