/// Trials of ASHA on MNIST, two at a time.
#pragma once

#include <string>

#include "scheduler/init/init.hpp"

namespace troupe::bench {

struct AshaTrials {
  int trials = 64;
  std::int64_t samples = 6000;  ///< of an epoch
  std::int64_t evaluated = 1000;
  int epochs = 9;
  std::int64_t batch = 50;
};

struct AshaFigures {
  double seconds = 0;
  double training_s = 0;  ///< all trials' steps and evaluations
  double idle_s = 0;      ///< of both places, until no trial was left for the second one
  std::int64_t epochs = 0;
  double best = 0;
};

/// `folder`: of MNIST's files. `json`: a file for the configs, which the peer takes.
AshaFigures asha_trials(const DriverSession& session, const AshaTrials& of, const std::string& folder,
                        const std::string& json);

}  // namespace troupe::bench
