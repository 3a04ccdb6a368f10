#include "actors/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>

#include "actors/checkpoint/strict_json.hpp"
#include "runtime/core/escape.hpp"

namespace troupe::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kMetadataKey = "__metadata__";
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMostWhyBytes = 1000;  ///< it may have names out of the file

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<DTypeRow, 15> kDTypes{{{DType::kBool, "BOOL", 1},
                                            {DType::kU8, "U8", 1},
                                            {DType::kI8, "I8", 1},
                                            {DType::kF8E5M2, "F8_E5M2", 1},
                                            {DType::kF8E4M3, "F8_E4M3", 1},
                                            {DType::kI16, "I16", 2},
                                            {DType::kU16, "U16", 2},
                                            {DType::kF16, "F16", 2},
                                            {DType::kBF16, "BF16", 2},
                                            {DType::kI32, "I32", 4},
                                            {DType::kU32, "U32", 4},
                                            {DType::kF32, "F32", 4},
                                            {DType::kF64, "F64", 8},
                                            {DType::kI64, "I64", 8},
                                            {DType::kU64, "U64", 8}}};

const DTypeRow& row_of(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

/// The bytes of a tensor, or nothing where an extent is negative or the product overflows.
std::optional<std::uint64_t> byte_count(DType dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const auto extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return {};
  }
  return bytes;
}

ErrorInfo refuse_tensor(const std::string& name, std::string why) {
  return {ErrorCode::kBadInput, "cannot write tensor '" + shown_name(name) + "'", std::move(why), ""};
}

Result<void> check_writable(const std::vector<TensorView>& sorted) {
  std::set<std::string_view> names;
  for (const auto& tensor : sorted) {
    if (tensor.name == kMetadataKey) return refuse_tensor(tensor.name, "the format reserves this name");
    if (!names.insert(tensor.name).second) return refuse_tensor(tensor.name, "its name occurs twice");
    const auto bytes = byte_count(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.bytes.size()) {
      return refuse_tensor(tensor.name, "its shape takes " + (bytes ? std::to_string(*bytes) : "too many") +
                                            " bytes, it has " + std::to_string(tensor.bytes.size()));
    }
  }
  return {};
}

/// The header as text; throws json::type_error for a name that is not UTF-8.
std::string header_text(const std::vector<TensorView>& sorted, const Metadata& metadata) {
  // Joined as text: an ordered JSON object searches all its keys for each insertion.
  std::string text = "{";
  if (!metadata.empty()) text += json(kMetadataKey).dump() + ":" + json(metadata).dump();
  std::uint64_t at = 0;
  for (const auto& tensor : sorted) {
    const std::uint64_t end = at + tensor.bytes.size();
    if (text.size() > 1) text += ",";
    text += json(tensor.name).dump() + ":{\"dtype\":" + json(dtype_name(tensor.dtype)).dump() +
            ",\"shape\":" + json(tensor.shape).dump() + ",\"data_offsets\":[" + std::to_string(at) + "," +
            std::to_string(end) + "]}";
    at = end;
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

/// A tensor of the header with its place in the data.
struct Entry {
  TensorView view;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Result<Entry> decode_entry(const std::string& name, const json& value) {
  const auto bad = [&name](const std::string& why) {
    return corrupt_because("tensor '" + name + "' " + why);
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return bad("has other keys than dtype, shape and data_offsets");
  }
  const auto& dtype = value["dtype"];
  const auto& shape = value["shape"];
  const auto& offsets = value["data_offsets"];
  Entry entry;
  entry.view.name = name;
  if (!dtype.is_string()) return bad("has a dtype that is no string");
  const auto known = dtype_from_name(dtype.get_ref<const std::string&>());
  if (!known) return bad("has the unknown dtype '" + dtype.get<std::string>().substr(0, 40) + "'");
  entry.view.dtype = *known;
  if (!shape.is_array()) return bad("has a shape that is no list");
  for (const auto& extent : shape) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > INT64_MAX) {
      return bad("has a shape with an extent that is no count");
    }
    entry.view.shape.push_back(extent.get<std::int64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("has data_offsets that are not two counts");
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  const auto bytes = byte_count(entry.view.dtype, entry.view.shape);
  if (!bytes) return bad("has a shape whose size overflows");
  if (entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    return bad("has offsets " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
               ", its shape takes " + std::to_string(*bytes) + " bytes");
  }
  return entry;
}

Result<Metadata> decode_metadata(const json& value) {
  if (!value.is_object()) return corrupt_because("__metadata__ is no object");
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) return corrupt_because("__metadata__ has a value that is no string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// Sorts the tensors by place and points each into `data`, whose `size` bytes they must tile; null: it is not
/// in memory.
Result<std::vector<TensorView>> place_tensors(std::vector<Entry> entries, const std::byte* data,
                                              std::uint64_t size) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.view.name) < std::tie(b.begin, b.end, b.view.name);
  });
  std::uint64_t at = 0;
  std::vector<TensorView> tensors;
  for (auto& entry : entries) {
    if (entry.begin != at) {
      return corrupt_because("tensor '" + entry.view.name + "' begins at " + std::to_string(entry.begin) +
                             (entry.begin < at ? ", inside the one before it" : ", after a gap") +
                             " that ends at " + std::to_string(at));
    }
    if (entry.end > size) {
      return corrupt_because("tensor '" + entry.view.name + "' ends at " + std::to_string(entry.end) +
                             ", the data at " + std::to_string(size));
    }
    entry.view.bytes = {data == nullptr ? nullptr : data + entry.begin, entry.end - entry.begin};
    at = entry.end;
    tensors.push_back(std::move(entry.view));
  }
  if (at != size) {
    return corrupt_because("the tensors end at " + std::to_string(at) + ", the data at " +
                           std::to_string(size));
  }
  return tensors;
}

