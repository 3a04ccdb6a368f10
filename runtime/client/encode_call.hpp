/// The arguments of a call as bytes, with the names of the objects that are given for parameters behind them.
#pragma once

#include <string_view>
#include <utility>

#include "runtime/client/argument.hpp"
#include "runtime/objects/references.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::detail {

template <class P>
void write_argument(wire::Writer& to, objects::Given& given, std::size_t place, const Argument<P>& argument) {
  if (const auto* reference = argument.reference()) {
    given.add(place, name_of(*reference));
    to.keep(*reference);
  } else {
    wire::write(to, argument.get());
  }
}

template <class... P>
CallBody encode_call(const wire::Bound& bound, std::string_view of, const Argument<P>&... argument) {
  CallBody body;
  if constexpr (sizeof...(P) != 0) {
    wire::Writer to(bound, of);
    objects::Given given;
    std::size_t place = 0;
    (write_argument(to, given, place++, argument), ...);
    body.kept = to.kept();
    if (!body.kept.empty()) given.append_to(to);
    body.bytes = to.take(of);
  }
  return body;
}

}  // namespace troupe::detail
