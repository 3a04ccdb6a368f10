#include "actors/train/driver/history.hpp"

#include <cmath>

#include "runtime/core/hex.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {
namespace {

bool smaller_is_better(const std::string& metric, Mode mode) {
  return mode == Mode::kMin || (mode == Mode::kAuto && metric.ends_with("loss"));
}

}  // namespace

Best observe(Best best, const std::string& metric, Mode mode, double min_delta, std::int64_t step,
             double value) {
  const double gain = smaller_is_better(metric, mode) ? best.value - value : value - best.value;
  const bool better = std::isfinite(value) && (best.step == 0 || gain > min_delta);
  if (better) return {step, value, 0};
  ++best.since;
  return best;
}

std::string encode_history(const History& history) {
  return to_hex(wire::encode(history));
}

std::optional<History> decode_history(const std::string& text) {
  wire::Bytes bytes(text.size() / 2);
  if (!from_hex(text, bytes)) return std::nullopt;
  auto history = wire::decode<History>(bytes);
  return history ? std::optional(*std::move(history)) : std::nullopt;
}

}  // namespace troupe::train
