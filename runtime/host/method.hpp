/// How methods and constructors get into the registry: one entry is instantiated for each that a program
/// uses.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/client/task.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/objects/object_ref.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::detail {

/// What owns the value of an argument on its way: a view becomes what it views.
template <class T>
struct Owned {
  using type = T;
};
template <>
struct Owned<std::string_view> {
  using type = std::string;
};
template <>
struct Owned<const char*> {
  using type = std::string;
};
template <>
struct Owned<char*> {
  using type = std::string;
};
template <class T, std::size_t N>
struct Owned<std::span<T, N>> {
  using type = std::vector<std::remove_const_t<T>>;
};
template <class T>
using StoredArg = typename Owned<std::decay_t<T>>::type;

template <class M>
struct MethodTraits {
  static_assert(!sizeof(M), "call<&T::method>: give a pointer to a member function of the actor's class");
};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...)> {
  using Object = T;
  using Return = R;
  using Parameters = std::tuple<std::remove_cvref_t<A>...>;
  using Arguments = std::tuple<StoredArg<A>...>;
  static constexpr bool kIsConst = false;
  static_assert(
      (!(std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>)&&...),
      "call<&T::method>: the method takes a parameter by non-const reference, but arguments are copies: "
      "take it by value or const reference, and return what changed");
  static_assert(
      (std::is_default_constructible_v<StoredArg<A>> && ...),
      "call<&T::method>: the type of a parameter has no default constructor, which its arrival needs: "
      "give it one");
};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...) const> : MethodTraits<R (T::*)(A...)> {
  static constexpr bool kIsConst = true;
};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...) noexcept> : MethodTraits<R (T::*)(A...)> {};
template <class T, class R, class... A>
struct MethodTraits<R (T::*)(A...) const noexcept> : MethodTraits<R (T::*)(A...) const> {};

/// What a caller of a method that returns R gets: a method may return Future<X> or Task<X> to answer later.
template <class R>
struct AnswerOf {
  using type = std::decay_t<R>;
};
template <class X>
struct AnswerOf<Future<X>> {
  using type = X;
};
template <class X>
struct AnswerOf<Task<X>> {
  using type = X;
};

template <auto M>
constexpr std::string_view method_signature() {
  return __PRETTY_FUNCTION__;
}
/// "Counter::add".
template <auto M>
constexpr std::string_view method_name() {
  auto name = pretty_part(method_signature<M>());
  while (!name.empty() && (name.front() == '&' || name.front() == '(')) name.remove_prefix(1);
  return name;
}

/// The arguments of a call, one after the other: no argument is no bytes.
template <class... T>
wire::Bytes encode_arguments(std::string_view of, const T&... argument) {
  if constexpr (sizeof...(T) == 0) {
    return {};
  } else {
    wire::Writer to;
    (wire::write(to, argument), ...);
    return to.take(of);
  }
}
template <class Tuple>
Result<Tuple> decode_arguments(wire::ByteView bytes, std::string_view of) {
  if constexpr (!std::is_default_constructible_v<Tuple>) {
    return ErrorInfo{};  // refused by an assertion of whoever instantiates this
  } else {
    Tuple arguments{};
    wire::Reader from(bytes);
    std::size_t place = 0;
    const bool all = std::apply(
        [&](auto&... argument) { return (read_argument(from, place++, argument) && ...); }, arguments);
    end_decoding();
    if (all && from.finish()) return arguments;
    from.fail("its codec refused it");
    ErrorInfo error = from.error("call of " + std::string(of));
    error.todo = "caller and actor must run the same executable";
    return error;
  }
}

/// The same with the objects that they refer to.
template <class... T>
CallBody encode_constructor(const wire::Bound& bound, std::string_view of, const T&... argument) {
  wire::Writer to(bound, of);
  (wire::write(to, argument), ...);
  CallBody body;
  body.kept = to.kept();
  body.bytes = to.take(of);
  return body;
}

