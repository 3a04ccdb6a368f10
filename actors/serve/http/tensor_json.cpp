#include "actors/serve/http/tensor_json.hpp"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/serve/http/raw_tensor.hpp"
#include "runtime/http/message.hpp"

namespace troupe::http {
namespace {

namespace json = simdjson::ondemand;
using simdjson::error_code;

static_assert(kBodyPadding >= simdjson::SIMDJSON_PADDING, "a request's body is parsed where it is");
constexpr std::size_t kShownDigits = 40;
/// A parser keeps what its largest document took; above this it is thrown away.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

std::string expectation(const SampleSpec& sample) {
  return "send {\"inputs\": [sample, ...]}, each sample " +
         (sample.shape.empty() ? "one " : "nested lists of shape " + data::to_string(sample.shape) + " of ") +
         std::string(tensor_dtype_name(sample.dtype));
}

ErrorInfo bad(std::string why, const SampleSpec& sample) {
  return {ErrorCode::kBadInput, "the body is not what is served here", std::move(why), expectation(sample)};
}

/// Reads samples of elements T, each exactly of the shape.
template <class T>
class Reader {
 public:
  Reader(const SampleSpec& sample, std::size_t max_rows) : sample_(sample), max_rows_(max_rows) {}

  /// An error, or empty.
  std::optional<ErrorInfo> read_rows(json::value rows) {
    json::array array;
    if (rows.get_array().get(array))
      return error("inputs is " + kind_of(rows) + ", where a list of samples is expected");
    for (auto element : array) {
      json::value sample;
      if (const error_code code = element.get(sample)) return malformed(code);
      if (at_.at(0) >= max_rows_)
        return error("inputs has more than " + std::to_string(max_rows_) + " samples");
      if (auto wrong = read_level(sample, 0)) return wrong;
      ++at_[0];
    }
    if (at_[0] == 0) return error("inputs is empty: at least one sample is expected");
    return std::nullopt;
  }

  data::Tensor take() {
    data::Shape shape{static_cast<std::int64_t>(at_[0])};
    shape.insert(shape.end(), sample_.shape.begin(), sample_.shape.end());
    const auto all = std::make_shared<std::vector<T>>(std::move(elements_));
    const auto* bytes = reinterpret_cast<const std::byte*>(all->data());
    return {sample_.dtype, std::move(shape), std::shared_ptr<const std::byte>(all, bytes)};
  }

 private:
  std::optional<ErrorInfo> read_level(json::value value, std::size_t level) {
    if (level == sample_.shape.size()) return read_number(value);
    const auto expected = static_cast<std::size_t>(sample_.shape[level]);
    json::array array;
    if (value.get_array().get(array))
      return error(place(level) + " is " + kind_of(value) + ", where a list of " + std::to_string(expected) +
                   " is expected");
    std::size_t& at = at_[level + 1];
    at = 0;
    for (auto element : array) {
      json::value inner;
      if (const error_code code = element.get(inner)) return malformed(code);
      if (at >= expected)
        return error(place(level) + " has more than the " + std::to_string(expected) + " elements expected");
      if (auto wrong = read_level(inner, level + 1)) return wrong;
      ++at;
    }
    if (at < expected)
      return error(place(level) + " has " + std::to_string(at) + " elements, where " +
                   std::to_string(expected) + " are expected");
    return std::nullopt;
  }

  std::optional<ErrorInfo> read_number(json::value value) {
    error_code code = simdjson::SUCCESS;
    T number{};
    if (sample_.dtype == data::DType::kBool) {
      bool truth = false;
      code = value.get_bool().get(truth);
      number = static_cast<T>(truth);
    } else if constexpr (std::is_floating_point_v<T>) {
      double wide = 0;
      code = value.get_double().get(wide);
      number = static_cast<T>(wide);
      if (!code && !std::isfinite(number)) return too_large();
    } else {
      std::int64_t wide = 0;
      code = value.get_int64().get(wide);
      if (!code && !std::in_range<T>(wide)) return too_large();
      number = static_cast<T>(wide);
    }
    if (code) return no_number(value);
    elements_.push_back(number);
    return std::nullopt;
  }

