#include "actors/serve/http/kserve.hpp"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/serve/http/raw_tensor.hpp"

namespace troupe::http {
namespace {

using simdjson::error_code;
using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kHeaderLength = "Inference-Header-Content-Length";
/// A parser keeps what its largest document took; above this it is thrown away.
constexpr std::size_t kKeptRequestBytes = std::size_t{1} << 20;

struct Name {
  data::DType dtype;
  std::string_view name;
};
constexpr std::array kDatatypes{
    Name{data::DType::kFloat64, "FP64"}, Name{data::DType::kFloat32, "FP32"},
    Name{data::DType::kFloat16, "FP16"}, Name{data::DType::kBFloat16, "BF16"},
    Name{data::DType::kInt8, "INT8"},    Name{data::DType::kInt16, "INT16"},
    Name{data::DType::kInt32, "INT32"},  Name{data::DType::kInt64, "INT64"},
    Name{data::DType::kUInt8, "UINT8"},  Name{data::DType::kBool, "BOOL"},
};

using Error = std::optional<ErrorInfo>;

class RequestReader {
 public:
  RequestReader(const SampleSpec& sample, std::size_t max_rows) : sample_(sample), max_rows_(max_rows) {}

  Error bad(std::string why) const {
    std::string shape = "ROWS";
    for (const auto extent : sample_.shape) shape += ", " + std::to_string(extent);
    return ErrorInfo{ErrorCode::kBadInput, "the body is not what is served here", std::move(why),
                     "send {\"inputs\": [{\"name\": \"input\", \"shape\": [" + shape + "], \"datatype\": \"" +
                         std::string(kserve_datatype(sample_.dtype)) +
                         "\", \"data\": [...]}]}, or the elements as bytes behind it"};
  }

  /// `binary`: what follows the JSON.
  Error read(element root, std::string binary) {
    object all;
    if (root.get(all)) return bad("it is no object");
    std::vector<std::string_view> seen;
    for (const auto [key, value] : all) {
      Error wrong;
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        return bad("it has " + std::string(key) + " twice");  // one that is known
      seen.push_back(key);
      if (key == "inputs") {
        wrong = read_inputs(value, std::move(binary));
      } else if (key == "outputs") {
        wrong = read_outputs(value);
      } else if (key == "parameters") {
        wrong = read_parameters(value);
      } else if (key == "id") {
        std::string_view id;
        if (value.get(id)) return bad("id is no string");
        result_.id = id;
      } else {
        return bad("it has the unknown key " + json_string(key.substr(0, 64)));
      }
      if (wrong) return wrong;
    }
    if (!has_input_) return bad("it has no inputs");
    result_.wants_binary = output_binary_.value_or(all_binary_);
    return {};
  }
  KserveRequest take() { return std::move(result_); }

 private:
  Error read_parameters(element value) {
    object all;
    if (value.get(all)) return bad("parameters is no object");
    for (const auto [key, parameter] : all) {
      if (key == "binary_data_output" && parameter.get(all_binary_))
        return bad("binary_data_output is neither true nor false");
      if (key == "timeout") {
        std::uint64_t us = 0;
        if (parameter.get(us)) return bad("timeout is no number of microseconds");
        // A year is enough, and overflows nothing.
        result_.timeout = std::chrono::microseconds(std::min<std::uint64_t>(us, 31'536'000'000'000));
        if (us == 0) result_.timeout.reset();
      }
      if (key.starts_with("sequence_")) return bad("nets here have no state: there are no sequences");
    }
    return {};
  }

  Error refuse_shared_memory(std::string_view key) const {
    return key.starts_with("shared_memory_") ? bad("tensors in shared memory are not read here") : Error{};
  }

  Error read_outputs(element value) {
    array outputs;
    if (value.get(outputs)) return bad("outputs is no list");
    for (const element one : outputs) {
      std::string_view name;
      if (one["name"].get(name) || name != "output")
        return bad("an output is asked for whose name is not \"output\"");
      object parameters;
      const error_code code = one["parameters"].get(parameters);
      if (code == simdjson::NO_SUCH_FIELD) continue;
      if (code) return bad("an output's parameters are no object");
      for (const auto [key, parameter] : parameters) {
        bool binary = false;
        if (key == "binary_data") {
          if (parameter.get(binary)) return bad("binary_data is neither true nor false");
          output_binary_ = binary;
        }
        if (key == "classification") return bad("there are no classifications here");
        if (auto wrong = refuse_shared_memory(key)) return wrong;
      }
    }
    return {};
  }

