/// Samples as JSON, and back:
///
///     {"inputs": [sample, sample]}      each sample nested lists of the shape that is served: [[0, 0.5], [1,
///     0]]
///     {"outputs": [output, output]}     in the same order
///
/// Numbers cross as the shortest decimal that reads back as the same value. NaN and the infinities are no
/// numbers of JSON: they are refused in both directions, for a null in their place would be read as something
/// else, and a net that answers NaN is broken. Raw tensors (raw_tensor.hpp) carry them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "actors/data/tensor.hpp"
#include "runtime/core/result.hpp"

namespace troupe::http {

/// What is served: one sample, without the dimension of the batch.
struct SampleSpec {
  data::DType dtype = data::DType::kFloat32;
  data::Shape shape;
};

/// The samples one after the other: a tensor [rows, ...shape]. Of float32, float64, int64, int32, uint8 and
/// bool; others are refused. `json` grows by the padding that simdjson reads (none, where it is a Request's
/// body). Decoding holds some six times the bytes of `json` for a moment. The error names the place and what
/// is expected there.
Result<data::Tensor> decode_json(std::string& json, const SampleSpec& sample, std::size_t max_rows);

/// Appends the elements as JSON: a list for the first dimension of `nesting`, and lists in it for the others.
/// An error, or empty: what is no number of JSON, and types that have none. REQUIRES: `nesting` has as many
/// elements as `tensor`.
std::optional<ErrorInfo> append_json(std::string& out, const data::Tensor& tensor,
                                     const data::Shape& nesting);

/// {"outputs": [...]}: a list for the first dimension, and lists in it for the others.
Result<std::string> encode_json(const data::Tensor& rows);

}  // namespace troupe::http
