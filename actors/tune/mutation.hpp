/// What population-based training changes of a config: fields of the space, and where a new value comes from.
///
///   tune::Pbt{.mutations = {&Digits::lr,                                                // from its own
///   domain
///                           {&Digits::batch, tune::choice({16, 32, 64})},               // from this list
///                           {&Digits::drop, [](Random& r) { return r.uniform() / 2; }}}}  // from a function
///
/// A field that its domain or function does not fit does not compile; one that the space does not draw is
/// refused when the sweep begins. Ray Tune: hyperparam_mutations.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/tune/domain.hpp"
#include "actors/tune/space.hpp"

namespace troupe::tune {

namespace detail {

template <class At>
struct Target;
template <class Job, class F>
struct Target<F Job::*> {
  using Type = F;
  static std::string name(F Job::*member) { return std::string(name_of_field(member)); }
};
template <class Job, class F>
struct Target<Field<Job, F>> {
  using Type = F;
  static std::string name(const Field<Job, F>& field) { return field.name; }
};
template <class At>
concept Targets = requires {
  typename Target<At>::Type;
};
template <class Of, class At>
concept Makes = std::invocable<Of&, Random&> && std::convertible_to < std::invoke_result_t<Of&, Random&>,
typename Target<At>::Type > ;

}  // namespace detail

struct Mutation {
  std::string name;                      ///< of the field
  std::optional<Domain> domain{};        ///< none: the space's
  std::function<Value(Random&)> draw{};  ///< instead of a domain. Of nothing but its random numbers

  explicit Mutation(std::string field, std::optional<Domain> from = {})
      : name(std::move(field)), domain(std::move(from)) {}
  template <detail::Targets At>
  Mutation(At at) : name(detail::Target<At>::name(at)) {}  // NOLINT: implicit on purpose
  template <detail::Targets At, class Of>
  requires detail::kFits<typename detail::Target<At>::Type, Of> Mutation(At at, Of of)
      : Mutation(std::move(at)) {
    domain = std::move(of.domain);
  }
  template <detail::Targets At, class Of>
  requires detail::Makes<Of, At> Mutation(At at, Of of) : Mutation(std::move(at)) {
    draw = [of = std::move(of)](Random& random) mutable {
      return detail::to_value(static_cast<typename detail::Target<At>::Type>(of(random)));
    };
  }
};

}  // namespace troupe::tune
