/// The fields of structs, as configuration sees them: each with a name, and what sets it.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/config/field.hpp"
#include "runtime/config/kinds.hpp"
#include "runtime/wire/reflect.hpp"

namespace troupe::config {

/// A field that a setting fills. Refers to the struct that has it.
struct Entry {
  std::string name;      ///< with its tables: "options.epochs"
  std::string help;      ///< a line, for --help
  std::string type;      ///< "a whole number"
  std::string value;     ///< when the list was made, as TOML writes it; empty: nothing to show
  bool is_bool = false;  ///< its flag may stand without a value
  std::function<std::string(const Value&)> set;  ///< why not, or empty
  std::function<Value(std::string_view)> read;   ///< of a flag's text
};
using Entries = std::vector<Entry>;

/// "--options.micro-batch" is the flag of "options.micro_batch".
std::string flag_of(const std::string& name);

/// A struct whose fields' names the compiler can tell: no std::array, none that lists its fields itself.
template <class T>
inline constexpr bool kIsStruct =
    std::is_aggregate_v<T>&& std::is_class_v<T> && !wire::ListsFields<T> && !requires {
  std::tuple_size<T>::value;
};

/// Adds `field`, or if it is a struct its fields. A type that no setting fills is left out.
template <class F>
void add_field(Entries& to, const std::string& name, F& field, const std::string& help = {});

/// Adds all fields of a struct.
template <class T>
void add_fields(Entries& to, const std::string& table, T& of) {
  static_assert(kIsStruct<T>,
                "the fields of a struct that is no plain aggregate are named: {job, {field<&Job::lr>()}}");
  constexpr auto kNames = names::field_names<T>(
      std::make_index_sequence<std::tuple_size_v<decltype(wire::fields(std::declval<T&>()))>>{});
  std::apply(
      [&](auto&... each) {
        [[maybe_unused]] std::size_t i = 0;
        (add_field(to, (table.empty() ? "" : table + ".") + std::string(kNames[i++]), each), ...);
      },
      wire::fields(of));
}

template <class F>
void add_field(Entries& to, const std::string& name, F& field, const std::string& help) {
  if constexpr (Configurable<F>) {
    const auto now = Kind<F>::get(field);
    to.push_back({name, help, Kind<F>::type(), now ? to_text(*now) : std::string(), std::is_same_v<F, bool>,
                  [&field](const Value& value) { return Kind<F>::set(value, field); },
                  [](std::string_view text) { return Kind<F>::read(text); }});
  } else if constexpr (kIsStruct<F>) {
    if constexpr (!wire::detail::has_base<F>()) add_fields(to, name, field);
  }
}

/// A field of a T that is named, with a line for --help or without.
template <class T>
class Described {
 public:
  template <class At>
  requires requires(At at) { field_in<T>(at); }
  Described(At at, std::string help = {}) {  // NOLINT: implicit on purpose
    auto place = field_in<T>(std::move(at));
    using F = std::remove_reference_t<decltype(place.in(std::declval<T&>()))>;
    static_assert(Configurable<F> || kIsStruct<F>,
                  "no setting fills a field of this type: see runtime/config/kinds.hpp");
    add_ = [place, help = std::move(help)](Entries& to, const std::string& table, T& of) {
      add_field(to, (table.empty() ? "" : table + ".") + place.name, place.in(of), help);
    };
  }
  void add(Entries& to, const std::string& table, T& of) const { add_(to, table, of); }

 private:
  std::function<void(Entries&, const std::string&, T&)> add_;
};

/// What a type's table is called, and which of its fields are in it, where that is not: none, all. Of a type
/// that has more fields than wire::fields sees, or whose fields have lines for --help.
///     static constexpr const char* kTable = "options";
///     static void add(Entries& to, const std::string& table, T& of);
template <class T>
struct Table;

}  // namespace troupe::config