  Error read_inputs(element value, std::string binary) {
    array inputs;
    if (value.get(inputs)) return bad("inputs is no list of tensors");
    if (inputs.size() != 1) return bad("it has another number of inputs than one");
    has_input_ = true;
    const element input = inputs.at(0).value();
    std::string_view name, datatype;
    if (input["name"].get(name) || name != "input") return bad("its input's name is not \"input\"");
    if (input["datatype"].get(datatype)) return bad("its input has no datatype");
    if (datatype != kserve_datatype(sample_.dtype))
      return bad("its input's datatype is " + json_string(datatype.substr(0, 16)));
    if (auto wrong = read_shape(input)) return wrong;
    std::optional<std::uint64_t> binary_bytes;
    object parameters;
    const error_code code = input["parameters"].get(parameters);
    if (code != simdjson::NO_SUCH_FIELD && code) return bad("its input's parameters are no object");
    if (!code) {
      for (const auto [key, parameter] : parameters) {
        std::uint64_t bytes = 0;
        if (auto wrong = refuse_shared_memory(key)) return wrong;
        if (key != "binary_data_size") continue;
        if (parameter.get(bytes)) return bad("binary_data_size is no number of bytes");
        binary_bytes = bytes;
      }
    }
    element data;
    const bool has_data = !input["data"].get(data);
    if (has_data == binary_bytes.has_value())
      return bad("its input has not one of data and the parameter binary_data_size");
    if (has_data && !binary.empty()) return bad("bytes follow it that no input's binary_data_size tells of");
    return has_data ? read_data(data) : read_binary(*binary_bytes, std::move(binary));
  }

  Error read_shape(element input) {
    array extents;
    if (input["shape"].get(extents)) return bad("its input has no shape");
    shape_.clear();
    for (const element one : extents) {
      std::int64_t extent = 0;
      if (one.get(extent) || extent < 0 || shape_.size() > sample_.shape.size())
        return bad("its input's shape is not that of samples here");
      shape_.push_back(extent);
    }
    if (shape_.empty() ||
        !std::equal(shape_.begin() + 1, shape_.end(), sample_.shape.begin(), sample_.shape.end()))
      return bad("its input's shape is " + data::to_string(shape_));
    if (shape_[0] == 0) return bad("its input has no sample");
    if (static_cast<std::uint64_t>(shape_[0]) > max_rows_)
      return bad("its input has more than " + std::to_string(max_rows_) + " samples");
    elements_ = 1;
    for (const auto extent : shape_) {
      if (extent != 0 && elements_ > data::kMaxBatchBytes / static_cast<std::size_t>(extent))
        return bad("it is larger than any tensor may be");
      elements_ *= static_cast<std::size_t>(extent);
    }
    return {};
  }

  Error read_binary(std::uint64_t bytes, std::string binary) {
    const std::size_t size = collectives::element_size(sample_.dtype);
    if (bytes != binary.size())
      return bad(std::to_string(binary.size()) + " bytes follow the JSON, where binary_data_size says " +
                 std::to_string(bytes));
    if (bytes % size != 0 || bytes / size != elements_)
      return bad("binary_data_size is " + std::to_string(bytes) + ", where " + std::to_string(elements_) +
                 " times " + std::to_string(size) + " are expected");
    if (bytes > data::kMaxBatchBytes) return bad("it is larger than any tensor may be");
    if (sample_.dtype == data::DType::kBool &&
        std::any_of(binary.begin(), binary.end(), [](char c) { return (c & ~1) != 0; }))
      return bad("a byte of a BOOL is neither 0 nor 1");
    result_.inputs = data::Tensor(sample_.dtype, shape_, keep_elements(std::move(binary), size));
    return {};
  }