  std::optional<ErrorInfo> no_number(json::value value) {
    const std::string dtype(tensor_dtype_name(sample_.dtype));
    json::json_type type{};
    if (std::is_floating_point_v<T> && !value.type().get(type) && type == json::json_type::number) {
      std::string text(value.raw_json_token().substr(0, kShownDigits));
      text.erase(text.find_last_not_of(" \t\r\n") + 1);
      double wide = 0;
      const auto read = std::from_chars(text.data(), text.data() + text.size(), wide);
      if (read.ec == std::errc::result_out_of_range) return too_large();
      return error(place(sample_.shape.size()) + " is " + json_string(text) + ", which is no number of JSON");
    }
    return error(place(sample_.shape.size()) + " is " + kind_of(value) + ", where one " + dtype +
                 " is expected");
  }
  std::optional<ErrorInfo> too_large() {
    return error(place(sample_.shape.size()) + " does not fit into " +
                 std::string(tensor_dtype_name(sample_.dtype)));
  }
  std::optional<ErrorInfo> error(std::string why) { return bad(std::move(why), sample_); }
  std::optional<ErrorInfo> malformed(error_code code) {
    return error(std::string("it is not JSON: ") + simdjson::error_message(code));
  }

  /// "inputs[3][0]": a sample's element, `level` lists deep.
  std::string place(std::size_t level) const {
    std::string text = "inputs";
    for (std::size_t i = 0; i <= level; ++i) text += "[" + std::to_string(at_[i]) + "]";
    return text;
  }

  static std::string kind_of(json::value value) {
    json::json_type type{};
    if (value.type().get(type)) return "no value of JSON (as NaN and Infinity are)";
    switch (type) {
      case json::json_type::array:
        return "a list";
      case json::json_type::object:
        return "an object";
      case json::json_type::string:
        return "a string";
      case json::json_type::boolean:
        return "true or false";
      case json::json_type::null:
        return "null";
      case json::json_type::number:
        return "a number";
    }
    return "something else";
  }

  const SampleSpec& sample_;
  const std::size_t max_rows_;
  std::vector<std::size_t> at_ = std::vector<std::size_t>(sample_.shape.size() + 1);  ///< the row, and in it
  std::vector<T> elements_;
};

template <class T>
Result<data::Tensor> decode(json::object& object, const SampleSpec& sample, std::size_t max_rows) {
  Reader<T> reader(sample, max_rows);
  bool found = false;
  for (auto entry : object) {
    json::field field;
    std::string_view key;
    if (const error_code code = std::move(entry).get(field))
      return bad(std::string("it is not JSON: ") + simdjson::error_message(code), sample);
    if (const error_code code = field.unescaped_key().get(key))
      return bad(std::string("it is not JSON: ") + simdjson::error_message(code), sample);
    if (key != "inputs" || found)
      return bad(found && key == "inputs" ? "it has inputs twice"
                                          : "it has the unknown key " + json_string(key.substr(0, 64)),
                 sample);
    found = true;
    if (auto wrong = reader.read_rows(field.value())) return *std::move(wrong);
  }
  if (!found) return bad("it has no inputs", sample);
  return reader.take();
}

Result<data::Tensor> decode_as(json::object& object, const SampleSpec& sample, std::size_t max_rows) {
  switch (sample.dtype) {
    case data::DType::kFloat32:
      return decode<float>(object, sample, max_rows);
    case data::DType::kFloat64:
      return decode<double>(object, sample, max_rows);
    case data::DType::kInt64:
      return decode<std::int64_t>(object, sample, max_rows);
    case data::DType::kInt32:
      return decode<std::int32_t>(object, sample, max_rows);
    case data::DType::kUInt8:
    case data::DType::kBool:
      return decode<std::uint8_t>(object, sample, max_rows);
    default:
      return ErrorInfo{ErrorCode::kBadInput, "this deployment takes no JSON",
                       "its samples are " + std::string(tensor_dtype_name(sample.dtype)),
                       "send them as raw tensors (Content-Type: application/octet-stream)"};
  }
}

template <class T>
void write_number(std::string& out, T value) {
  char text[32];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

/// The lists of `level` and below, from `at` on. False: an element is no number of JSON, and `at` is its
/// index.
template <class T>
bool write_level(std::string& out, const data::Shape& shape, std::size_t level, const T* elements,
                 std::size_t& at, bool as_bool) {
  if (level == shape.size()) {
    const T value = elements[at];
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(value)) return false;
    }
    if (as_bool) {
      out += value != 0 ? "true" : "false";
    } else {
      write_number(out, value);
    }
    ++at;
    return true;
  }
  out += '[';
  for (std::int64_t i = 0; i < shape[level]; ++i) {
    if (i > 0) out += ',';
    if (!write_level(out, shape, level + 1, elements, at, as_bool)) return false;
  }
  out += ']';
  return true;
}

template <class T>
std::optional<ErrorInfo> append(std::string& out, const data::Tensor& tensor, const data::Shape& nesting) {
  out.reserve(out.size() + static_cast<std::size_t>(tensor.elements()) * 12 + 256);
  std::size_t at = 0;
  const T* elements = reinterpret_cast<const T*>(tensor.bytes().data());
  if (write_level(out, nesting, 0, elements, at, tensor.dtype() == data::DType::kBool)) return std::nullopt;
  const std::string name = std::isnan(static_cast<double>(elements[at])) ? "NaN" : "infinite";
  return ErrorInfo{
      ErrorCode::kTaskFailed, "the answer cannot be written as JSON",
      "element " + std::to_string(at) + " of the output " + data::to_string(tensor.shape()) + " is " + name,
      "mend the net, or ask for raw tensors (Accept: application/octet-stream; in /v2 binary_data)"};
}

}  // namespace

