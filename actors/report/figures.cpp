#include "actors/report/figures.hpp"

#include <cmath>

namespace troupe::report {

Figures figures_of(const Event& event) {
  if (const auto* step = std::get_if<StepDone>(&event)) {
    Figures all{
        step->epoch, (step->epoch - 1) * step->steps_per_epoch + step->step, {{"step/loss", step->loss}}};
    // The first step has nothing before it to be measured from.
    if (std::isfinite(step->samples_per_s))
      all.figures.push_back({"step/samples_per_s", step->samples_per_s});
    all.figures.push_back({"step/trainers", static_cast<double>(step->trainers_alive)});
    for (const auto& [name, value] : step->values) all.figures.push_back({"step/" + name, value});
    return all;
  }
  Figures all;
  const auto take = [&](const auto& epoch) {
    all.epoch = epoch.epoch;
    all.global_step = epoch.global_step;
    for (const auto& [name, value] : epoch.metrics) all.figures.push_back({name, value});
  };
  if (const auto* epoch = std::get_if<EpochDone>(&event)) take(*epoch);
  if (const auto* within = std::get_if<Evaluated>(&event)) take(*within);
  return all;
}

}  // namespace troupe::report