  Error read_data(element data) {
    switch (sample_.dtype) {
      case data::DType::kFloat32:
        return read_elements<float>(data);
      case data::DType::kFloat64:
        return read_elements<double>(data);
      case data::DType::kInt64:
        return read_elements<std::int64_t>(data);
      case data::DType::kInt32:
        return read_elements<std::int32_t>(data);
      case data::DType::kInt16:
        return read_elements<std::int16_t>(data);
      case data::DType::kInt8:
        return read_elements<std::int8_t>(data);
      case data::DType::kUInt8:
      case data::DType::kBool:
        return read_elements<std::uint8_t>(data);
      default:
        return bad("its datatype has no JSON: send the elements as bytes");
    }
  }

  template <class T>
  Error read_elements(element data) {
    array list;
    if (data.get(list)) return bad("data is no list");
    const auto all = std::make_shared<std::vector<T>>();
    const bool nested = shape_.size() > 1 && list.size() > 0 && list.at(0).value().is_array();
    if (auto wrong = nested ? read_level(list, 0, *all) : read_flat(list, elements_, *all)) return wrong;
    result_.inputs =
        data::Tensor(sample_.dtype, shape_,
                     std::shared_ptr<const std::byte>(all, reinterpret_cast<const std::byte*>(all->data())));
    return {};
  }

  /// Lists in lists, as the shape has dimensions.
  template <class T>
  Error read_level(array list, std::size_t level, std::vector<T>& all) {
    const auto expected = static_cast<std::size_t>(shape_[level]);
    if (level + 1 == shape_.size()) return read_flat(list, expected, all);
    std::size_t count = 0;
    for (const element one : list) {
      array inner;
      if (one.get(inner)) return bad("data is not lists in lists of shape " + data::to_string(shape_));
      if (auto wrong = read_level(inner, level + 1, all)) return wrong;
      ++count;
    }
    if (count != expected) return bad("data is not lists in lists of shape " + data::to_string(shape_));
    return {};
  }

  template <class T>
  Error read_flat(array list, std::size_t expected, std::vector<T>& all) {
    std::size_t count = 0;
    for (const element one : list) {
      T number{};
      if (count++ == expected)
        return bad("data has more elements than the " + std::to_string(expected) + " expected");
      if (!read_number(one, number))
        return bad("element " + std::to_string(all.size()) + " of data is no " +
                   std::string(kserve_datatype(sample_.dtype)));
      all.push_back(number);
    }
    if (count < expected)
      return bad("data has " + std::to_string(count) + " elements, where " + std::to_string(expected) +
                 " are expected");
    return {};
  }

  template <class T>
  bool read_number(element one, T& number) const {
    if (sample_.dtype == data::DType::kBool) {
      bool truth = false;
      if (one.get(truth)) return false;
      number = static_cast<T>(truth);
      return true;
    }
    if constexpr (std::is_floating_point_v<T>) {
      double wide = 0;
      if (one.get(wide)) return false;
      number = static_cast<T>(wide);
      return std::isfinite(number);
    } else {
      std::int64_t wide = 0;
      if (one.get(wide) || !std::in_range<T>(wide)) return false;
      number = static_cast<T>(wide);
      return true;
    }
  }

