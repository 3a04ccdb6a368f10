#include "collectives/native/tree_sum.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kBlockBytes = TreeSum::Block::kBytes;
constexpr std::size_t kAheadBytes = 2048;

/// Of the first block, so that those after it begin with a line: every access of a vector as large as a line
/// would else be one to two of them.
std::size_t first_block(const std::byte* target, std::size_t element_bytes) {
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(target) % kCacheLine;
  return into_line % element_bytes == 0 ? kBlockBytes - into_line : kBlockBytes;
}

}  // namespace

Slice slice_of(std::size_t count, std::size_t element_bytes, int owner, int owners) {
  const std::size_t line = kCacheLine / element_bytes;
  const std::size_t lines = (count + line - 1) / line;
  const auto n = static_cast<std::size_t>(owners), o = static_cast<std::size_t>(owner);
  // The first lines % n owners have a line more. Not lines * o / n, which could overflow.
  const auto cut = [&](std::size_t at) { return lines / n * at + std::min(at, lines % n); };
  return {std::min(count, cut(o) * line), std::min(count, cut(o + 1) * line)};
}

TreeSum::TreeSum(const std::vector<LeafInterval>& nodes, int leaves)
    : leaves_(leaves), steps_(fold_plan(nodes, leaves)), between_(nodes.size()), current_(nodes.size()) {}

void TreeSum::run(const Kernel& kernel, std::span<const std::byte* const> sources,
                  std::span<std::byte* const> targets, std::size_t count, std::size_t element_bytes,
                  double factor) {
  TROUPE_ASSERT(sources.size() == current_.size() && !targets.empty(), "one source a node of the tree");
  const std::size_t bytes = count * element_bytes;
  for (std::byte* target : targets) claim(target, std::min(bytes, kAheadBytes));
  std::size_t size = first_block(targets[0], element_bytes);
  for (std::size_t at = 0; at < bytes; at += size, size = kBlockBytes) {
    if (at + kAheadBytes < bytes) {
      const std::size_t ahead = std::min(kBlockBytes, bytes - at - kAheadBytes);
      for (std::byte* target : targets) claim(target + at + kAheadBytes, ahead);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) current_[i] = sources[i] + at;
    block(kernel, targets, at, std::min(size, bytes - at), element_bytes, factor);
  }
}

void TreeSum::block(const Kernel& kernel, std::span<std::byte* const> targets, std::size_t at,
                    std::size_t bytes, std::size_t element_bytes, double factor) {
  const std::size_t count = bytes / element_bytes;
  for (std::size_t i = 0; kernel.scale != nullptr && i < current_.size(); ++i) {
    std::byte* scaled = between_[i].bytes;  // a sum into it may also read it
    kernel.scale(scaled, current_[i], count, factor);
    current_[i] = scaled;
  }
  std::byte* result = targets[0] + at;
  if (steps_.empty() && current_[0] != result) std::memcpy(result, current_[0], bytes);
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const auto into = static_cast<std::size_t>(steps_[s].into),
               from = static_cast<std::size_t>(steps_[s].from);
    std::byte* out = s + 1 == steps_.size() ? result : between_[into].bytes;
    kernel.combine(out, current_[into], current_[from], count);
    current_[into] = out;
  }
  if (kernel.divide != nullptr) kernel.divide(result, count, leaves_);
  for (std::size_t t = 1; t < targets.size(); ++t) std::memcpy(targets[t] + at, result, bytes);
}

}  // namespace troupe::collectives
