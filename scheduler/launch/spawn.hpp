/// launch::spawn: a function of this program as the ranks of a process group, each in a process of its own.
///
///   void train(int rank, Options options);
///
///   int main() {
///     troupe::launch::spawn<&train>(4, options);
///   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/client/argument.hpp"
#include "runtime/core/error.hpp"
#include "runtime/host/method.hpp"

namespace troupe::launch {

/// A process of spawn() ended by a signal, or with an exit code and no exception.
struct ProcessEnded : ActorDied {
  ProcessEnded(ErrorInfo info, int rank_of_it, int code, int by_signal)
      : ActorDied(std::move(info)), rank(rank_of_it), exit_code(code), signal(by_signal) {}
  int rank;
  int exit_code;
  int signal;  ///< 0: it exited
};

namespace detail {

template <class F>
struct FunctionTraits {
  static_assert(!sizeof(F), "spawn<&function>: give a pointer to a function whose first parameter is int");
};
template <class R, class... A>
struct FunctionTraits<R (*)(int, A...)> {
  using Parameters = std::tuple<std::remove_cvref_t<A>...>;
  using Arguments = std::tuple<troupe::detail::StoredArg<A>...>;
  static_assert((!(std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>)&&...),
                "spawn<&function>: it takes a parameter by non-const reference, but arguments are copies");
};

template <auto F>
constexpr std::string_view function_signature() {
  return __PRETTY_FUNCTION__;
}
template <auto F>
constexpr std::string_view function_name() {
  auto name = troupe::detail::pretty_part(function_signature<F>());
  while (!name.empty() && (name.front() == '&' || name.front() == '(')) name.remove_prefix(1);
  return name;
}

/// A function in the registry, beside the methods of actors: of no class.
template <auto F>
struct FunctionEntry {
  using Arguments = typename FunctionTraits<decltype(F)>::Arguments;
  static constexpr std::string_view kName = function_name<F>();
  static constexpr std::uint64_t kId =
      troupe::detail::signature_hash(function_signature<F>()) ^
      troupe::detail::signature_hash(troupe::detail::type_signature<decltype(F)>());

  static void invoke(void* index, wire::ByteView bytes, Responder responder) {
    try {
      auto args = troupe::detail::decode_arguments<Arguments>(bytes, kName);
      if (!args) return responder.fail(std::move(args).error());
      {
        const ForkScope scope(kName);
        std::apply([&](auto&&... arg) { F(*static_cast<int*>(index), std::forward<decltype(arg)>(arg)...); },
                   *std::move(args));
      }
      responder.answer({});
    } catch (...) {
      responder.fail(describe_exception(kName));
    }
  }
  static inline const bool registered =
      Registry::instance().add_method(kId, {std::string(kName), 0, &invoke});
};

template <auto F, std::size_t N>
concept Takes = std::tuple_size_v<typename FunctionTraits<decltype(F)>::Parameters>
== N;
template <auto F, std::size_t I>
using ArgumentOf = Argument<std::tuple_element_t<I, typename FunctionTraits<decltype(F)>::Parameters>>;

void spawn(std::string_view name, std::uint64_t function, int processes, const wire::Bytes& args);

template <auto F, class... P>
void spawn_with(int processes, const Argument<P>&... argument) {
  using Entry = FunctionEntry<F>;
  (void)&Entry::registered;
  spawn(Entry::kName, Entry::kId, processes,
        troupe::detail::encode_arguments(Entry::kName, argument.get()...));
}

}  // namespace detail

/// Runs F(0, arguments...), F(1, arguments...), ... in `processes` processes (1 to 4,096) of this executable,
/// and waits for all of them. Each has the environment of a rank: RANK, WORLD_SIZE, MASTER_ADDR and so on
/// (docs/launch.md), so init_process_group("native", "env://") works there. Arguments are copied, as those of
/// actors' methods are.
///
/// When one fails the others are told to end (SIGTERM; SIGKILL after 30 s), and that failure is thrown: what
/// F threw, if it is one of troupe's errors, else TaskFailed with its type and text; ProcessEnded for a
/// signal or an exit code.
///
/// A process runs main until it comes here, or to troupe::init or troupe::become_role_if_asked: call that
/// first in main where what is before should happen once. The processes end when the calling thread does.
// clang-format off
template <auto F> requires detail::Takes<F, 0> void spawn(int processes) { detail::spawn_with<F>(processes); }
template <auto F> requires detail::Takes<F, 1> void spawn(int processes, detail::ArgumentOf<F, 0> a) { detail::spawn_with<F>(processes, a); }
template <auto F> requires detail::Takes<F, 2> void spawn(int processes, detail::ArgumentOf<F, 0> a, detail::ArgumentOf<F, 1> b) { detail::spawn_with<F>(processes, a, b); }
template <auto F> requires detail::Takes<F, 3> void spawn(int processes, detail::ArgumentOf<F, 0> a, detail::ArgumentOf<F, 1> b, detail::ArgumentOf<F, 2> c) { detail::spawn_with<F>(processes, a, b, c); }
template <auto F> requires detail::Takes<F, 4> void spawn(int processes, detail::ArgumentOf<F, 0> a, detail::ArgumentOf<F, 1> b, detail::ArgumentOf<F, 2> c, detail::ArgumentOf<F, 3> d) { detail::spawn_with<F>(processes, a, b, c, d); }
// clang-format on

}  // namespace troupe::launch
