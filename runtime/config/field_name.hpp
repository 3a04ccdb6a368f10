/// The name of a struct's field, or of an enum's value, as the compiler prints it.
///
///   name_of<&Digits::lr>()       "lr", of any class
///   name_of_field(&Digits::lr)   "lr", of an aggregate of at most 24 fields, which need not be a constant
///   enumerator_of<Shard::kOptimizer>()   "kOptimizer"; empty for a number that has no name
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/wire/reflect.hpp"

namespace troupe {

namespace names {

/// The last identifier of a __PRETTY_FUNCTION__ before its first "; ", or before its end.
constexpr std::string_view last_name(std::string_view pretty) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  if (const auto end = pretty.rfind("; std::string_view"); end != std::string_view::npos)
    pretty = pretty.substr(0, end);
  const auto last = pretty.find_last_of(kLetters);
  const auto before = pretty.find_last_not_of(kLetters, last);
  return pretty.substr(before + 1, last - before);
}

/// An object that nobody defines: its fields' addresses are constants that the compiler prints with their
/// names (the technique of Boost.PFR).
template <class T>
struct Undefined {
  T value;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
template <class T>
extern const Undefined<T> undefined;

template <class T>
struct Address {
  T* of;
};
template <class Job, std::size_t I>
consteval auto address_of_field() {
  auto* address = &std::get<I>(wire::fields(undefined<Job>.value));
  return Address<std::remove_pointer_t<decltype(address)>>{address};
}
template <class Job, auto address>
constexpr std::string_view print_address() {
  return last_name(__PRETTY_FUNCTION__);
}
template <class Job, std::size_t... I>
constexpr auto field_names(std::index_sequence<I...>) {
  return std::array<std::string_view, sizeof...(I)>{print_address<Job, address_of_field<Job, I>()>()...};
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

template <auto field>
constexpr std::string_view print_member() {
  return last_name(__PRETTY_FUNCTION__);
}

/// Storage of a Job that was never made: only addresses are taken.
template <class Job>
union Storage {
  Storage() : none(0) {}
  ~Storage() {}
  char none;
  Job value;
};

}  // namespace names

template <auto field>
constexpr std::string_view name_of() {
  return names::print_member<field>();
}

template <auto value>
constexpr std::string_view enumerator_of() {
  constexpr std::string_view name = names::print_member<value>();
  return name.empty() || (name[0] >= '0' && name[0] <= '9') ? std::string_view() : name;
}

/// Empty if `field` is none of the aggregate's own: of a base, or of a union.
template <class Job, class F>
std::string_view name_of_field(F Job::*field) {
  names::Storage<Job> storage;
  const void* wanted = &(storage.value.*field);
  constexpr std::size_t count = std::tuple_size_v<decltype(wire::fields(std::declval<Job&>()))>;
  static constexpr auto names = names::field_names<Job>(std::make_index_sequence<count>{});
  std::size_t at = count;
  std::apply(
      [&](auto&... each) {
        std::size_t i = 0;
        ((at = static_cast<const void*>(&each) == wanted ? i : at, ++i), ...);
      },
      wire::fields(storage.value));
  return at < count ? names[at] : std::string_view();
}

}  // namespace troupe
