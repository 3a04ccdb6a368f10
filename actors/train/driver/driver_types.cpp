#include "actors/train/driver/driver_types.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe::train {

/// The first failure is answered at once, later ones with a pause that doubles.
Duration RestartPolicy::pause_after(int failures) const {
  if (failures <= 1) return Duration{0};
  Duration pause = first_pause;
  for (int n = 2; n < failures && pause < longest_pause; ++n) pause *= 2;
  return std::min(pause, longest_pause);
}

std::string seconds_of(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", to_seconds(duration));
  return text;
}

}  // namespace troupe::train
