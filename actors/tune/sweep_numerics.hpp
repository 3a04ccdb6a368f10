/// How the trials of a sweep compute: the first that tells it has the word.
#pragma once

#include <optional>
#include <string>

namespace troupe::tune {

/// Keeps it in the sweep's folder. Not thread-safe.
class SweepNumerics {
 public:
  explicit SweepNumerics(const std::string& folder) : path_(folder + "/numerics.txt") {}

  /// `numerics`: a trial's fingerprint; threads and GPUs, which options choose, are not compared. What is to
  /// be told, once: that it computes otherwise than the first, or that this could not be written down.
  std::optional<std::string> compare(int trial, const std::string& numerics);

 private:
  const std::string path_;
  bool told_ = false;
};

}  // namespace troupe::tune
