// What any client of an HTTP endpoint may send: requests, and tensors as JSON and as bytes.
#include <algorithm>
#include <string>
#include <vector>

#include "actors/serve/http/kserve.hpp"
#include "actors/serve/http/raw_tensor.hpp"
#include "runtime/http/request_parser.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

using namespace http;
using State = RequestParser::State;

constexpr RequestParser::Limits kLimits{.header_bytes = 2048, .body_bytes = 4096};
constexpr std::size_t kMaxRows = 1000;

struct Outcome {
  State state = State::kHead;
  std::size_t used = 0;
  std::vector<Request> requests{};
};

void check_request(const Request& request) {
  check(request.path.starts_with('/') || request.path == "*", "a target is a path");
  check(request.body.size() <= kLimits.body_bytes, "a body is no longer than it may be");
  const std::size_t lengths = request.headers.count("Content-Length"),
                    codings = request.headers.count("Transfer-Encoding");
  check(lengths + codings <= 1, "a body ends in one way");
  check(request.body.empty() || lengths + codings == 1, "a body was announced");
  check(request.body.empty() || request.body.capacity() >= request.body.size() + kBodyPadding,
        "a body is padded");
  check(request.headers.count("Host") <= 1, "a request is for one host");
  if (const auto route = parse_kserve_path(request.path))
    check(route->model.size() + route->version.size() <= request.path.size(), "names are parts of a path");
  for (std::size_t i = 0; i < request.headers.size(); ++i) {
    const auto [name, value] = request.headers[i];
    check(!name.empty(), "a field has a name");
    for (const char c : value)
      check(static_cast<unsigned char>(c) >= 0x20 || c == '\t', "a field is one line");
  }
}

/// All requests of a connection on which `step` bytes come at a time.
Outcome read_all(std::string_view bytes, std::size_t step) {
  Outcome outcome;
  RequestParser parser(kLimits);
  std::size_t end = 0;
  while (parser.state() != State::kRefused) {
    if (end == bytes.size()) break;
    end = std::min(end + step, bytes.size());
    for (;;) {
      outcome.used += parser.feed(bytes.substr(outcome.used, end - outcome.used));
      check(parser.held_bytes() <= 2 * kLimits.body_bytes + kBodyPadding, "no more is held than may be");
      if (parser.state() != State::kDone) break;
      outcome.requests.push_back(parser.take());
    }
    check(parser.state() == State::kRefused || end - outcome.used <= kLimits.header_bytes,
          "what is left is a head");
  }
  outcome.state = parser.state();
  return outcome;
}

/// Samples of some kinds; the first byte says which.
SampleSpec spec_of(std::byte choice) {
  static const data::Shape kShapes[] = {{}, {2}, {2, 2}, {0, 3}, {1, 1, 1}};
  static const data::DType kDTypes[] = {data::DType::kFloat32, data::DType::kInt64, data::DType::kFloat64,
                                        data::DType::kUInt8,   data::DType::kBool,  data::DType::kInt32};
  const auto number = std::to_integer<std::size_t>(choice);
  return {kDTypes[number % std::size(kDTypes)], kShapes[number / std::size(kDTypes) % std::size(kShapes)]};
}

bool same(const data::Tensor& a, const data::Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && std::ranges::equal(a.bytes(), b.bytes());
}

}  // namespace

bool http_request(std::span<const std::byte> bytes) {
  const Outcome whole = read_all(text_of(bytes), std::max<std::size_t>(bytes.size(), 1));
  decoded();
  for (const Request& request : whole.requests) check_request(request);
  for (const std::size_t step : {1, 3, 64}) {
    const Outcome cut = read_all(text_of(bytes), step);
    check(cut.state == whole.state && cut.used == whole.used, "how bytes are cut does not matter");
    check(std::ranges::equal(cut.requests, whole.requests,
                             [](const Request& a, const Request& b) {
                               return a.method == b.method && a.path == b.path && a.body == b.body &&
                                      a.headers.size() == b.headers.size();
                             }),
          "how bytes are cut changes no request");
  }
  return !whole.requests.empty() && whole.state == State::kHead && whole.used == bytes.size();
}

bool tensor_json(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  const SampleSpec spec = spec_of(bytes.front());
  std::string text(text_of(bytes.subspan(1)));
  const auto tensor = decode_json(text, spec, kMaxRows);
  decoded();
  if (!tensor) return false;
  check(tensor->shape().at(0) > 0 && tensor->shape().at(0) <= static_cast<std::int64_t>(kMaxRows),
        "the rows are within bounds");
  const auto written = encode_json(*tensor);
  check(written.ok(), "what came as JSON can be written as JSON");
  std::string again = "{\"inputs" + written->substr(written->find("\": "));
  const auto back = decode_json(again, spec, kMaxRows);
  check(back.ok() && same(*tensor, *back), "JSON is read and written alike");
  return true;
}

/// The dtype, a line end, the shape, a line end, the elements.
bool raw_tensor(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  const SampleSpec spec = spec_of(bytes.front());
  std::string_view text = text_of(bytes.subspan(1));
  Headers headers;
  for (const char* name : {"Tensor-Dtype", "Tensor-Shape"}) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    headers.add(name, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const auto tensor = decode_raw(headers, std::string(text), spec, kMaxRows);
  decoded();
  if (!tensor) return false;
  check(tensor->bytes().size() == text.size(), "a tensor has the bytes that came");
  const Response written = encode_raw(*tensor);
  Headers fields;
  for (const auto& [name, value] : written.headers) fields.add(name, value);
  const auto back = decode_raw(fields, written.body, spec, kMaxRows);
  check(back.ok() && same(*tensor, *back), "raw tensors are read and written alike");
  return true;
}

/// Inference-Header-Content-Length, none where the line is empty; a line end, the body.
bool kserve_infer(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  const SampleSpec spec = spec_of(bytes.front());
  std::string_view text = text_of(bytes.subspan(1));
  const std::size_t end = std::min(text.find('\n'), text.size());
  Request request;
  if (end > 0) request.headers.add("Inference-Header-Content-Length", text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  request.body.reserve(text.size() + kBodyPadding);
  request.body = text;
  const auto asked = decode_kserve(request, spec, kMaxRows);
  decoded();
  if (!asked) return false;
  const data::Tensor& tensor = asked->inputs;
  check(tensor.dtype() == spec.dtype && tensor.shape().size() == spec.shape.size() + 1,
        "a tensor is of the model's type and dimensions");
  check(tensor.shape().at(0) > 0 && tensor.shape().at(0) <= static_cast<std::int64_t>(kMaxRows),
        "the rows are within bounds");
  // As bytes behind JSON it comes back the same.
  const Response written = encode_kserve({"input", "1"}, asked->id, true, tensor);
  check(written.status == 200, "what came can be written");
  const std::size_t size = tensor.bytes().size();
  Request again;
  const std::string json = "{\"inputs\":[{\"name\":\"input\",\"shape\":" + data::to_string(tensor.shape()) +
                           ",\"datatype\":\"" + std::string(kserve_datatype(spec.dtype)) +
                           "\",\"parameters\":{\"binary_data_size\":" + std::to_string(size) + "}}]}";
  again.headers.add("Inference-Header-Content-Length", std::to_string(json.size()));
  again.body = json + written.body.substr(written.body.size() - size);
  const auto back = decode_kserve(again, spec, kMaxRows);
  check(back.ok() && same(tensor, back->inputs), "a tensor's bytes are read and written alike");
  return true;
}

}  // namespace troupe::fuzz
