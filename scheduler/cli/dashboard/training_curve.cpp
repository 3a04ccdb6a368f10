#include "scheduler/cli/dashboard/training_curve.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostEvents = 50, kMostEpochs = 1000, kMostLine = std::size_t{1} << 20;

std::int64_t integer_in(const json& event, const char* key) {
  const auto at = event.find(key);
  return at != event.end() && at->is_number_integer() ? at->get<std::int64_t>() : 0;
}

}  // namespace

void TrainingCurve::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    rest_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (rest_.size() > kMostLine) rest_.clear();  // no line of ours: what is left of it is no JSON
      return;
    }
    bytes.remove_prefix(end + 1);
    if (const json event = json::parse(rest_, nullptr, false); event.is_object()) take(event);
    rest_.clear();
  }
}

void TrainingCurve::take(const json& event) {
  const auto kind = event.find("event");
  if (kind == event.end() || !kind->is_string()) return;
  if (*kind == "step") {
    const std::int64_t step =
        (integer_in(event, "epoch") - 1) * integer_in(event, "steps_per_epoch") + integer_in(event, "step");
    steps_ = step;
    last_ = event;
    const auto loss = event.find("loss");
    if (loss == event.end() || !loss->is_number() || step % every_ != 0) return;
    losses_.emplace_back(step, loss->get<double>());
    if (losses_.size() < kMostPoints) return;
    every_ *= 2;
    std::erase_if(losses_, [this](const auto& point) { return point.first % every_ != 0; });
  } else if (*kind == "epoch") {
    if (epochs_.size() < kMostEpochs) epochs_.push_back(event);
  } else {
    deaths_ += *kind == "fault";
    if (*kind == "job_started" && event.contains("what") && event["what"].is_string()) what_ = event["what"];
    events_.push_back(event);
    if (events_.size() > kMostEvents) events_.pop_front();
  }
}

json TrainingCurve::as_json() const {
  const auto last = [this](const char* key) {
    const auto at = last_.find(key);
    return at != last_.end() && at->is_number() ? *at : json();
  };
  return {{"name", name_},
          {"what", what_},
          {"steps", steps_},
          {"losses", losses_},
          {"epochs", epochs_},
          {"events", events_},
          {"loss", last("loss")},
          {"samples_per_s", last("samples_per_s")},
          {"trainers", last("trainers_alive")},
          {"deaths", deaths_}};
}

}  // namespace troupe::cli
