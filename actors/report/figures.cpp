#include "actors/report/figures.hpp"

namespace troupe::report {

Figures figures_of(const Event& event) {
  if (const auto* step = std::get_if<StepDone>(&event)) {
    return {step->epoch,
            (step->epoch - 1) * step->steps_per_epoch + step->step,
            {{"step/loss", step->loss},
             {"step/samples_per_s", step->samples_per_s},
             {"step/trainers", static_cast<double>(step->trainers_alive)}}};
  }
  Figures all;
  if (const auto* epoch = std::get_if<EpochDone>(&event)) {
    all.epoch = epoch->epoch;
    all.global_step = epoch->global_step;
    for (const auto& [name, value] : epoch->metrics) all.figures.push_back({name, value});
  }
  return all;
}

}  // namespace troupe::report
