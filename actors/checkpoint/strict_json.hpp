/// JSON from outside, without its loopholes.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// Parses one JSON value that must fill `text`. Beyond the grammar (which has no NaN and no infinity) it
/// refuses duplicate keys (parsers disagree which one counts), nesting deeper than `max_depth`, invalid UTF-8
/// and numbers out of range. Memory is proportional to text.size(). The error (kCorrupt) has only its `why`
/// filled in: the caller knows what it was reading.
Result<nlohmann::json> parse_strict_json(std::string_view text, int max_depth);

/// An error whose `why` is known and whose `what` the caller adds.
inline ErrorInfo corrupt_because(std::string why) {
  return {ErrorCode::kCorrupt, "", std::move(why), ""};
}

}  // namespace troupe::checkpoint
