/// What the programs in golden/ begin with and print.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace troupe::train::testing {

/// The values of a net's parameter at that position, from 1: no generator is the same in Python and here.
/// REQUIRES: no gradient is recorded.
inline void set_golden_values(torch::Tensor& parameter, int position, double scale) {
  float* values = parameter.data_ptr<float>();
  for (std::int64_t i = 0; i < parameter.numel(); ++i)
    values[i] = static_cast<float>(std::sin(12.9898 * static_cast<double>(i) + 78.233 * position) * scale);
}

/// Losses of PyTorch's: a line's first word, and the numbers behind it.
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
