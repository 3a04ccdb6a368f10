/// What this executable can run: constructors and methods by id, registered by the templates that use them.
///
/// Instantiating `spawn<T>(args...)` or `call<&T::method>` anywhere in the program registers it before main
/// in every process of the executable, so a worker finds what a driver names. This is the only global mutable
/// state of troupe; it is written before main and read after. The templates that fill it are in method.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/core/type_name.hpp"
#include "runtime/host/responder.hpp"

namespace troupe {

/// An actor's object, whatever its type.
class ActorObject {
 public:
  virtual ~ActorObject() = default;
  virtual void* get() = 0;
  /// Of its class (detail::ClassId).
  virtual std::uint64_t class_id() const = 0;
  virtual std::string_view class_name() const = 0;
  /// Encoded. Both throw what the class throws; load() also for bytes that do not decode. REQUIRES: its
  /// constructor's class saves.
  virtual wire::Bytes save() const { return {}; }
  virtual void load(wire::ByteView /*state*/) {}
};

using InvokeMethod = void (*)(void* object, wire::ByteView args, Responder responder);
using MakeObject = Result<std::unique_ptr<ActorObject>> (*)(wire::ByteView args);
/// From a pointer to an object of a class to that of one of its bases.
using Upcast = void* (*)(void* object);

/// Of a method that actors of all classes have.
inline constexpr std::uint64_t kEveryClass = 1;

/// Read-only after main has started; so thread-safe.
class Registry {
 public:
  struct Method {
    std::string name;            ///< "Counter::add"
    std::uint64_t class_id = 0;  ///< of the class that it is a member of, or kEveryClass
    InvokeMethod invoke = nullptr;
    bool is_const = false;  ///< it leaves the object as it is
  };
  struct Constructor {
    std::string name;  ///< of the class
    MakeObject make = nullptr;
    bool saves =
        false;  ///< its class has `save() const` and `load(value)`: what it saves is for its next life
  };

  static Registry& instance();

  /// Two different functions under one id (classes of one name in two files) end the program, with their
  /// name: one would run instead of the other.
  bool add_method(std::uint64_t id, Method method);
  bool add_constructor(std::uint64_t id, Constructor constructor);
  bool add_base(std::uint64_t class_id, std::uint64_t base_id, Upcast upcast);

  /// Null when this executable has no such method: the caller runs another build.
  const Method* method(std::uint64_t id) const;
  const Constructor* constructor(std::uint64_t id) const;

  /// Makes the object, or says why not: an unknown class, arguments that do not decode, what the constructor
  /// threw.
  Result<std::unique_ptr<ActorObject>> make(std::uint64_t constructor, wire::ByteView args) const;
  /// Runs a method on the actor's object. Refuses a method that this executable does not have and one of
  /// another class: a stale or forged handle never runs another class's code.
  void invoke(std::uint64_t method, ActorObject& object, wire::ByteView args, Responder responder) const;

 private:
  struct Base {
    std::uint64_t id = 0;
    Upcast upcast = nullptr;
  };
  /// The object as one of class `to`: itself or a base. Null: it is none.
  void* as_class(void* object, std::uint64_t from, std::uint64_t to) const;

  std::unordered_map<std::uint64_t, Method> methods_;
  std::unordered_map<std::uint64_t, Constructor> constructors_;
  std::unordered_map<std::uint64_t, std::vector<Base>> bases_;
};

/// The error that an exception of user code becomes at the actor's boundary: its type, its message and where
/// it was thrown. Call inside a catch block.
ErrorInfo describe_exception(std::string_view where);

namespace detail {

/// FNV-1a of a signature: the schema hash of a method.
constexpr std::uint64_t signature_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

template <class... T>
constexpr std::string_view type_signature() {
  return __PRETTY_FUNCTION__;
}

/// The class's identity among all processes of this executable.
template <class T>
inline constexpr std::uint64_t kClassId = signature_hash(type_signature<T>());

}  // namespace detail
}  // namespace troupe
