#include "actors/data/batch_layout.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "actors/data/sampler.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::data {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
}

bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kBatchAlignment == 0;
}

ErrorInfo corrupt(std::string why) {
  return {ErrorCode::kCorrupt, "cannot use a batch in shared memory", std::move(why),
          "loader and trainer must be the same build"};
}

constexpr auto kLastDType = static_cast<std::uint8_t>(DType::kBool);

/// Decodes one field, which must lie in [begin, end) of the batch.
Result<FieldView> view_field(std::span<std::byte> memory, const FieldHeader& header, std::size_t begin,
                             std::size_t end) {
  FieldView field;
  const auto* name_end = std::find(header.name.begin(), header.name.end(), '\0');
  field.name.assign(header.name.begin(), name_end);
  if (name_end == header.name.end() || field.name.empty()) return corrupt("a field has no name");
  if (header.dtype > kLastDType) return corrupt("'" + field.name + "' has no dtype");
  if (header.dimensions > kMaxDimensions) return corrupt("'" + field.name + "' has too many dimensions");
  field.dtype = static_cast<DType>(header.dtype);
  field.shape.assign(header.shape.begin(), header.shape.begin() + header.dimensions);
  if (header.offset % kBatchAlignment != 0 || header.offset < begin || header.offset > end)
    return corrupt("'" + field.name + "' lies outside of the batch");
  const std::size_t room = end - header.offset;
  std::size_t bytes = collectives::element_size(field.dtype);
  bool empty = false;
  for (const auto extent : field.shape) {
    if (extent < 0) return corrupt("'" + field.name + "' has a negative extent");
    empty = empty || extent == 0;
  }
  for (const auto extent : field.shape) {
    if (empty) break;
    // Divide instead of multiplying, so that nothing overflows.
    if (static_cast<std::uint64_t>(extent) > room / bytes)
      return corrupt("'" + field.name + "' " + to_string(field.shape) + " does not fit");
    bytes *= static_cast<std::size_t>(extent);
  }
  if (empty) bytes = 0;
  if (bytes > room) return corrupt("'" + field.name + "' does not fit");
  field.bytes = memory.subspan(header.offset, bytes);
  return field;
}

}  // namespace

BatchLayout::BatchLayout(std::vector<FieldSpec> fields) : fields_(std::move(fields)) {
  const auto refuse = [](std::string why, std::string todo) {
    throw BadConfig("cannot make a batch", std::move(why), std::move(todo));
  };
  if (fields_.empty()) refuse("its samples have no fields", "return at least one named tensor from get()");
  if (fields_.size() > kMaxFields) {
    refuse("its samples have " + std::to_string(fields_.size()) + " fields",
           "use at most " + std::to_string(kMaxFields));
  }
  total_ = sizeof(BatchHeader) + fields_.size() * sizeof(FieldHeader);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (fields_[i].name == fields_[j].name)
        refuse("two fields have the name '" + fields_[i].name + "'", "give each its own");
    }
    bytes_.push_back(checked_bytes(fields_[i]));
    offsets_.push_back(total_);
    total_ += aligned(bytes_.back());
    if (total_ > kMaxBatchBytes) {
      refuse("with the field '" + fields_[i].name + "' " + to_string(fields_[i].shape) + " it has " +
                 std::to_string(total_) + " bytes, more than " + std::to_string(kMaxBatchBytes),
             "use a smaller micro_batch or smaller samples");
    }
  }
}

std::span<std::byte> BatchLayout::place(std::span<std::byte> memory, std::size_t field) const {
  return memory.subspan(offsets_[field], bytes_[field]);
}

void BatchLayout::seal(std::span<std::byte> memory, BatchKey key,
                       std::span<const std::int64_t> indices) const {
  TROUPE_ASSERT(is_aligned(memory.data()) && memory.size() >= total_, "the batch fits its memory");
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    FieldHeader field;
    std::copy(fields_[i].name.begin(), fields_[i].name.end(), field.name.begin());
    field.dtype = static_cast<std::uint8_t>(fields_[i].dtype);
    field.dimensions = static_cast<std::uint8_t>(fields_[i].shape.size());
    std::copy(fields_[i].shape.begin(), fields_[i].shape.end(), field.shape.begin());
    field.offset = offsets_[i];
    std::memcpy(memory.data() + sizeof(BatchHeader) + i * sizeof field, &field, sizeof field);
  }
  BatchHeader header;
  header.magic = kBatchMagic;
  header.epoch = key.epoch;
  header.step = key.step;
  header.index_hash = index_hash(indices);
  header.total = total_;
  header.leaf = key.leaf;
  header.count = static_cast<std::uint32_t>(indices.size());
  header.fields = static_cast<std::uint32_t>(fields_.size());
  std::memcpy(memory.data(), &header, sizeof header);
}

const FieldView* BatchView::find(std::string_view name) const {
  const auto at = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == name; });
  return at == fields.end() ? nullptr : &*at;
}

Result<BatchView> view_batch(std::span<std::byte> memory) {
  BatchView view;
  if (!is_aligned(memory.data())) return corrupt("it is not aligned to 64 bytes");
  if (memory.size() < sizeof view.header) return corrupt("it is shorter than its header");
  // One copy, so that what is checked is what is used even while another process could write.
  std::memcpy(&view.header, memory.data(), sizeof view.header);
  const auto& header = view.header;
  if (header.magic != kBatchMagic) return corrupt("it does not begin with a batch header");
  if (header.total > memory.size()) {
    return corrupt("it has " + std::to_string(header.total) + " bytes, its memory " +
                   std::to_string(memory.size()));
  }
  if (header.fields == 0 || header.fields > kMaxFields)
    return corrupt(std::to_string(header.fields) + " fields are none or too many");
  std::size_t begin = sizeof(BatchHeader) + header.fields * sizeof(FieldHeader);
  if (begin > header.total) return corrupt("it is shorter than the headers of its fields");
  view.fields.reserve(header.fields);
  for (std::uint32_t i = 0; i < header.fields; ++i) {
    FieldHeader one;
    std::memcpy(&one, memory.data() + sizeof(BatchHeader) + i * sizeof one, sizeof one);
    auto field = view_field(memory, one, begin, header.total);
    if (!field) return field.error();
    if (view.find(field->name) != nullptr) return corrupt("two fields have the name '" + field->name + "'");
    begin = one.offset + field->bytes.size();
    view.fields.push_back(std::move(*field));
  }
  return view;
}

}  // namespace troupe::data
