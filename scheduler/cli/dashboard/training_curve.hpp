/// The curves of a training run, from the lines that it writes with .events_json.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::cli {

/// Keeps at most kMostPoints losses, evenly spread, however long the run is. Pure.
class TrainingCurve {
 public:
  static constexpr std::size_t kMostPoints = 1000;

  explicit TrainingCurve(std::string name) : name_(std::move(name)) {}
  /// The file's next bytes; the end of a line may come later. What is no event is left out.
  void feed(std::string_view bytes);
  /// {"name", "what", "losses": [[step, loss], ...], "epochs": [{figures}, ...], "events": [...], "steps",
  /// "loss", "samples_per_s", "trainers", "deaths": survived}; of the last step, null before there was one
  nlohmann::json as_json() const;

 private:
  void take(const nlohmann::json& event);

  std::string name_, rest_, what_;
  std::int64_t steps_ = 0, every_ = 1, deaths_ = 0;
  nlohmann::json last_ = nlohmann::json::object();  ///< step
  std::vector<std::pair<std::int64_t, double>> losses_;
  nlohmann::json epochs_ = nlohmann::json::array();
  std::deque<nlohmann::json> events_;  ///< deaths and what else is no step, the last of them
};

}  // namespace troupe::cli
