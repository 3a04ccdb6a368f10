#include "runtime/wire/resources.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace troupe::cluster {
namespace {

constexpr std::int64_t kOne = 10'000;
/// Of an option that is no amount.
constexpr std::int64_t kNoNumber = std::numeric_limits<std::int64_t>::min();

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= kMaxWordBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/' || c == ':';
  });
}

/// Of names that have options of their own.
bool is_taken(std::string_view name) {
  std::string low(name);
  for (char& c : low) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return low == "cpu" || low == "cpus" || low == "gpu" || low == "gpus" ||
         (low == kMemory && name != kMemory);
}

std::string in_quotes(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kMaxWordBytes)) shown += c >= ' ' && c <= '~' ? c : '?';
  return "'" + shown + "'";
}

std::string number(double value, const char* format) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  std::string out = text;
  if (out.find('.') == std::string::npos) return out;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

constexpr const char* kWords = " is not 1 to 64 of letters, digits and _ - . / :";

}  // namespace

OtherResources other_resources(std::int64_t memory_bytes, const std::map<std::string, double>& resources,
                               const std::map<std::string, std::string>& labels) {
  OtherResources other;
  for (const auto& [name, amount] : resources) {
    const bool is_number = amount >= -kMaxResource && amount <= kMaxResource;  // a NaN is none
    const std::int64_t e4 = is_number ? std::llround(amount * static_cast<double>(kOne)) : kNoNumber;
    if (name == kMemory || e4 != 0 || amount > 0)
      other.amounts.push_back({name, name == kMemory ? kNoNumber : e4});
  }
  if (memory_bytes != 0) other.amounts.push_back({std::string(kMemory), memory_bytes});
  std::sort(other.amounts.begin(), other.amounts.end());
  for (const auto& [key, value] : labels) other.labels.push_back({key, value});
  return other;
}

std::string wrong_about(const OtherResources& other) {
  const std::size_t custom = other.amounts.size() - (memory_of(other) != 0 ? 1 : 0);
  for (const auto& [count, what] :
       {std::pair(custom, "custom resources"), std::pair(other.labels.size(), "labels")}) {
    if (count > kMaxResources)
      return std::to_string(count) + " " + what + " are more than " + std::to_string(kMaxResources);
  }
  const ResourceAmount* before = nullptr;
  for (const ResourceAmount& one : other.amounts) {
    if (!is_word(one.name)) return "the resource name " + in_quotes(one.name) + kWords;
    if (is_taken(one.name)) return one.name + " is no custom resource: it has an option of its own";
    if (one.name == kMemory && one.amount == kNoNumber)
      return "memory is no custom resource: it has an option of its own";
    if (before != nullptr && before->name == one.name) return one.name + " is named twice";
    if (before != nullptr && one.name < before->name) return "its resources are not in order";
    before = &one;
    if (one.name == kMemory) {
      if (one.amount < 1 || one.amount > kMaxMemoryBytes)
        return "memory is not 1 byte to " + format_bytes(kMaxMemoryBytes);
    } else if (one.amount < 1 || one.amount > static_cast<std::int64_t>(kMaxResource) * kOne) {
      return "the amount of " + one.name +
             (one.amount == kNoNumber ? ""
                                      : ", " + number(static_cast<double>(one.amount) / kOne, "%.4f") + ",") +
             " is not 0.0001 to 1,000,000,000";
    }
  }
  const Label* last = nullptr;
  for (const Label& label : other.labels) {
    if (!is_word(label.key)) return "the label's key " + in_quotes(label.key) + kWords;
    if (!is_word(label.value))
      return "the value of label " + label.key + ", " + in_quotes(label.value) + "," + kWords;
    if (last != nullptr && label.key <= last->key)
      return "label " + label.key + " is named twice or out of order";
    last = &label;
  }
  return "";
}

std::int64_t amount_of(const ResourceAmounts& amounts, std::string_view name) {
  for (const ResourceAmount& one : amounts) {
    if (one.name == name) return one.amount;
  }
  return 0;
}

void add_amounts(ResourceAmounts& to, const ResourceAmounts& more, int sign) {
  for (const ResourceAmount& one : more) {
    const auto at = std::lower_bound(to.begin(), to.end(), one,
                                     [](const auto& a, const auto& b) { return a.name < b.name; });
    if (at == to.end() || at->name != one.name) {
      to.insert(at, {one.name, sign * one.amount});
    } else if ((at->amount += sign * one.amount) == 0) {
      to.erase(at);
    }
  }
}

bool has_amounts(const ResourceAmounts& all, const ResourceAmounts& used, const ResourceAmounts& asked) {
  return std::all_of(asked.begin(), asked.end(), [&](const ResourceAmount& one) {
    return amount_of(all, one.name) - amount_of(used, one.name) >= one.amount;
  });
}

bool has_labels(const std::vector<Label>& all, const std::vector<Label>& asked) {
  return std::all_of(asked.begin(), asked.end(), [&](const Label& label) {
    return std::find(all.begin(), all.end(), label) != all.end();
  });
}

bool share_resource(const ResourceAmounts& a, const ResourceAmounts& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const ResourceAmount& one) { return amount_of(b, one.name) > 0; });
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; unit < 4 && (value >= 1024 || value <= -1024); ++unit) value /= 1024;
  return number(value, unit == 0 ? "%.0f" : "%.1f") + " " + kUnits[unit];
}

std::string format_amount(const ResourceAmount& amount) {
  if (amount.name == kMemory) return format_bytes(amount.amount) + " of memory";
  return number(static_cast<double>(amount.amount) / static_cast<double>(kOne), "%.4f") + " " + amount.name;
}

std::string format_other(const OtherResources& other) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const ResourceAmount& one : other.amounts) add(format_amount(one));
  for (const Label& label : other.labels) add("label " + label.key + "=" + label.value);
  return text;
}

}  // namespace troupe::cluster
