/// KServe's inference protocol v2 over REST, with Triton's extension for binary tensors: what `tritonclient`
/// and KServe's clients speak. (kserve: docs/predict-api/v2/required_api.md; triton-inference-server: docs/
/// protocol/extension_binary_data.md.)
///
///     POST /v2/models/digits/infer
///     {"inputs": [{"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1]}]}
///
/// A model here has one input, `input`, and one output, `output`; the first dimension of both is the number
/// of samples. Binary: the JSON is as long as Inference-Header-Content-Length says, and the tensor's
/// little-endian bytes follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "actors/serve/http/tensor_json.hpp"
#include "runtime/http/message.hpp"

namespace troupe::http {

/// "FP32" of float32; empty: the protocol has no name for it.
std::string_view kserve_datatype(data::DType dtype);

/// What a path below /v2 asks for.
struct KserveRoute {
  enum class What : std::uint8_t { kServer, kLive, kReady, kModel, kModelReady, kInfer };
  What what = What::kServer;
  std::string model;    ///< decoded
  std::string version;  ///< empty: whichever answers
};
/// Empty: there is no such path. With and without a slash at its end.
std::optional<KserveRoute> parse_kserve_path(std::string_view path);

struct KserveRequest {
  std::string id;
  data::Tensor inputs;              ///< [rows, ...shape]
  bool wants_binary = false;        ///< the output as bytes
  std::optional<Duration> timeout;  ///< its parameter "timeout", in microseconds
};
/// Takes the request's body. The error names the place and what is expected there: answer it with 400.
Result<KserveRequest> decode_kserve(Request& request, const SampleSpec& sample, std::size_t max_rows);

/// Who answers.
struct KserveModel {
  std::string name;
  std::string version;
};
/// A 200, or a 500 that says why `outputs` cannot be written so.
Response encode_kserve(const KserveModel& model, const std::string& id, bool binary,
                       const data::Tensor& outputs);
/// Metadata: what it takes and gives, -1 for the number of samples.
Response kserve_metadata(const KserveModel& model, const SampleSpec& input, const SampleSpec& output);
Response kserve_server();

}  // namespace troupe::http