std::uint64_t length_in(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<std::uint64_t>(file[i]);
  return length;
}

/// `file`: all of its `size` bytes, or its prefix.
Result<Safetensors> decode(std::span<const std::byte> file, std::uint64_t size) {
  if (file.size() < kLengthBytes) {
    return corrupt_because("expected at least 8 bytes, found " + std::to_string(file.size()));
  }
  const std::uint64_t length = length_in(file);
  if (length > kMaxHeaderBytes) {
    return corrupt_because("its header of " + std::to_string(length) + " bytes is above the limit of " +
                           std::to_string(kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return corrupt_because("its header should have " + std::to_string(length) + " bytes, " +
                           std::to_string(file.size() - kLengthBytes) + " are there");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') return corrupt_because("its header does not begin with '{'");
  constexpr int kDepth = 3;  // header, tensor, shape
  auto header = parse_strict_json(text, kDepth);
  if (!header) return corrupt_because("its header has " + header.error().why);
  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header->items()) {
    if (name == kMetadataKey) {
      auto metadata = decode_metadata(value);
      if (!metadata) return metadata.error();
      result.metadata = *std::move(metadata);
      continue;
    }
    auto entry = decode_entry(name, value);
    if (!entry) return entry.error();
    entries.push_back(*std::move(entry));
  }
  const std::uint64_t prefix = kLengthBytes + length;
  auto tensors =
      place_tensors(std::move(entries), file.size() == size ? file.data() + prefix : nullptr, size - prefix);
  if (!tensors) return tensors.error();
  result.tensors = *std::move(tensors);
  return result;
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return {};
}

std::size_t dtype_bytes(DType dtype) {
  return row_of(dtype).bytes;
}

Result<SafetensorsLayout> lay_out_safetensors(std::span<const TensorView> tensors, const Metadata& metadata) {
  SafetensorsLayout layout;
  layout.order.assign(tensors.begin(), tensors.end());
  std::sort(layout.order.begin(), layout.order.end(), [](const TensorView& a, const TensorView& b) {
    const auto left = dtype_bytes(a.dtype);
    const auto right = dtype_bytes(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
  if (auto writable = check_writable(layout.order); !writable) return writable.error();
  std::string header;
  try {
    header = header_text(layout.order, metadata);
  } catch (const json::exception&) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot write tensors",
                     "a name or the metadata is not valid UTF-8", ""};
  }
  if (header.size() > kMaxHeaderBytes) {
    return ErrorInfo{ErrorCode::kLimit, "cannot write tensors",
                     "their names take more than " + std::to_string(kMaxHeaderBytes) + " bytes",
                     "split them over several files"};
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    layout.prefix.push_back(static_cast<char>(std::uint64_t{header.size()} >> (8 * i) & 0xff));
  }
  layout.prefix += header;
  layout.total_bytes = layout.prefix.size();
  for (const auto& tensor : layout.order) layout.total_bytes += tensor.bytes.size();
  return layout;
}

std::vector<std::byte> write_safetensors(const SafetensorsLayout& layout) {
  const auto prefix = std::as_bytes(std::span(layout.prefix));
  std::vector<std::byte> file(prefix.begin(), prefix.end());
  file.reserve(layout.total_bytes);
  for (const auto& tensor : layout.order) file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  return file;
}

void read_layout(const SafetensorsLayout& layout, std::uint64_t offset, std::span<std::byte> into) {
  std::uint64_t begin = 0;
  const auto take = [&](std::span<const std::byte> bytes) {
    const std::uint64_t from = std::max(begin, offset);
    const std::uint64_t to = std::min<std::uint64_t>(begin + bytes.size(), offset + into.size());
    if (from < to) std::memcpy(into.data() + (from - offset), bytes.data() + (from - begin), to - from);
    begin += bytes.size();
  };
  take(std::as_bytes(std::span(layout.prefix)));
  for (const auto& tensor : layout.order) take(tensor.bytes);
}

const TensorView* Safetensors::find(std::string_view name) const {
  for (const auto& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::uint64_t safetensors_prefix_bytes(std::span<const std::byte> length) {
  if (length.size() < kLengthBytes) return length.size();
  return kLengthBytes + std::min<std::uint64_t>(length_in(length), kMaxHeaderBytes);
}

Result<Safetensors> read_safetensors(std::string_view name, std::span<const std::byte> file) {
  return read_safetensors_header(name, file, file.size());
}

Result<Safetensors> read_safetensors_header(std::string_view name, std::span<const std::byte> prefix,
                                            std::uint64_t file_bytes) {
  auto decoded = decode(prefix, file_bytes);
  if (decoded) return decoded;
  return ErrorInfo{ErrorCode::kCorrupt, "cannot use safetensors file '" + std::string(name) + "'",
                   shown_name(decoded.error().why, kMostWhyBytes), "use another copy of the file"};
}

}  // namespace troupe::checkpoint
