#include "actors/tune/sweep_numerics.hpp"

#include <algorithm>
#include <fstream>

#include "actors/tune/words.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::tune {

std::optional<std::string> SweepNumerics::compare(int trial, const std::string& numerics) {
  const std::string ours =
      in_a_line(numerics.substr(0, std::min(numerics.rfind("threads "), numerics.size())));
  if (ours.empty() || told_) return std::nullopt;
  std::ifstream file(path_);
  if (std::string first; std::getline(file, first)) {
    if (first == ours) return std::nullopt;
    told_ = true;
    return "trial " + std::to_string(trial) + " computes with '" + ours + "', and trials before it with '" +
           first +
           "': it has other bits than it would have there (equal processors and LibTorch give equal ones)";
  }
  const auto wrote = write_whole(path_, ours);
  told_ = !wrote.ok();
  return wrote ? std::nullopt : std::optional(wrote.error().message());
}

}  // namespace troupe::tune
