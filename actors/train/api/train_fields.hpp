/// What troupe::configure fills of TrainOptions and InitOptions.
#pragma once

#include "actors/train/api/train.hpp"
#include "runtime/config/configure.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::config {

template <>
struct Table<train::TrainOptions> {
  static constexpr const char* kTable = "options";
  static void add(Entries& to, const std::string& table, train::TrainOptions& of);
};
template <>
struct Table<InitOptions> {
  static constexpr const char* kTable = "cluster";
  static void add(Entries& to, const std::string& table, InitOptions& of);
};

}  // namespace troupe::config
