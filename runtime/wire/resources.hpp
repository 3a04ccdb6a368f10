/// What a node has beside CPUs and GPUs, and what is asked of it: memory, custom resources and labels. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cluster {

/// The one resource that is counted in bytes; custom ones have other names.
inline constexpr std::string_view kMemory = "memory";
/// No node has more, and nothing asks for more: sums over all nodes fit 64 bits.
inline constexpr std::int64_t kMaxMemoryBytes = std::int64_t{1} << 48;
inline constexpr double kMaxResource = 1e9;       ///< of a custom one
inline constexpr std::size_t kMaxResources = 64;  ///< of a node or a demand; the same of labels
inline constexpr std::size_t kMaxWordBytes = 64;  ///< of a resource's name, a label's key or value

struct ResourceAmount {
  std::string name;
  std::int64_t amount = 0;  ///< in 1/10000; of memory in bytes
  auto operator<=>(const ResourceAmount&) const = default;
};
using ResourceAmounts = std::vector<ResourceAmount>;
struct Label {
  std::string key;
  std::string value;
  auto operator<=>(const Label&) const = default;
};
/// Of a node: what it has. Of a demand: what it takes of a node, and the labels that this must have.
struct OtherResources {
  ResourceAmounts amounts{};    ///< by name, each once, above 0
  std::vector<Label> labels{};  ///< by key, each once
  bool empty() const { return amounts.empty() && labels.empty(); }
  auto operator<=>(const OtherResources&) const = default;
};

/// As options have them. `memory_bytes` 0: none. What is wrong about them `wrong_about` tells.
OtherResources other_resources(std::int64_t memory_bytes, const std::map<std::string, double>& resources,
                               const std::map<std::string, std::string>& labels);
/// What makes no sense, for an error's reason; empty: nothing. Total.
std::string wrong_about(const OtherResources& other);

/// Of that resource; 0: none.
std::int64_t amount_of(const ResourceAmounts& amounts, std::string_view name);
inline std::int64_t memory_of(const OtherResources& other) {
  return amount_of(other.amounts, kMemory);
}
/// Adds what is held, or (sign -1) takes it away: what has come to 0 is gone.
void add_amounts(ResourceAmounts& to, const ResourceAmounts& more, int sign);
/// Whether so much is left.
bool has_amounts(const ResourceAmounts& all, const ResourceAmounts& used, const ResourceAmounts& asked);
/// Whether all labels that are asked for are there.
bool has_labels(const std::vector<Label>& all, const std::vector<Label>& asked);
/// Whether both ask for some of the same resource.
bool share_resource(const ResourceAmounts& a, const ResourceAmounts& b);

/// "512 MiB", "1.5 GiB".
std::string format_bytes(std::int64_t bytes);
/// "512 MiB of memory", "2 tpu".
std::string format_amount(const ResourceAmount& amount);
/// "512 MiB of memory, 2 tpu, label zone=a".
std::string format_other(const OtherResources& other);

}  // namespace troupe::cluster
