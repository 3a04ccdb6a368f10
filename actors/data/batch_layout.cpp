#include "actors/data/batch_layout.hpp"

#include <cstring>
#include <string>

#include "actors/data/sampler.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::data {
namespace {

constexpr std::int32_t kMaxExtent = 1 << 16;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
}

bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kBatchAlignment == 0;
}

ErrorInfo corrupt(std::string why) {
  return {ErrorCode::kCorrupt, "cannot use a batch in shared memory", std::move(why),
          "loader and trainer must be the same build"};
}

bool sane(std::int32_t extent) {
  return extent >= 1 && extent <= kMaxExtent;
}

}  // namespace

BatchOffsets batch_offsets(std::int64_t count, SampleShape shape) {
  BatchOffsets at;
  const auto samples = static_cast<std::size_t>(count);
  at.inputs = sizeof(BatchHeader);
  at.targets = at.inputs + aligned(samples * shape.floats() * sizeof(float));
  at.total = at.targets + aligned(samples * sizeof(std::int64_t));
  return at;
}

void fill_batch(std::span<std::byte> memory, BatchKey key, const Dataset& dataset,
                std::span<const std::int64_t> indices) {
  const SampleShape shape = dataset.shape();
  const auto at = batch_offsets(static_cast<std::int64_t>(indices.size()), shape);
  TROUPE_ASSERT(is_aligned(memory.data()) && memory.size() >= at.total, "the batch fits its memory");
  const std::size_t floats = shape.floats();
  auto* inputs = reinterpret_cast<float*>(memory.data() + at.inputs);
  auto* targets = reinterpret_cast<std::int64_t*>(memory.data() + at.targets);
  constexpr std::size_t kAhead = 2;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) dataset.prefetch(indices[i + kAhead]);
    targets[i] = dataset.get(indices[i], {inputs + i * floats, floats});
  }
  BatchHeader header;
  header.magic = kBatchMagic;
  header.epoch = key.epoch;
  header.step = key.step;
  header.index_hash = index_hash(indices);
  header.leaf = key.leaf;
  header.count = static_cast<std::uint32_t>(indices.size());
  header.shape = shape;
  std::memcpy(memory.data(), &header, sizeof header);
}

Result<BatchView> view_batch(std::span<std::byte> memory) {
  BatchView view;
  if (!is_aligned(memory.data())) return corrupt("it is not aligned to 64 bytes");
  if (memory.size() < sizeof view.header) return corrupt("it is shorter than its header");
  // One copy, so that what is checked is what is used even while another process could write.
  std::memcpy(&view.header, memory.data(), sizeof view.header);
  const auto& header = view.header;
  if (header.magic != kBatchMagic) return corrupt("it does not begin with a batch header");
  if (!sane(header.shape.channels) || !sane(header.shape.height) || !sane(header.shape.width)) {
    return corrupt("a sample of " + std::to_string(header.shape.channels) + "x" +
                   std::to_string(header.shape.height) + "x" + std::to_string(header.shape.width) +
                   " is not a shape");
  }
  // 2^48 floats a sample at most: divide instead of multiplying, so that nothing overflows.
  if (header.count > memory.size() / sizeof(float) / header.shape.floats()) {
    return corrupt(std::to_string(header.count) + " samples do not fit " + std::to_string(memory.size()) +
                   " bytes");
  }
  const auto at = batch_offsets(header.count, header.shape);
  if (at.total > memory.size()) {
    return corrupt(std::to_string(header.count) + " samples do not fit " + std::to_string(memory.size()) +
                   " bytes");
  }
  view.inputs = {reinterpret_cast<float*>(memory.data() + at.inputs), header.count * header.shape.floats()};
  view.targets = {reinterpret_cast<std::int64_t*>(memory.data() + at.targets), header.count};
  return view;
}

}  // namespace troupe::data
