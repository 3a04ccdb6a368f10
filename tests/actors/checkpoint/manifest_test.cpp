#include "actors/checkpoint/manifest.hpp"

#include <catch2/catch.hpp>

#include "actors/checkpoint/sha256.hpp"
#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

const std::string kHash = sha256_hex({});

Manifest sample() {
  return {{4, UINT64_MAX, 25, "Digits{\"mnist\", 0.02}", kHash, 60000, 10000, "libtorch 1.13.1; threads 1",
           "0123456789abcdef"},
          {1, 1200},
          kHash,
          {"checkpoint-00000003.safetensors", 123456, kHash},
          {{"model", "convnet"}, {"a \"quoted\"\nkey", "\xc3\xa9"}}};
}

Result<Manifest> decode(const std::string& text) {
  return decode_manifest("m.json", std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("SHA-256 of the standard's examples") {
  CHECK(kHash == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string abc = "abc";
  CHECK(sha256_hex(std::as_bytes(std::span(abc))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(is_sha256_hex(kHash));
  CHECK_FALSE(is_sha256_hex(kHash.substr(1)));
  CHECK_FALSE(is_sha256_hex("G" + kHash.substr(1)));
}

TEST_CASE("a validation set's size is in the manifest of a job that has one, and in no other") {
  Manifest manifest = sample();
  const auto without = encode_manifest(manifest).value();
  CHECK(without.find("validation_size") == std::string::npos);
  manifest.job.validation_size = 5000;
  const auto with = encode_manifest(manifest).value();
  CHECK(with.find("\"validation_size\": 5000") != std::string::npos);
  CHECK(decode_manifest("m", std::as_bytes(std::span(with))).value() == manifest);
}

TEST_CASE("a manifest is written as its page says") {
  Manifest manifest = sample();
  manifest.metadata = {{"model", "convnet"}};
  manifest.job.seed = 7;
  const auto text = encode_manifest(manifest);
  REQUIRE(text.ok());
  const std::string body = R"({
  "format": "troupe checkpoint",
  "version": 2,
  "job": {
    "logical_ranks": 4,
    "seed": 7,
    "micro_batch": 25,
    "struct": "Digits{\"mnist\", 0.02}",
    "struct_sha256": ")" + kHash +
                           R"(",
    "train_size": 60000,
    "test_size": 10000,
    "numerics": "libtorch 1.13.1; threads 1",
    "sampling": "0123456789abcdef"
  },
  "position": {
    "epoch": 1,
    "global_step": 1200
  },
  "state_hash": ")" + kHash +
                           R"(",
  "file": {
    "name": "checkpoint-00000003.safetensors",
    "bytes": 123456,
    "sha256": ")" + kHash + R"("
  },
  "metadata": {
    "model": "convnet"
  },
  "sha256": ")";
  CHECK(text->substr(0, body.size()) == body);
  CHECK(text->size() == body.size() + 64 + 4);
}

TEST_CASE("a manifest decodes to what was encoded") {
  const auto text = encode_manifest(sample());
  REQUIRE(text.ok());
  const auto again = decode(*text);
  REQUIRE(again.ok());
  CHECK(*again == sample());
}

TEST_CASE("every byte of a manifest counts") {
  const std::string text = *encode_manifest(sample());
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      if (static_cast<char>(value) == text[at]) continue;
      std::string flipped = text;
      flipped[at] = static_cast<char>(value);
      if (decode(flipped).ok()) FAIL("byte " << at << " may be " << value);
    }
    CHECK_FALSE(decode(text.substr(0, at)).ok());
  }
  CHECK_FALSE(decode(text + "\n").ok());
}

TEST_CASE("what is wrong is said") {
  CHECK(decode("").error().message() == "cannot use manifest 'm.json': it has no valid JSON at byte 1");
  CHECK(decode("[1]").error().why == "it is no JSON object");
  CHECK(decode("{}").error().why == "it is no manifest of a checkpoint");
  CHECK(decode(R"({"format": "troupe checkpoint"})").error().why == "'version' is missing or not a count");
  const auto future = decode(R"({"format": "troupe checkpoint", "version": 3, "new": [1]})");
  CHECK(future.error().code == ErrorCode::kRefused);
  CHECK(future.error().message() ==
        "cannot use manifest 'm.json': it has format version 3, this program reads version 2 (resume with "
        "the program "
        "that wrote it)");
  CHECK(decode(R"({"format": "troupe checkpoint", "version": 2, "job": 3})").error().why ==
        "'job' is missing or not an object");
  std::string text = *encode_manifest(sample());
  text.replace(text.find("1200"), 4, "1201");
  CHECK(decode(text).error().why == "its checksum does not hold");
  CHECK(decode(std::string(kMaxManifestBytes + 1, ' ')).error().why == "it is larger than 1048576 bytes");
}

TEST_CASE("what cannot be written is refused") {
  Manifest manifest = sample();
  manifest.state_hash = "";
  CHECK(encode_manifest(manifest).error().code == ErrorCode::kBadInput);
  manifest = sample();
  manifest.metadata["x"] = "\xff";
  CHECK(encode_manifest(manifest).error().why == "a text in it is not valid UTF-8");
  manifest.metadata["x"] = std::string(kMaxManifestBytes, 'x');
  CHECK(encode_manifest(manifest).error().code == ErrorCode::kLimit);
}

TEST_CASE("another job is found by what its result depends on, and both sides are named") {
  const JobIdentity written = sample().job;
  CHECK_FALSE(difference(written, written));
  const auto with = [&](auto&& change) {
    JobIdentity ours = written;
    change(ours);
    return difference(written, ours).value_or("the same");
  };
  CHECK(with([](auto& j) { j.logical_ranks = 3; }) == "it was written with logical ranks 4, this run has 3");
  CHECK(with([](auto& j) { j.seed = 8; }).ends_with("this run has 8"));
  CHECK(with([](auto& j) { j.micro_batch = 32; }) == "it was written with micro-batch 25, this run has 32");
  CHECK(with([](auto& j) {
          j.job = "Digits{\"mnist\", 0.5}";
          j.job_sha256 = sha256_hex(std::as_bytes(std::span("x")));
        }).find("the job Digits{\"mnist\", 0.02} (e3b0c442), this run has Digits{\"mnist\", 0.5} (") !=
        std::string::npos);
  CHECK(with([](auto& j) { j.train_size = 50000; }) ==
        "it was written with a training set of size 60000, this run has 50000");
  CHECK(with([](auto& j) { j.test_size = 1; }).find("a test set of size 10000") != std::string::npos);
  CHECK(with([](auto& j) { j.validation_size = 5; }) ==
        "it was written with a validation set of size 0, this run has 5");
  CHECK(with([](auto& j) { j.numerics = "threads 2"; }) ==
        "it was written with trainers that compute with 'libtorch 1.13.1; threads 1', this run has 'threads "
        "2'");
  CHECK(with([](auto& j) { j.sampling = "f"; }) ==
        "it was written with samples drawn as 0123456789abcdef, this run has f");
  // What is not known yet is not held against it.
  CHECK(with([](auto& j) { j.train_size = j.test_size = 0, j.numerics.clear(), j.sampling.clear(); }) ==
        "the same");
}
