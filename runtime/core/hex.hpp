/// Bytes as hexadecimal text, and back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Two lower-case digits a byte.
std::string to_hex(std::span<const std::byte> bytes);
/// Fills `out`. False when `text` is not two digits, of either case, for each of its bytes.
bool from_hex(std::string_view text, std::span<std::byte> out);

}  // namespace troupe