/// What a method or task returned; an error where it cannot be encoded.
struct EncodedAnswer {
  Outcome outcome;
  wire::Kept refers_to;               ///< objects, whose names are in it
  std::vector<std::size_t> names_at;  ///< where they are

  void give(Responder responder) && { responder.outcome(std::move(outcome), std::move(refers_to)); }
};
template <class T>
EncodedAnswer encode_answer(const T& answer) {
  wire::Writer to;
  try {
    wire::write(to, answer);
    wire::Kept refers_to = to.kept();
    return {to.take(type_name<T>()), std::move(refers_to), to.kept_at()};
  } catch (const LimitExceeded& error) {
    return {error.info(), {}, {}};
  }
}

/// Whether the encoded answer is a count and then the elements as they lie in memory.
template <class T>
inline constexpr bool kIsCountAndBytes = false;
template <class E>
inline constexpr bool kIsCountAndBytes<std::vector<E>> =
    kIsNumbers<std::vector<E>>&& wire::detail::BuiltIn<std::vector<E>>;
template <>
inline constexpr bool kIsCountAndBytes<std::string> = true;

/// Answers with what a method or task returned: by a reference, as what throws is to be answered, too. A
/// large one of that kind is copied once, to where its object lies.
template <class T>
void give_answer(const T& answer, Responder& responder) {
  if constexpr (kIsCountAndBytes<T>) {
    const wire::ByteView bytes = std::as_bytes(std::span(answer));
    const auto count = static_cast<std::uint32_t>(answer.size());
    if (bytes.size() > objects::kInlineBytes && count == answer.size())
      return responder.answer_parts(std::as_bytes(std::span(&count, 1)), bytes);
  }
  encode_answer<T>(answer).give(std::move(responder));
}

/// A constructor's argument as it is encoded: without copying what need not be.
template <class T>
decltype(auto) as_sent(const T& argument) {
  if constexpr (std::is_same_v<std::decay_t<T>, const char*> || std::is_same_v<std::decay_t<T>, char*>) {
    return std::string_view(argument);
  } else {
    return (argument);
  }
}

template <auto M>
struct MethodEntry {
  using Traits = MethodTraits<decltype(M)>;
  using Return = typename Traits::Return;
  using Answer = typename AnswerOf<Return>::type;
  static constexpr std::string_view kName = method_name<M>();
  /// Of its type too: overloads have one name.
  static constexpr std::uint64_t kId =
      signature_hash(method_signature<M>()) ^ signature_hash(type_signature<decltype(M)>());

