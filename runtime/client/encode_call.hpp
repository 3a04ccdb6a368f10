/// The arguments of a call as bytes, with the names of the objects that are given for parameters behind them.
/// What is too large for a message becomes an object by itself, which lives until the call is answered.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "runtime/client/argument.hpp"
#include "runtime/objects/references.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::detail {

/// Arguments above this become objects: so many bytes that a message of eight such parts can be sent. Less
/// where the thread may wait for shared memory.
std::size_t most_in_message();

/// The arguments of a call, some of them objects. Objects of a process have no bound but its node's store.
class CallParts {
 public:
  /// REQUIRES: `gate` has objects. `bound` and `of` outlive this.
  CallParts(ProcessGate& gate, const wire::Bound& bound, std::string_view of)
      : gate_(gate), of_(of), message_(bound, of), most_(most_in_message()) {}

  /// A parameter's value as it is encoded, with what it refers to.
  void add(std::size_t place, wire::Bytes&& bytes, std::vector<std::shared_ptr<const void>> kept);
  /// Numbers as they lie. False: they are few, and to be encoded.
  bool add_numbers(std::size_t place, wire::ByteView numbers);
  void refer(std::size_t place, const objects::HandlePtr& object);
  CallBody take();

 private:
  template <class Put>
  void put(std::size_t place, std::size_t bytes, Put put);

  ProcessGate& gate_;
  const std::string_view of_;
  wire::Writer message_;
  const std::size_t most_;
  objects::Given given_;
  std::uint64_t object_bytes_ = 0;
};

template <class P>
void write_argument(wire::Writer& to, objects::Given& given, std::size_t place, const Argument<P>& argument) {
  if (const auto* reference = argument.reference()) {
    given.add(place, name_of(*reference));
    to.keep(*reference);
  } else {
    wire::write(to, argument.get());
  }
}

template <class P>
void write_part(CallParts& to, std::string_view of, std::size_t place, const Argument<P>& argument) {
  if (const auto* reference = argument.reference()) return to.refer(place, *reference);
  if constexpr (kIsNumbers<StoredArg<P>>) {
    if (to.add_numbers(place, std::as_bytes(std::span(argument.get())))) return;
  }
  wire::Writer part;
  wire::write(part, argument.get());
  auto kept = part.kept();
  to.add(place, part.take(of), std::move(kept));
}

template <class... P>
CallBody encode_message(const wire::Bound& bound, std::string_view of, const Argument<P>&... argument) {
  CallBody body;
  wire::Writer to(bound, of);
  objects::Given given;
  std::size_t place = 0;
  (write_argument(to, given, place++, argument), ...);
  body.kept = to.kept();
  if (!body.kept.empty()) given.append_to(to);
  body.bytes = to.take(of);
  return body;
}

/// `gate`: null, or one without objects: all goes into the message, within `bound`. Throws LimitExceeded when
/// it does not fit, or when there is no room for an object.
template <class... P>
CallBody encode_call(ProcessGate* gate, const wire::Bound& bound, std::string_view of,
                     const Argument<P>&... argument) {
  if constexpr (sizeof...(P) == 0) {
    return {};
  } else {
    if (gate == nullptr || gate->objects() == nullptr) return encode_message(bound, of, argument...);
    try {  // most are small
      const wire::Bound small{most_in_message(), bound.what, bound.todo};
      return encode_message(small, of, argument...);
    } catch (const LimitExceeded&) {
      CallParts parts(*gate, bound, of);
      std::size_t place = 0;
      (write_part(parts, of, place++, argument), ...);
      return parts.take();
    }
  }
}

/// The constructor arguments in an object of their own.
CallBody put_constructor(ProcessGate& gate, std::string_view of, CallBody body);

/// As encode_call. Of what does not fit, all the arguments become one object.
template <class... T>
CallBody encode_constructor(ProcessGate& gate, const wire::Bound& bound, std::string_view of,
                            const T&... argument) {
  const bool is_unbounded = bound.bytes == wire::kUnbounded.bytes;  // it goes into no message
  if (is_unbounded || gate.objects() == nullptr) return encode_constructor(bound, of, argument...);
  try {
    const wire::Bound small{std::min(bound.bytes, most_in_message()), bound.what, bound.todo};
    return encode_constructor(small, of, argument...);
  } catch (const LimitExceeded&) {
    return put_constructor(gate, of, encode_constructor(wire::kUnbounded, of, argument...));
  }
}

}  // namespace troupe::detail
