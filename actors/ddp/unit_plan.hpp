/// Which parameters are sharded together: a pure function of names and sizes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "actors/ddp/fsdp_options.hpp"

namespace troupe::train {

/// A parameter, for the plan.
struct PlannedParameter {
  std::vector<std::string> names;  ///< every name it has; more than one: modules share it
  std::size_t elements = 0;
  std::string dtype;
};

struct PlannedUnit {
  std::string name;                  ///< of its module; empty: the root
  std::vector<std::size_t> members;  ///< positions in the parameters, ascending
};

/// How a unit is called in errors: "unit layers.0", "the root".
std::string text_of_unit(const std::string& name);

/// Units in the order of their first parameters; every parameter is in one. `modules` are the names of the
/// tree's, in its order; `containers` those that hold others and compute nothing. Throws BadConfig for a unit
/// that is no module, is there twice or has no parameters, for a parameter that modules of two units share,
/// and for a unit of several dtypes.
std::vector<PlannedUnit> plan_units(const std::vector<std::string>& modules,
                                    const std::vector<std::string>& containers,
                                    const std::vector<PlannedParameter>& parameters,
                                    const FsdpOptions& options);

}  // namespace troupe::train
