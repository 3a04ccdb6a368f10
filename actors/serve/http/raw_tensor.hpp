/// Tensors as their bytes: `Content-Type: application/octet-stream`, little-endian, contiguous, with two
/// fields beside:
///
///     Tensor-Dtype: float32
///     Tensor-Shape: 32, 1, 28, 28       the first is the number of samples
///
/// And whichever of JSON and raw a request asks for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "actors/serve/http/tensor_json.hpp"
#include "runtime/http/message.hpp"

namespace troupe::http {

inline constexpr std::string_view kRawContentType = "application/octet-stream";

/// NumPy's and LibTorch's names: "float32", "int64", "bfloat16".
std::string_view tensor_dtype_name(data::DType dtype);

/// The bytes of `body` as elements that may be read where they are, or a copy of them.
std::shared_ptr<const std::byte> keep_elements(std::string body, std::size_t element_size);

/// The samples: a tensor [rows, ...shape], which keeps `body`. The error names what is expected.
Result<data::Tensor> decode_raw(const Headers& headers, std::string body, const SampleSpec& sample,
                                std::size_t max_rows);
Response encode_raw(const data::Tensor& rows);

/// By its Content-Type: raw, or JSON whatever else it says. Takes the request's body. Answer an error with
/// 400.
Result<data::Tensor> decode_inputs(Request& request, const SampleSpec& sample, std::size_t max_rows);

/// How the client wants its answer: as its Accept says where it names one of both, else as it sent the
/// inputs. Ask before the request is moved away.
bool wants_raw(const Request& request);
/// A 200, or a 500 that says why `rows` cannot be written so.
Response encode_outputs(const data::Tensor& rows, bool raw);

}  // namespace troupe::http
