#include "actors/serve/http/raw_tensor.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace troupe::http {
namespace {

static_assert(std::endian::native == std::endian::little, "raw tensors cross as they are in memory");

constexpr std::array<std::string_view, 17> kNames{
    "float64", "float32",       "float16",     "bfloat16",  "int8",      "int16",
    "int32",   "int64",         "uint8",       "bool",      "uint16",    "uint32",
    "uint64",  "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"};
static_assert(kNames.size() == collectives::kDTypeNames.size());

/// "32, 1, 28": no value: it is no such list.
std::optional<data::Shape> parse_shape(std::string_view text) {
  data::Shape shape;
  while (shape.size() <= data::kMaxDimensions) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc() || extent < 0) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    shape.push_back(extent);
    while (text.starts_with(' ')) text.remove_prefix(1);
    if (text.empty()) return shape;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
  }
  return std::nullopt;
}

std::string shape_text(const data::Shape& shape) {
  std::string text = data::to_string(shape);
  return text.substr(1, text.size() - 2);
}

/// Whether a list of media types (Accept, Content-Type) names this one.
bool names(std::string_view list, std::string_view type) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, std::min(comma, list.find(';')));
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (same_ignoring_case(one, type)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

std::shared_ptr<const std::byte> keep_elements(std::string body, std::size_t element_size) {
  const auto owner = std::make_shared<std::string>(std::move(body));
  if (reinterpret_cast<std::uintptr_t>(owner->data()) % element_size == 0)
    return {owner, reinterpret_cast<const std::byte*>(owner->data())};
  const auto copy = std::make_shared_for_overwrite<std::byte[]>(owner->size());
  std::copy_n(reinterpret_cast<const std::byte*>(owner->data()), owner->size(), copy.get());
  return {copy, copy.get()};
}

std::string_view tensor_dtype_name(data::DType dtype) {
  return collectives::is_known(dtype) ? kNames[static_cast<std::size_t>(dtype)] : "?";
}

Result<data::Tensor> decode_raw(const Headers& headers, std::string body, const SampleSpec& sample,
                                std::size_t max_rows) {
  const std::string dtype(tensor_dtype_name(sample.dtype));
  const auto refuse = [&](std::string why) {
    const std::string inner = shape_text(sample.shape);
    return ErrorInfo{ErrorCode::kBadInput, "the raw tensor is not what is served here", std::move(why),
                     "send Tensor-Dtype: " + dtype + " and Tensor-Shape: ROWS" + (inner.empty() ? "" : ", ") +
                         inner + ", and these elements as little-endian bytes"};
  };
  for (const char* field : {"Tensor-Dtype", "Tensor-Shape"}) {
    if (headers.count(field) > 1) return refuse("it has several " + std::string(field) + " fields");
  }
  const auto given_dtype = headers.find("Tensor-Dtype");
  if (!given_dtype) return refuse("it has no Tensor-Dtype");
  if (*given_dtype != dtype) return refuse("its Tensor-Dtype is not " + dtype);
  const auto given_shape = headers.find("Tensor-Shape");
  if (!given_shape) return refuse("it has no Tensor-Shape");
  auto shape = parse_shape(*given_shape);
  if (!shape) return refuse("its Tensor-Shape is no list of extents, such as 32, 1, 28, 28");
  if (!std::equal(shape->begin() + 1, shape->end(), sample.shape.begin(), sample.shape.end()))
    return refuse("its Tensor-Shape is " + data::to_string(*shape));
  const auto rows = static_cast<std::size_t>(shape->front());
  if (rows == 0) return refuse("it has no sample");
  if (rows > max_rows) return refuse("it has more than " + std::to_string(max_rows) + " samples");

  std::size_t row_bytes = collectives::element_size(sample.dtype);
  for (const std::int64_t extent : sample.shape) row_bytes *= static_cast<std::size_t>(extent);
  const bool fits =
      row_bytes == 0 ? body.empty() : body.size() % row_bytes == 0 && body.size() / row_bytes == rows;
  if (!fits)
    return refuse("its body has " + std::to_string(body.size()) + " bytes, where " + std::to_string(rows) +
                  " times " + std::to_string(row_bytes) + " are expected");
  if (body.size() > data::kMaxBatchBytes) return refuse("it is larger than any tensor may be");
  if (sample.dtype == data::DType::kBool &&
      std::any_of(body.begin(), body.end(), [](char c) { return (c & ~1) != 0; }))
    return refuse("a byte of a bool is neither 0 nor 1");
  return data::Tensor(sample.dtype, *std::move(shape),
                      keep_elements(std::move(body), collectives::element_size(sample.dtype)));
}

Response encode_raw(const data::Tensor& rows) {
  const auto bytes = rows.bytes();
  return {.content_type = std::string(kRawContentType),
          .headers = {{"Tensor-Dtype", std::string(tensor_dtype_name(rows.dtype()))},
                      {"Tensor-Shape", shape_text(rows.shape())}},
          .body = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

Result<data::Tensor> decode_inputs(Request& request, const SampleSpec& sample, std::size_t max_rows) {
  if (names(request.headers.find("Content-Type").value_or(""), kRawContentType))
    return decode_raw(request.headers, std::move(request.body), sample, max_rows);
  return decode_json(request.body, sample, max_rows);
}

bool wants_raw(const Request& request) {
  const std::string_view accept = request.headers.find("Accept").value_or("");
  if (names(accept, kRawContentType)) return true;
  return !names(accept, "application/json") &&
         names(request.headers.find("Content-Type").value_or(""), kRawContentType);
}

Response encode_outputs(const data::Tensor& rows, bool raw) {
  if (raw) return encode_raw(rows);
  auto body = encode_json(rows);
  if (!body) return error_response(500, body.error().message());
  return {.body = *std::move(body)};
}

}  // namespace troupe::http
