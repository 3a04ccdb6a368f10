/// Argument<P>: what a method's parameter of type P accepts at a call.
///
/// As brace initialisation does: a conversion that could change the value does not compile, unless the
/// argument is a constant that fits: call<&T::resize>(5) is fine for a std::size_t, call<&T::resize>(n) with
/// an int n is not. Integers that a floating parameter holds exactly are fine, too.
#pragma once

#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/host/method.hpp"
#include "runtime/objects/object_ref.hpp"

namespace troupe {

// Never defined: reached only by the compiler, which names them in its message.
void this_variable_could_lose_its_value_pass_the_type_of_the_parameter_or_use_static_cast();
void this_constant_does_not_fit_its_parameter();

namespace detail {

template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

/// Every value of integer type A is one of floating type P.
template <class A, class P>
inline constexpr bool kExactAs =
    std::is_integral_v<A> && !std::is_same_v<A, bool> && std::is_floating_point_v<P> &&
    std::numeric_limits<A>::digits <= std::numeric_limits<P>::digits;

template <class A, class P>
consteval bool accepts() {
  if constexpr (std::is_same_v<A, P>) {
    return true;
  } else if constexpr (Arithmetic<P>) {
    if constexpr (std::is_same_v<P, bool>) {
      return std::is_class_v<A> && std::is_convertible_v<A, bool>;
    } else {
      return kExactAs<A, P> || (std::is_convertible_v<A, P> && requires { P{std::declval<const A&>()}; });
    }
  } else if constexpr (wire::detail::kIsA<P, std::optional>) {
    if constexpr (wire::detail::kIsA<A, std::optional>)
      return accepts<typename A::value_type, typename P::value_type>();
    else
      return std::is_same_v<A, std::nullopt_t> || accepts<A, typename P::value_type>();
  } else {
    return std::is_convertible_v<A, P> || std::is_convertible_v<A&, P>;
  }
}

/// Arithmetic that only a constant may cross: integers to integers and floats, floats to floats.
template <class A, class P>
concept NeedsConstant =
    Arithmetic<A> && Arithmetic<P> && !std::is_same_v<A, bool> && !std::is_same_v<P, bool> &&
    !accepts<A, P>() && !(std::is_floating_point_v<A> && std::is_integral_v<P>);

template <class P, class A>
consteval P constant(A value) {
  const P converted = static_cast<P>(value);
  if constexpr (std::is_integral_v<A>) {
    if constexpr (std::is_integral_v<P>) {
      if (!std::in_range<P>(value)) this_constant_does_not_fit_its_parameter();
    } else {
      if (static_cast<A>(converted) != value) this_constant_does_not_fit_its_parameter();
    }
  } else {
    if (value > std::numeric_limits<P>::max() || value < std::numeric_limits<P>::lowest()) {
      this_constant_does_not_fit_its_parameter();
    }
  }
  return converted;
}

}  // namespace detail

/// Lives for the call's expression. Views the argument if it is a P already.
template <class P>
class Argument {
 public:
  template <class A>
  requires(std::is_same_v<std::remove_cvref_t<A>, P>) Argument(A&& a)
      : value_(&a) {}  // NOLINT: implicit on purpose
  template <class A>
  requires(!std::is_same_v<std::decay_t<A>, P> && detail::accepts<std::decay_t<A>, P>()) Argument(A&& a)
      : converted_(static_cast<P>(std::forward<A>(a))), value_(&*converted_) {}  // NOLINT
  /// A list in braces, where P takes one: call<&T::sum>({1, 2, 3}).
  template <class List = P>
  requires std::is_constructible_v<P, std::initializer_list<typename List::value_type>> Argument(
      std::initializer_list<typename List::value_type> list)  // NOLINT
      : converted_(P(list)), value_(&*converted_) {}
  /// An object whose value the parameter gets, where the call arrives.
  template <class A>
  requires(detail::kRefersTo<std::decay_t<A>, P>) Argument(A&& a) : reference_(&a.handle()) {  // NOLINT
    if (!a) detail::throw_empty_reference();
  }
  template <class A>
  requires(detail::NeedsConstant<A, P>) consteval Argument(const A& a) {  // NOLINT
    if (!__builtin_constant_p(a)) {
      this_variable_could_lose_its_value_pass_the_type_of_the_parameter_or_use_static_cast();
    }
    converted_ = detail::constant<P>(a);
  }
  template <class A>
  requires(!std::is_same_v<std::decay_t<A>, P> && !detail::accepts<std::decay_t<A>, P>() &&
           !detail::NeedsConstant<std::decay_t<A>, P> && !detail::kRefersTo<std::decay_t<A>, P>)
      Argument(A&&) {  // NOLINT
    static_assert(
        !sizeof(A),
        "call<&T::method>(args...): an argument does not convert to its parameter without loss: pass the "
        "type of the parameter, or use static_cast");
  }
  Argument(const Argument&) = delete;
  Argument& operator=(const Argument&) = delete;

  constexpr const P& get() const {
    if (reference_ != nullptr) detail::throw_given_reference();
    return value_ != nullptr ? *value_ : *converted_;
  }
  /// Null: it is a value.
  constexpr const objects::HandlePtr* reference() const { return reference_; }

 private:
  std::optional<P> converted_;
  const P* value_ = nullptr;
  const objects::HandlePtr* reference_ = nullptr;
};

namespace detail {

struct NoParameter {
  NoParameter() = delete;
};
template <class Tuple, std::size_t I>
struct ParameterAt {
  using type = NoParameter;
};
template <class Tuple, std::size_t I>
requires(I < std::tuple_size_v<Tuple>) struct ParameterAt<Tuple, I> {
  using type = Argument<std::tuple_element_t<I, Tuple>>;
};
/// The I-th argument of a call of M; a type without values if M has fewer.
template <auto M, std::size_t I>
using ArgumentOf = typename ParameterAt<typename MethodTraits<decltype(M)>::Parameters, I>::type;

template <auto M, std::size_t N>
concept Takes = std::tuple_size_v<typename MethodTraits<decltype(M)>::Parameters>
== N;

inline constexpr std::size_t kMostArguments = 8;

/// For a number of arguments that M does not take.
template <auto M, std::size_t N>
constexpr void refuse_count() {
  constexpr std::size_t takes = std::tuple_size_v<typename MethodTraits<decltype(M)>::Parameters>;
  static_assert(takes <= kMostArguments || N != takes,
                "call<&T::method>(args...): a call has at most 8 arguments: pass a struct");
  static_assert(N >= takes,
                "call<&T::method>(args...): too few arguments: pass one for every parameter of the method");
  static_assert(N <= takes,
                "call<&T::method>(args...): too many arguments: pass one for every parameter of the method");
}

}  // namespace detail
}  // namespace troupe
