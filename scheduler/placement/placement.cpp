#include "scheduler/placement/placement.hpp"

#include <cstdio>

namespace troupe::cluster {

std::string format_cpus(std::int64_t cpu_e4) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", static_cast<double>(cpu_e4) / static_cast<double>(kCpu));
  std::string out = text;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

}  // namespace troupe::cluster
