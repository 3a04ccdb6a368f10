/// What this executable can run: constructors and methods by id, registered by the templates that use them.
///
/// Instantiating `spawn<T>(args...)` or `call<&T::method>` anywhere in the program registers it before main
/// in every process of the executable, so a worker finds what a driver names. This is the only global mutable
/// state of troupe; it is written before main and read after.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "runtime/client/future.hpp"
#include "runtime/host/responder.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {

/// An actor's object, whatever its type.
class ActorObject {
 public:
  virtual ~ActorObject() = default;
  virtual void* get() = 0;
};

using InvokeMethod = void (*)(void* object, wire::ByteView args, Responder responder);
using MakeObject = Result<std::unique_ptr<ActorObject>> (*)(wire::ByteView args);

/// Read-only after main has started; so thread-safe.
class Registry {
 public:
  static Registry& instance();
  bool add_method(std::uint64_t id, std::string_view name, InvokeMethod invoke);
  bool add_constructor(std::uint64_t id, std::string_view name, MakeObject make);

  struct Method {
    std::string name;
    InvokeMethod invoke;
  };
  struct Constructor {
    std::string name;
    MakeObject make;
  };
  /// Null when this executable has no such method: the caller runs another build.
  const Method* method(std::uint64_t id) const;
  const Constructor* constructor(std::uint64_t id) const;

 private:
  std::unordered_map<std::uint64_t, Method> methods_;
  std::unordered_map<std::uint64_t, Constructor> constructors_;
};

/// The error that an exception of user code becomes at the actor's boundary. Call inside a catch block.
ErrorInfo describe_exception(std::string_view where);

namespace detail {

/// FNV-1a of a signature: the schema hash of a method.
constexpr std::uint64_t signature_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}
/// The part of a __PRETTY_FUNCTION__ after "name = ", up to the closing bracket.
std::string_view pretty_part(std::string_view pretty);

template <auto M>
constexpr std::string_view method_signature() {
  return __PRETTY_FUNCTION__;
}
template <class... T>
constexpr std::string_view type_signature() {
  return __PRETTY_FUNCTION__;
}

template <class M>
struct MethodTraits {
  static_assert(!sizeof(M), "call<&T::method> takes a pointer to a member function of the actor's class");
};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...)> {
  using Object = T;
  using Return = R;
  using Arguments = std::tuple<std::decay_t<A>...>;
};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...) const> : MethodTraits<R (T::*)(A...)> {};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...) noexcept> : MethodTraits<R (T::*)(A...)> {};

/// What a caller of a method that returns R gets: a method may return Future<X> to answer later.
template <class R>
struct AnswerOf {
  using type = R;
};
template <class X>
struct AnswerOf<Future<X>> {
  using type = X;
};

template <class T>
struct DecayArg {
  using type = std::decay_t<T>;
};
template <>
struct DecayArg<const char*> {
  using type = std::string;
};
template <class T>
using StoredArg = typename DecayArg<std::decay_t<T>>::type;

template <auto M>
struct MethodEntry {
  using Traits = MethodTraits<decltype(M)>;
  using Return = typename Traits::Return;
  static constexpr std::uint64_t kId = signature_hash(method_signature<M>());

  static void invoke(void* object, wire::ByteView bytes, Responder responder) {
    auto args = wire::decode<typename Traits::Arguments>(bytes);
    if (!args) return responder.fail(args.error());
    auto& self = *static_cast<typename Traits::Object*>(object);
    const auto run = [&]() -> Return {
      return std::apply(
          [&](auto&&... arg) -> Return { return (self.*M)(std::forward<decltype(arg)>(arg)...); },
          *std::move(args));
    };
    try {
      if constexpr (std::is_void_v<Return>) {
        run();
        responder.answer({});
      } else if constexpr (!std::is_same_v<typename AnswerOf<Return>::type, Return>) {
        const auto state = run().state();
        state->on_ready([state, later = std::make_shared<Responder>(std::move(responder))] {
          later->outcome(state->outcome());
        });
      } else {
        responder.answer(wire::encode<std::decay_t<Return>>(run()));
      }
    } catch (...) {
      responder.fail(describe_exception(pretty_part(method_signature<M>())));
    }
  }
  static inline const bool registered =
      Registry::instance().add_method(kId, pretty_part(method_signature<M>()), &invoke);
};

template <class T, class... Args>
struct ConstructorEntry {
  static constexpr std::uint64_t kId = signature_hash(type_signature<T, Args...>());

  struct Holder final : ActorObject {
    explicit Holder(std::tuple<Args...>&& args)
        : value(std::apply(
              [](auto&&... arg) -> T {
                if constexpr (std::is_constructible_v<T, Args&&...>) {
                  return T(std::forward<decltype(arg)>(arg)...);
                } else {
                  return T{std::forward<decltype(arg)>(arg)...};
                }
              },
              std::move(args))) {}
    void* get() override { return &value; }
    T value;
  };

  static Result<std::unique_ptr<ActorObject>> make(wire::ByteView bytes) {
    auto args = wire::decode<std::tuple<Args...>>(bytes);
    if (!args) return args.error();
    try {
      return std::unique_ptr<ActorObject>(std::make_unique<Holder>(*std::move(args)));
    } catch (...) {
      return describe_exception("the constructor of " + std::string(pretty_part(type_signature<T>())));
    }
  }
  static inline const bool registered =
      Registry::instance().add_constructor(kId, pretty_part(type_signature<T>()), &make);
};

}  // namespace detail
}  // namespace troupe
