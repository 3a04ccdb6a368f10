#include "actors/train/history.hpp"

#include <cmath>

#include "runtime/core/ids.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {
namespace {

constexpr const char* kDigits = "0123456789abcdef";

bool smaller_is_better(const std::string& metric, Mode mode) {
  return mode == Mode::kMin || (mode == Mode::kAuto && metric.ends_with("loss"));
}

}  // namespace

Best observe(Best best, const std::string& metric, Mode mode, double min_delta, int epoch, double value) {
  const double gain = smaller_is_better(metric, mode) ? best.value - value : value - best.value;
  const bool better = std::isfinite(value) && (best.epoch == 0 || gain > min_delta);
  if (better) return {epoch, value, 0};
  ++best.epochs_since;
  return best;
}

std::string encode_history(const History& history) {
  std::string text;
  for (const auto byte : wire::encode(history)) {
    const auto value = static_cast<unsigned char>(byte);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

std::optional<History> decode_history(const std::string& text) {
  if (text.size() % 2 != 0) return std::nullopt;
  wire::Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const std::string_view digits = kDigits;
    const auto high = digits.find(text[i]);
    const auto low = digits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes.push_back(static_cast<wire::Bytes::value_type>(high << 4 | low));
  }
  auto history = wire::decode<History>(bytes);
  return history ? std::optional(*std::move(history)) : std::nullopt;
}

}  // namespace troupe::train
