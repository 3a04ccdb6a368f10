#include "actors/ddp/unit_plan.hpp"

#include <algorithm>
#include <set>

#include "runtime/core/error.hpp"
#include "runtime/core/escape.hpp"

namespace troupe::train {
namespace {

constexpr std::size_t kNamesInError = 20;

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw BadConfig("cannot shard the module", std::move(why), std::move(todo));
}

bool is_in(const std::string& name, const std::string& module) {
  return module.empty() || (name.size() > module.size() && name[module.size()] == '.' &&
                            name.compare(0, module.size(), module) == 0);
}

/// The innermost unit that a parameter is in; empty: the root.
std::string owner_of(const std::string& parameter, const std::set<std::string>& units) {
  std::string owner;
  for (const std::string& unit : units) {
    if (is_in(parameter, unit) && unit.size() > owner.size()) owner = unit;
  }
  return owner;
}

/// Those that are named, each a module and once.
std::set<std::string> named_units(const std::vector<std::string>& modules,
                                  const std::vector<std::string>& units) {
  std::set<std::string> found;
  for (const std::string& unit : units) {
    if (!found.insert(unit).second)
      refuse("unit " + shown_name(unit) + " is there twice", "name every unit once");
    if (!unit.empty() && std::find(modules.begin(), modules.end(), unit) != modules.end()) continue;
    std::string known;
    for (std::size_t i = 0; i < std::min(modules.size(), kNamesInError); ++i) {
      if (!modules[i].empty()) known += (known.empty() ? "" : ", ") + shown_name(modules[i]);
    }
    if (modules.size() > kNamesInError) known += ", ...";
    refuse("unit '" + shown_name(unit) + "' is no module of it",
           known.empty() ? "it has no modules: leave them out" : "name some of " + known);
  }
  return found;
}

/// PyTorch's size_based_auto_wrap_policy.
void add_large(const std::vector<std::string>& modules, const std::vector<std::string>& containers,
               const std::vector<PlannedParameter>& parameters, std::size_t least,
               std::set<std::string>& units) {
  std::vector<std::string> innermost_first = modules;
  const auto depth = [](const std::string& name) { return std::count(name.begin(), name.end(), '.'); };
  std::stable_sort(innermost_first.begin(), innermost_first.end(),
                   [&](const std::string& a, const std::string& b) { return depth(a) > depth(b); });
  for (const std::string& module : innermost_first) {
    if (module.empty() || std::find(containers.begin(), containers.end(), module) != containers.end())
      continue;
    std::size_t elements = 0;
    for (const PlannedParameter& parameter : parameters) {
      const std::string& name = parameter.names.front();
      if (is_in(name, module) && !is_in(owner_of(name, units) + ".", module)) elements += parameter.elements;
    }
    if (elements >= least) units.insert(module);
  }
}

}  // namespace

std::string text_of_unit(const std::string& name) {
  return name.empty() ? "the root" : "unit " + name;
}

std::vector<PlannedUnit> plan_units(const std::vector<std::string>& modules,
                                    const std::vector<std::string>& containers,
                                    const std::vector<PlannedParameter>& parameters,
                                    const FsdpOptions& options) {
  std::set<std::string> names = named_units(modules, options.units);
  if (options.min_num_params > 0) add_large(modules, containers, parameters, options.min_num_params, names);
  std::vector<PlannedUnit> units;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const PlannedParameter& parameter = parameters[i];
    const std::string owner = owner_of(parameter.names.front(), names);
    for (const std::string& other : parameter.names) {
      if (const std::string its = owner_of(other, names); its != owner) {
        refuse("parameter " + parameter.names.front() + " of " + text_of_unit(owner) + " is parameter " +
                   other + " of " + text_of_unit(its) + ", too",
               "make one unit of the modules that share it, or leave both to the root");
      }
    }
    auto unit = std::find_if(units.begin(), units.end(), [&](const auto& one) { return one.name == owner; });
    if (unit == units.end()) unit = units.insert(units.end(), PlannedUnit{owner, {}});
    if (!unit->members.empty()) {
      const PlannedParameter& first = parameters[unit->members.front()];
      if (first.dtype != parameter.dtype) {
        refuse(text_of_unit(owner) + " has parameters of several types: " + first.names.front() + " is " +
                   first.dtype + ", " + parameter.names.front() + " is " + parameter.dtype,
               "convert the module before wrapping, or make units of one type each");
      }
    }
    unit->members.push_back(i);
  }
  for (const std::string& name : options.units) {
    if (std::none_of(units.begin(), units.end(), [&](const auto& unit) { return unit.name == name; }))
      refuse("unit " + name + " has no parameter that requires a gradient and is in no other unit",
             "leave it out");
  }
  return units;
}

}  // namespace troupe::train
