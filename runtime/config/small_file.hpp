/// The text of a file of settings, within limits.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/core/result.hpp"

namespace troupe::config {

/// The whole text of a file, and of no pipe or device, on which a read could wait. Errors: kIo, kBadInput,
/// kLimit.
Result<std::string> read_small_file(const std::string& path, std::size_t most_bytes);

}  // namespace troupe::config
