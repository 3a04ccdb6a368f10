/// Losses of PyTorch's, as the programs in golden/ print them.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace troupe::train::testing {

/// A line's first word, and the numbers behind it.
inline std::map<std::string, std::vector<double>> golden_losses(const std::string& path) {
  std::map<std::string, std::vector<double>> golden;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (double loss = 0; words >> loss;) golden[name].push_back(loss);
  }
  return golden;
}

}  // namespace troupe::train::testing
