/// A field of a struct, named by a pointer to it: how sweeps and configuration say which field they mean.
///
///     &Digits::lr                                       most often
///     field(&Digits::schedule, &Schedule::warmup)       "schedule.warmup": a field of a field
///     field<&Digits::lr>()                              of a class that is no plain aggregate
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <utility>

#include "runtime/config/field_name.hpp"

namespace troupe {

/// A place in a Job that holds an F.
template <class Job, class F>
struct Field {
  std::string name;
  std::function<F&(Job&)> in;
};

namespace config {

template <auto member>
struct MemberOf;
template <class Job, class F, F Job::*member>
struct MemberOf<member> {
  static Field<Job, F> field() {
    return {std::string(name_of<member>()), [](Job& job) -> F& { return job.*member; }};
  }
};

template <class Job, class Owner, class F>
requires std::derived_from<Job, Owner> Field<Job, F> field_in(F Owner::*member) {
  return {std::string(name_of_field(member)), [member](Job& job) -> F& { return job.*member; }};
}
template <class Job, class Owner, class F>
requires std::derived_from<Job, Owner> Field<Job, F> field_in(Field<Owner, F> field) {
  return {std::move(field.name), std::move(field.in)};
}

}  // namespace config

/// A field of any class: field<&Digits::lr>(). Only a class that is no plain aggregate needs it.
template <auto member>
auto field() {
  return config::MemberOf<member>::field();
}
/// A field of a field: field(&Digits::schedule, &Schedule::warmup) is "schedule.warmup".
template <class Job, class Part, class Owner, class F>
requires std::derived_from<Part, Owner> Field<Job, F> field(Part Job::*part, F Owner::*member) {
  return {std::string(name_of_field(part)) + "." + std::string(name_of_field(member)),
          [part, member](Job& job) -> F& { return job.*part.*member; }};
}

}  // namespace troupe
