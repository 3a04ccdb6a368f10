/// Faults on purpose, from a flag: kill-trainer@200,kill-loader@300.
#pragma once

#include <charconv>
#include <sstream>
#include <string>
#include <string_view>
#include <troupe/train.hpp>
#include <utility>
#include <vector>

template <class Number>
Number chaos_number(std::string_view text, const std::string& item) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw troupe::BadConfig("cannot read --chaos",
                            "'" + std::string(text) + "' in '" + item + "' is no number",
                            "write kill-trainer@100");
  return value;
}

/// WHAT@STEP or WHAT:RANK@STEP.
inline troupe::train::ChaosStep chaos_step(const std::string& item) {
  using What = troupe::train::ChaosStep::What;
  static const std::vector<std::pair<std::string_view, What>> kinds = {{"kill-trainer", What::kKillTrainer},
                                                                       {"stop-trainer", What::kStopTrainer},
                                                                       {"kill-loader", What::kKillLoader},
                                                                       {"kill-head", What::kKillHead},
                                                                       {"kill-node", What::kKillNode}};
  const auto at = item.find('@');
  if (at == std::string::npos)
    throw troupe::BadConfig("cannot read --chaos", "'" + item + "' names no step", "write kill-trainer@100");
  const std::string_view text = item, named = text.substr(0, at), name = named.substr(0, named.find(':'));
  for (const auto& [known, what] : kinds) {
    if (name != known) continue;
    troupe::train::ChaosStep step{what, chaos_number<std::int64_t>(text.substr(at + 1), item)};
    if (name != named) step.rank = chaos_number<int>(named.substr(name.size() + 1), item);
    return step;
  }
  throw troupe::BadConfig("cannot read --chaos", "there is no fault '" + std::string(name) + "'",
                          "use kill-trainer, stop-trainer, kill-loader, kill-head or kill-node");
}

/// The faults of a list with commas. Throws BadConfig for what it cannot read.
inline std::vector<troupe::train::ChaosStep> parse_chaos(const std::string& text) {
  std::vector<troupe::train::ChaosStep> steps;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) steps.push_back(chaos_step(item));
  return steps;
}
