/// The command line of the MNIST example.
#pragma once

#include <cstdint>
#include <string>

struct MnistOptions {
  std::string data;
  int epochs = 3;
  std::int64_t max_steps = 0;
  std::int64_t evaluate_every = 0;
  std::string from;
  int trainers = 2;
  int logical_ranks = 4;
  int loaders = 1;
  int nodes = 1;
  double trainer_gpus = 0;  ///< that each trainer holds, and computes on
  std::string address;      ///< of a running cluster's head; empty: an embedded one
  std::int64_t batch = 25;
  std::uint64_t seed = 7;
  double lr = 0.02;
  std::int64_t samples = 0;
  std::string chaos;  ///< chaos.hpp reads it
  std::string checkpoint;
  bool resume = false;
  std::string json;
  std::string csv;
  std::string tensorboard;
};

/// Reads the command line. Prints help or one error and exits where there is nothing to run.
MnistOptions parse_options(int argc, char** argv);
