#include "runtime/http/metrics.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/http/message.hpp"

namespace troupe::http {
namespace {

bool is_name(std::string_view text, bool may_have_colon) {
  const auto is_letter = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c == ':' && may_have_colon);
  };
  return !text.empty() && is_letter(text.front()) && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

std::string escape(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    if (c == '\\' || (c == '"' && quotes)) out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

/// `name="value"`, as a part of a series' labels.
std::string label_text(std::string_view name, std::string_view value) {
  return std::string(name) + "=\"" + escape(value, true) + "\"";
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

void write(std::string& out, const std::string& name, const std::string& labels, const std::string& value) {
  out += name;
  if (!labels.empty()) out += '{' + labels + '}';
  out += ' ' + value + '\n';
}

void write(std::string& out, const std::string& name, const std::string& labels, const Counter& counter) {
  write(out, name, labels, std::to_string(counter.value()));
}
void write(std::string& out, const std::string& name, const std::string& labels, const Gauge& gauge) {
  write(out, name, labels, number_text(gauge.value()));
}
void write(std::string& out, const std::string& name, const std::string& labels, const Histogram& histogram) {
  std::uint64_t count = 0;
  const auto bucket = [&](std::size_t i, const std::string& bound) {
    count += histogram.in_bucket(i);
    write(out, name + "_bucket", labels + (labels.empty() ? "" : ",") + "le=\"" + bound + "\"",
          std::to_string(count));
  };
  const auto& bounds = histogram.bounds();
  for (std::size_t i = 0; i < bounds.size(); ++i) bucket(i, number_text(bounds[i]));
  bucket(bounds.size(), "+Inf");
  write(out, name + "_sum", labels, number_text(histogram.sum()));
  write(out, name + "_count", labels, std::to_string(count));
}

[[noreturn]] void refuse(std::string_view name, std::string why, std::string todo) {
  throw BadConfig("cannot make the metric '" + std::string(name) + "'", std::move(why), std::move(todo));
}

constexpr std::string_view kKinds[] = {"counter", "gauge", "histogram"};

}  // namespace

void Counter::raise_to(std::uint64_t value) {
  std::uint64_t now = value_.load(std::memory_order_relaxed);
  while (now < value && !value_.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(new std::atomic<std::uint64_t>[bounds.size() + 1]()) {
  TROUPE_ASSERT(std::is_sorted(bounds_.begin(), bounds_.end()), "a histogram's bounds ascend");
}

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::add(std::span<const std::uint64_t> counts, double sum) {
  TROUPE_ASSERT(counts.size() == bounds_.size() + 1, "a count for each bucket");
  for (std::size_t i = 0; i < counts.size(); ++i) counts_[i].fetch_add(counts[i], std::memory_order_relaxed);
  sum_.fetch_add(sum, std::memory_order_relaxed);
}

template <class Kind, class... Arguments>
std::shared_ptr<Kind> Registry::get(std::string_view name, std::string_view help, const Labels& labels,
                                    Arguments... arguments) {
  constexpr std::size_t kind = std::is_same_v<Kind, Counter> ? 0 : std::is_same_v<Kind, Gauge> ? 1 : 2;
  if (!is_name(name, true))
    refuse(name, "its name has other characters than Prometheus takes", "use a-z, 0-9 and _");
  if (kind == 0 && !name.ends_with("_total")) refuse(name, "it is a counter", "let its name end with _total");
  std::string text;
  for (const auto& [label, value] : labels) {
    if (!is_name(label, false) || label.starts_with("__") || (kind == 2 && label == "le"))
      refuse(name, "it cannot have the label '" + label + "'",
             "use a-z, 0-9 and _, and not le of a histogram");
    text += (text.empty() ? "" : ",") + label_text(label, value);
  }
  const std::lock_guard lock(mutex_);
  const auto [family, is_new] = families_.try_emplace(std::string(name), Family{std::string(help), kind, {}});
  if (family->second.kind != kind)
    refuse(name, "it is a " + std::string(kKinds[family->second.kind]) + " already", "use another name");
  auto& series = family->second.series;
  if (const auto known = series.find(text); known != series.end()) {
    if (auto held = std::get<kind>(known->second).lock()) return held;
  }
  const auto is_gone = [](const auto& weak) { return weak.expired(); };
  std::erase_if(series, [&](const auto& one) { return std::visit(is_gone, one.second); });
  auto made = std::make_shared<Kind>(arguments...);
  series[text] = std::weak_ptr(made);
  return made;
}

std::shared_ptr<Counter> Registry::counter(std::string_view name, std::string_view help,
                                           const Labels& labels) {
  return get<Counter>(name, help, labels);
}
std::shared_ptr<Gauge> Registry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  return get<Gauge>(name, help, labels);
}
std::shared_ptr<Histogram> Registry::histogram(std::string_view name, std::string_view help,
                                               const Labels& labels, std::span<const double> bounds) {
  return get<Histogram>(name, help, labels, bounds);
}

std::string Registry::text() const {
  std::string out;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, family] : families_) {
    std::string lines;
    for (const auto& series : family.series)
      std::visit(
          [&, &its_name = name](const auto& weak) {
            if (const auto one = weak.lock()) write(lines, its_name, series.first, *one);
          },
          series.second);
    if (lines.empty()) continue;
    out.append("# HELP ").append(name).append(" ").append(escape(family.help, false)).append("\n");
    out.append("# TYPE ").append(name).append(" ").append(kKinds[family.kind]).append("\n").append(lines);
  }
  return out;
}

}  // namespace troupe::http
