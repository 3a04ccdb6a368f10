/// What a rank that fails leaves in TORCHELASTIC_ERROR_FILE.
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/result.hpp"

namespace troupe::launch {

/// The largest error file that is read.
inline constexpr std::size_t kMostErrorFileBytes = std::size_t{1} << 20;

/// The message in the text of an error file, as PyTorch's `record` writes it:
/// {"message": {"message": "ValueError: no", "extraInfo": {...}}}, or {"message": "text"}; a line of 1,000
/// bytes at most. Total. Errors: kBadInput.
Result<std::string> parse_error_file(std::string_view text);

/// The message of the file, or what is wrong with it; empty: there is none.
std::string read_error_file(const std::string& path);

}  // namespace troupe::launch
