/// The numbers in an event, by name, for whatever plots them.
#pragma once

#include <string>
#include <vector>

#include "actors/report/events.hpp"

namespace troupe::report {

struct Figure {
  std::string name;  ///< "step/loss", "test/accuracy"
  double value = 0;
};

struct Figures {
  int epoch = 0;                 ///< from 1
  std::int64_t global_step = 0;  ///< steps committed since the start of the job
  std::vector<Figure> figures;   ///< none: the event has no numbers to plot
};

Figures figures_of(const Event& event);

}  // namespace troupe::report
