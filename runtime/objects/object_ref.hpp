/// ObjectRef<T>: a value that was put once and is read where it is needed. View<E>: its numbers, without a
/// copy.
///
///   troupe::ObjectRef<std::vector<float>> points = session.put(samples);
///   auto sum = session.submit<&area>(points);   // double area(const troupe::View<float>& points)
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/host/process_gate.hpp"
#include "runtime/objects/object_name.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {

namespace objects {
class Handle;
class ObjectBytes;
using HandlePtr = std::shared_ptr<const Handle>;
using BytesPtr = std::shared_ptr<const ObjectBytes>;
}  // namespace objects

namespace detail {

/// The object's bytes. Waits for them, in a light actor too if they are here. Throws ObjectLost, Timeout.
objects::BytesPtr get_object(const objects::HandlePtr& handle, Duration timeout);
wire::ByteView bytes_of(const objects::BytesPtr& object);
objects::HandlePtr put_object(ProcessGate& gate, wire::ByteView bytes);
objects::HandlePtr put_object(ProcessGate& gate, wire::Bytes&& bytes);
/// A reference that arrived in this process.
objects::HandlePtr hold_object(const objects::ObjectName& name);
objects::ObjectName name_of(const objects::HandlePtr& handle);
/// Of the call at hand: the object that parameter `place` is given by; null: it is a value.
const objects::BytesPtr* given_object(std::size_t place);
/// The arguments of the call at hand are decoded: what else runs in this thread has others.
void end_decoding();
[[noreturn]] void throw_empty_reference();
[[noreturn]] void throw_given_reference();
[[noreturn]] void throw_undecodable(const ErrorInfo& why);

/// A vector whose elements lie in an object as they lie in memory.
template <class T>
inline constexpr bool kIsNumbers = false;
template <class E>
requires(!std::is_same_v<E, bool>) inline constexpr bool kIsNumbers<std::vector<E>> =
    wire::detail::is_flat<E>();

}  // namespace detail

/// Numbers that are read where they lie, in shared memory or in this process; they stay while it lives, also
/// when the object has gone. Copyable. Thread-safe.
template <class E>
class View {
 public:
  using value_type = E;
  View() = default;
  explicit View(objects::BytesPtr object) : object_(std::move(object)) {
    const auto bytes = detail::bytes_of(object_);
    numbers_ = {reinterpret_cast<const E*>(bytes.data()), bytes.size() / sizeof(E)};
  }
  const E* data() const { return numbers_.data(); }
  std::size_t size() const { return numbers_.size(); }
  bool empty() const { return numbers_.empty(); }
  auto begin() const { return numbers_.begin(); }
  auto end() const { return numbers_.end(); }
  const E& operator[](std::size_t i) const { return numbers_[i]; }
  std::span<const E> span() const { return numbers_; }
  operator std::span<const E>() const { return numbers_; }  // NOLINT: implicit on purpose

 private:
  objects::BytesPtr object_;
  std::span<const E> numbers_;
};

/// A parameter alone, which an ObjectRef is given for.
template <class E>
struct wire::Codec<View<E>> {
  static void encode(Writer& to, const View<E>&) { to.refuse("a View is given by an ObjectRef"); }
  static bool decode(Reader& from, View<E>&) { return from.fail("a View is given by an ObjectRef"); }
};

namespace detail {

template <class T>
inline constexpr bool kIsView = false;
template <class E>
inline constexpr bool kIsView<View<E>> = true;

/// The value of an object.
template <class T>
bool load(const objects::BytesPtr& object, T& value) {
  const wire::ByteView bytes = bytes_of(object);
  if constexpr (kIsNumbers<T>) {
    using E = typename T::value_type;
    if (bytes.size() % sizeof(E) != 0) return false;
    value.resize(bytes.size() / sizeof(E));
    if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
    return true;
  } else if constexpr (kIsView<T>) {
    value = T(object);
    return bytes.size() % sizeof(typename T::value_type) == 0;
  } else {
    wire::Reader from(bytes);
    return wire::read(from, value) && from.finish();
  }
}

/// An argument of the call at hand, by value or by reference.
template <class T>
bool read_argument(wire::Reader& from, std::size_t place, T& argument) {
  if (const auto* object = given_object(place))
    return load(*object, argument) || from.fail("an object is of another type than its parameter");
  return wire::read(from, argument);
}

}  // namespace detail

/// A reference to a value of type T that some process has put, or that a task computes. Copyable; crosses
/// processes as an argument of calls, tasks and constructors, and in the answers of calls and submitted
/// tasks. The value lives while a reference to it does and the process that put it lives. Thread-safe. A
/// default-constructed one throws BadConfig when used.
template <class T>
class ObjectRef {
 public:
  using value_type = T;
  ObjectRef() = default;
  explicit ObjectRef(objects::HandlePtr handle) : handle_(std::move(handle)) {}

  /// The value; waits for it if it is not on this node yet. Throws ObjectLost if the process that put it is
  /// gone, what the task threw that computes it, Unavailable if the link to it broke, Timeout (default: ten
  /// minutes). A light actor may not wait: it can get what it put itself, or was given as an argument.
  T get(Duration timeout = std::chrono::minutes(10)) const {
    T value{};
    if (!detail::load(detail::get_object(checked(), timeout), value)) {
      detail::throw_undecodable(
          {ErrorCode::kBadInput, "cannot get an object", "it is of another type", "get it as what was put"});
    }
    return value;
  }
  /// Of a vector of numbers: they themselves, without a copy. Throws as get().
  auto view(Duration timeout = std::chrono::minutes(10)) const requires detail::kIsNumbers<T> {
    return View<typename T::value_type>(detail::get_object(checked(), timeout));
  }

  explicit operator bool() const { return handle_ != nullptr; }
  /// For the runtime.
  const objects::HandlePtr& handle() const { return handle_; }

 private:
  const objects::HandlePtr& checked() const {
    if (handle_ == nullptr) detail::throw_empty_reference();
    return handle_;
  }
  objects::HandlePtr handle_;
};

template <class T>
struct wire::Codec<ObjectRef<T>> {
  static void encode(Writer& to, const ObjectRef<T>& reference) {
    if (reference) to.keep(reference.handle());
    const objects::ObjectName name =
        reference ? troupe::detail::name_of(reference.handle()) : objects::ObjectName{};
    write(to, name);
  }
  static bool decode(Reader& from, ObjectRef<T>& reference) {
    objects::ObjectName name;
    if (!read(from, name)) return false;
    reference = name ? ObjectRef<T>(troupe::detail::hold_object(name)) : ObjectRef<T>();
    return true;
  }
};

namespace detail {

/// What a parameter of type P may be given by: an ObjectRef of this.
template <class P>
struct ReferredBy {
  using type = P;
};
template <class E>
struct ReferredBy<View<E>> {
  using type = std::vector<E>;
};
template <class A, class P>
inline constexpr bool kRefersTo =
    std::is_same_v<A, ObjectRef<typename ReferredBy<P>::type>> && !std::is_same_v<A, P>;

template <class T>
ObjectRef<T> put_value(ProcessGate& gate, const T& value) {
  if constexpr (kIsNumbers<T>) {
    return ObjectRef<T>(put_object(gate, std::as_bytes(std::span(value))));
  } else {
    return ObjectRef<T>(put_object(gate, wire::encode(value)));
  }
}

}  // namespace detail
}  // namespace troupe