  const SampleSpec& sample_;
  const std::size_t max_rows_;
  KserveRequest result_;
  bool has_input_ = false;
  bool all_binary_ = false;
  std::optional<bool> output_binary_;
  data::Shape shape_;
  std::size_t elements_ = 1;
};

std::string tensor_metadata(std::string_view name, const SampleSpec& sample) {
  std::string shape = "-1";
  for (const auto extent : sample.shape) shape += "," + std::to_string(extent);
  return "{\"name\":\"" + std::string(name) + "\",\"datatype\":\"" +
         std::string(kserve_datatype(sample.dtype)) + "\",\"shape\":[" + shape + "]}";
}

}  // namespace

std::string_view kserve_datatype(data::DType dtype) {
  for (const Name& one : kDatatypes) {
    if (one.dtype == dtype) return one.name;
  }
  return "";
}

std::optional<KserveRoute> parse_kserve_path(std::string_view path) {
  using What = KserveRoute::What;
  if (path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string> parts;
  while (!path.empty() && parts.size() < 8) {
    path.remove_prefix(1);  // its slash
    const std::size_t end = std::min(path.find('/'), path.size());
    auto part = percent_decode(path.substr(0, end));
    if (!part || part->empty()) return std::nullopt;
    parts.push_back(*std::move(part));
    path.remove_prefix(end);
  }
  const std::size_t count = parts.size();
  if (!path.empty() || count == 0 || parts[0] != "v2") return std::nullopt;
  if (count == 1) return KserveRoute{What::kServer, {}, {}};
  if (count == 3 && parts[1] == "health" && parts[2] == "live") return KserveRoute{What::kLive, {}, {}};
  if (count == 3 && parts[1] == "health" && parts[2] == "ready") return KserveRoute{What::kReady, {}, {}};
  if (count < 3 || parts[1] != "models") return std::nullopt;
  KserveRoute route{What::kModel, parts[2], {}};
  std::size_t at = 3;
  if (at + 1 < count && parts[at] == "versions") {
    route.version = parts[at + 1];
    at += 2;
  }
  if (at == count) return route;
  if (at + 1 != count) return std::nullopt;
  if (parts[at] == "ready") {
    route.what = What::kModelReady;
  } else if (parts[at] == "infer") {
    route.what = What::kInfer;
  } else {
    return std::nullopt;
  }
  return route;
}

Result<KserveRequest> decode_kserve(Request& request, const SampleSpec& sample, std::size_t max_rows) {
  static thread_local std::unique_ptr<simdjson::dom::parser> kept;
  if (!kept) kept = std::make_unique<simdjson::dom::parser>();
  RequestReader reader(sample, max_rows);
  std::string& body = request.body;
  std::size_t json_bytes = body.size();
  if (request.headers.count(kHeaderLength) > 1)
    return *reader.bad("it has several " + std::string(kHeaderLength) + " fields");
  if (const auto given = request.headers.find(kHeaderLength)) {
    const char* end = given->data() + given->size();
    const auto [stop, error] = std::from_chars(given->data(), end, json_bytes);
    if (error != std::errc() || stop != end || json_bytes > body.size())
      return *reader.bad(std::string(kHeaderLength) + " is not a length within the body");
  }
  if (body.capacity() < body.size() + simdjson::SIMDJSON_PADDING)
    body.reserve(body.size() + simdjson::SIMDJSON_PADDING);
  element root;
  const error_code code = kept->parse(body.data(), json_bytes, false).get(root);
  Error wrong = code ? reader.bad(std::string("it is not JSON: ") + simdjson::error_message(code))
                     : reader.read(root, body.substr(json_bytes));
  if (kept->capacity() > kKeptRequestBytes) kept = nullptr;
  if (wrong) return *std::move(wrong);
  return reader.take();
}

Response encode_kserve(const KserveModel& model, const std::string& id, bool binary,
                       const data::Tensor& outputs) {
  const auto bytes = outputs.bytes();
  std::string shape = data::to_string(outputs.shape());
  std::string out =
      "{\"model_name\":" + json_string(model.name) + ",\"model_version\":" + json_string(model.version);
  if (!id.empty()) out += ",\"id\":" + json_string(id);
  out += ",\"outputs\":[{\"name\":\"output\",\"shape\":" + shape + ",\"datatype\":\"" +
         std::string(kserve_datatype(outputs.dtype())) + "\",";
  if (!binary) {
    out += "\"data\":";
    if (const auto wrong = append_json(out, outputs, {outputs.elements()}))
      return error_response(500, wrong->message());
    return {.body = out + "}]}"};
  }
  out += "\"parameters\":{\"binary_data_size\":" + std::to_string(bytes.size()) + "}}]}";
  const std::string json_bytes = std::to_string(out.size());
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return {.content_type = std::string(kRawContentType),
          .headers = {{std::string(kHeaderLength), json_bytes}},
          .body = std::move(out)};
}

Response kserve_metadata(const KserveModel& model, const SampleSpec& input, const SampleSpec& output) {
  return {.body = "{\"name\":" + json_string(model.name) + ",\"versions\":[" + json_string(model.version) +
                  "],\"platform\":\"troupe_libtorch\",\"inputs\":[" + tensor_metadata("input", input) +
                  "],\"outputs\":[" + tensor_metadata("output", output) + "]}"};
}

Response kserve_server() {
  return {.body = "{\"name\":\"troupe\",\"version\":\"2\",\"extensions\":[\"binary_tensor_data\"]}"};
}

}  // namespace troupe::http