  static void invoke(void* object, wire::ByteView bytes, Responder responder) {
    auto& self = *static_cast<typename Traits::Object*>(object);
    try {
      auto args = decode_arguments<typename Traits::Arguments>(bytes, kName);
      if (!args) return responder.fail(std::move(args).error());
      const auto run = [&]() -> Return {
        const ForkScope scope(kName);
        return std::apply(
            [&](auto&&... arg) -> Return { return (self.*M)(std::forward<decltype(arg)>(arg)...); },
            *std::move(args));
      };
      if constexpr (std::is_void_v<Return>) {
        run();
        responder.answer({});
      } else if constexpr (std::is_same_v<Task<Answer>, Return>) {
        check_runs_tasks();
        run_task(answer_when_done(self, *std::move(args), std::move(responder)));
      } else if constexpr (!std::is_same_v<Answer, std::decay_t<Return>>) {
        const auto later = run();  // before the responder moves: it may throw
        answer_later(later.state(), std::move(responder), kName);
      } else {
        give_answer<Answer>(run(), responder);
      }
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  /// The arguments live in this frame: a parameter that is a reference refers to them while the method waits.
  static TaskRoot answer_when_done(typename Traits::Object& self, typename Traits::Arguments args,
                                   Responder responder) {
    try {
      Task<Answer> task = std::apply(
          [&](auto&&... arg) { return (self.*M)(std::forward<decltype(arg)>(arg)...); }, std::move(args));
      if constexpr (std::is_void_v<Answer>) {
        co_await std::move(task);
        responder.answer({});
      } else {
        const Answer answer = co_await std::move(task);
        give_answer<Answer>(answer, responder);
      }
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  static inline const bool registered = Registry::instance().add_method(
      kId, {std::string(kName), kClassId<typename Traits::Object>, &invoke, Traits::kIsConst});
};

/// What an actor saves: each of its calls sends it, and the head keeps that of detached ones in memory.
inline constexpr wire::Bound kStateBound{cluster::kMaxPayloadBytes, "what save() returns of",
                                         "let it return what the next life cannot do without, and keep large "
                                         "data in files"};

/// What T::save() returns, if T saves its state: it has `save() const`, which returns what may be sent, and
/// `load` of that.
template <class T>
struct SavedBy {};
template <class T>
requires requires(const T& from, T& to) {
  to.load(from.save());
}
struct SavedBy<T> {
  using type = std::decay_t<decltype(std::declval<const T&>().save())>;
};
template <class T>
concept Saves = requires {
  typename SavedBy<T>::type;
}
&&std::is_default_constructible_v<typename SavedBy<T>::type> &&
    (!wire::detail::BuiltIn<typename SavedBy<T>::type> ||
     wire::detail::shape_of<typename SavedBy<T>::type>() != wire::detail::Shape::kNone);

/// T is a Base: an actor of class T runs Base's methods.
template <class T, class Base>
struct BaseEntry {
  static_assert(std::is_convertible_v<T*, Base*>, "Base is no public, unambiguous base of T");
  static void* upcast(void* object) { return static_cast<Base*>(static_cast<T*>(object)); }
  static inline const bool registered = Registry::instance().add_base(kClassId<T>, kClassId<Base>, &upcast);
};

template <class T, class... Args>
struct ConstructorEntry {
  static constexpr std::uint64_t kId = signature_hash(type_signature<T, Args...>());
  static constexpr std::string_view kClass = type_name<T>();
  static constexpr bool kByParentheses = std::is_constructible_v<T, Args&&...>;
  static_assert(
      kByParentheses || requires { T{std::declval<Args>()...}; },
      "spawn<T>(options, args...): no constructor of T takes these arguments");
  static_assert(
      (std::is_default_constructible_v<Args> && ...),
      "spawn<T>(options, args...): the type of an argument has no default constructor, which its arrival "
      "needs: give it one");

  struct Holder final : ActorObject {
    explicit Holder(std::tuple<Args...>&& args)
        : value(std::apply(
              [](auto&&... arg) -> T {
                if constexpr (kByParentheses) {
                  return T(std::forward<decltype(arg)>(arg)...);
                } else {
                  return T{std::forward<decltype(arg)>(arg)...};
                }
              },
              std::move(args))) {}
    void* get() override { return &value; }
    std::uint64_t class_id() const override { return kClassId<T>; }
    std::string_view class_name() const override { return kClass; }
    wire::Bytes save() const override {
      if constexpr (Saves<T>) {
        wire::Writer to(kStateBound, kClass);
        wire::write(to, value.save());
        return to.take(kClass);
      }
      return {};
    }
    void load([[maybe_unused]] wire::ByteView state) override {
      if constexpr (Saves<T>) value.load(wire::decode<typename SavedBy<T>::type>(state).value());
    }
    T value;
  };

  static Result<std::unique_ptr<ActorObject>> make(wire::ByteView bytes) {
    try {
      auto args = decode_arguments<std::tuple<Args...>>(bytes, kClass);
      if (!args) return std::move(args).error();
      return std::unique_ptr<ActorObject>(std::make_unique<Holder>(*std::move(args)));
    } catch (...) {
      return describe_exception("the constructor of " + std::string(kClass));
    }
  }
  static inline const bool registered =
      Registry::instance().add_constructor(kId, {std::string(kClass), &make, Saves<T>});
};

}  // namespace troupe::detail