Result<data::Tensor> decode_json(std::string& text, const SampleSpec& sample, std::size_t max_rows) {
  static thread_local std::unique_ptr<json::parser> kept;
  if (!kept) kept = std::make_unique<json::parser>();
  if (text.capacity() < text.size() + simdjson::SIMDJSON_PADDING)
    text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  json::document document;
  json::object object;
  error_code code =
      kept->iterate(simdjson::padded_string_view(text.data(), text.size(), text.capacity())).get(document);
  if (!code) code = document.get_object().get(object);
  Result<data::Tensor> decoded =
      bad(code == simdjson::INCORRECT_TYPE ? "it is no object"
          : code == simdjson::INCOMPLETE_ARRAY_OR_OBJECT
              ? "it is not JSON: it was cut off before the object's end, or something follows the object"
              : std::string("it is not JSON: ") + simdjson::error_message(code),
          sample);
  if (!code) decoded = decode_as(object, sample, max_rows);
  // simdjson has no other way to say that the end was reached.
  if (decoded.ok() && document.current_location().error() != simdjson::OUT_OF_BOUNDS)
    decoded = bad("something follows the object", sample);
  if (kept->capacity() > kKeptBytes) kept = nullptr;
  return decoded;
}

std::optional<ErrorInfo> append_json(std::string& out, const data::Tensor& tensor,
                                     const data::Shape& nesting) {
  switch (tensor.dtype()) {
    case data::DType::kFloat32:
      return append<float>(out, tensor, nesting);
    case data::DType::kFloat64:
      return append<double>(out, tensor, nesting);
    case data::DType::kInt64:
      return append<std::int64_t>(out, tensor, nesting);
    case data::DType::kInt32:
      return append<std::int32_t>(out, tensor, nesting);
    case data::DType::kInt16:
      return append<std::int16_t>(out, tensor, nesting);
    case data::DType::kInt8:
      return append<std::int8_t>(out, tensor, nesting);
    case data::DType::kUInt8:
    case data::DType::kBool:
      return append<std::uint8_t>(out, tensor, nesting);
    default:
      return ErrorInfo{ErrorCode::kBadConfig, "the answer cannot be written as JSON",
                       "it is " + std::string(tensor_dtype_name(tensor.dtype())),
                       "let the method answer float32, or ask for raw tensors (Accept: "
                       "application/octet-stream; in /v2 binary_data)"};
  }
}

Result<std::string> encode_json(const data::Tensor& rows) {
  std::string out = "{\"outputs\": ";
  if (auto wrong = append_json(out, rows, rows.shape())) return *std::move(wrong);
  out += "}\n";
  return out;
}

}  // namespace troupe::http
