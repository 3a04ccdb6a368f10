/// A small state to save, different at every step.
#pragma once

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/sha256.hpp"

namespace troupe::checkpoint::testing {

struct SampleState {
  explicit SampleState(std::uint64_t step) {
    for (int i = 0; i < 6; ++i) weight.push_back(static_cast<float>(step) + static_cast<float>(i) / 8);
    count.push_back(static_cast<std::int64_t>(step));
    request.job = {4, 7, 25, "Digits{0.02}", sha256_hex({}), 60, 10, "one thread"};
    request.position = {step / 10, step};
    request.state_hash = sha256_hex(std::as_bytes(std::span(weight)));
    request.tensors = {{"conv1.weight", DType::kF32, {2, 3}, std::as_bytes(std::span(weight))},
                       {"bn.num_batches_tracked", DType::kI64, {}, std::as_bytes(std::span(count))}};
    request.metadata = {{"model", "convnet"}};
  }
  SampleState(const SampleState&) = delete;
  SampleState& operator=(const SampleState&) = delete;

  std::vector<float> weight;
  std::vector<std::int64_t> count;
  SaveRequest request;
};

/// Checks that `loaded` is exactly the state of its step, and returns the step.
inline std::uint64_t check_whole(const LoadedCheckpoint& loaded) {
  const std::uint64_t step = loaded.manifest.position.global_step;
  const SampleState expected(step);
  CHECK(loaded.manifest.job == expected.request.job);
  CHECK(loaded.manifest.position == expected.request.position);
  CHECK(loaded.manifest.state_hash == expected.request.state_hash);
  CHECK(loaded.manifest.metadata == expected.request.metadata);
  REQUIRE(loaded.tensors.size() == 2);
  for (const auto& want : expected.request.tensors) {
    bool found = false;
    for (const auto& got : loaded.tensors) {
      if (got.name != want.name) continue;
      found = true;
      CHECK(got.dtype == want.dtype);
      CHECK(got.shape == want.shape);
      CHECK(std::equal(got.bytes.begin(), got.bytes.end(), want.bytes.begin(), want.bytes.end()));
      CHECK(reinterpret_cast<std::uintptr_t>(got.bytes.data()) % 8 == 0);
    }
    CHECK(found);
  }
  return step;
}

/// The newest checkpoint that is whole, as the trainers of a job find it: one after the other.
struct Newest {
  std::optional<LoadedCheckpoint> whole;
  std::vector<std::string> passed_over;  ///< newer ones: what is wrong with them
  bool ok() const { return whole.has_value(); }
  const LoadedCheckpoint& operator*() const { return whole.value(); }
  const LoadedCheckpoint* operator->() const { return &whole.value(); }
};
inline Newest load_newest(CheckpointStore& store) {
  Newest newest;
  const auto listed = store.list().value();
  for (auto at = listed.rbegin(); at != listed.rend() && !newest.whole; ++at) {
    auto loaded = store.load_manifest(at->manifest_path);
    if (loaded.ok()) {
      newest.whole.emplace(*std::move(loaded));
    } else {
      newest.passed_over.push_back(loaded.error().message());
    }
  }
  return newest;
}
/// Keeps the newest `count` checkpoints.
inline Result<void> keep_last(CheckpointStore& store, std::size_t count) {
  const auto listed = store.list().value();
  if (listed.size() <= count) return {};
  return store.prune(listed[listed.size() - count].manifest_path);
}

}  // namespace troupe::checkpoint::testing
