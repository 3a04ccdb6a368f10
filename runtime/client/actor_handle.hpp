/// ActorHandle<T>: a reference to an actor, wherever it runs.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/client/argument.hpp"
#include "runtime/client/encode_call.hpp"
#include "runtime/client/future.hpp"
#include "runtime/client/pending_limit.hpp"
#include "runtime/host/method.hpp"
#include "runtime/host/process_gate.hpp"

namespace troupe {

namespace detail {

/// The non-template part of a call. Throws BadConfig for a null gate, LimitExceeded for arguments that no
/// message can hold and for too many pending calls.
std::shared_ptr<CallState> start_call(ProcessGate* gate, const ActorAddress& to, std::uint64_t method,
                                      std::string_view name, CallBody args, PendingLimit* limit,
                                      bool one_way);

}  // namespace detail

/// An actor's id, and where it is; if it may be started again elsewhere, its place is looked up. Copyable;
/// crosses processes as an argument and as an answer. Thread-safe. A default-constructed one throws BadConfig
/// when called.
template <class T>
class ActorHandle {
  template <auto M, std::size_t I>
  using At = detail::ArgumentOf<M, I>;

 public:
  ActorHandle() = default;
  ActorHandle(ProcessGate* gate, ActorAddress address) : gate_(gate), address_(address) {}
  /// An actor of a class is one of its bases, too.
  template <class Derived>
  requires(!std::is_same_v<Derived, T> && std::is_convertible_v<Derived*, T*>)
      ActorHandle(const ActorHandle<Derived>& other)  // NOLINT: implicit on purpose
      : gate_(other.gate_), address_(other.address_), limit_(other.limit_) {
    (void)&detail::BaseEntry<Derived, T>::registered;
  }

  /// Calls a method of T or of a base of it; arguments are copied to the actor's process. A wrong method, too
  /// few or too many arguments and conversions that could change a value do not compile. The answer is a
  /// Future of what the method returns; a method that returns Future<X> answers when that is ready. Calls
  /// from one caller to one actor run in order. Of an overloaded method say which:
  /// call<static_cast<int (Counter::*)(int)>(&Counter::add)>(5). Large arguments and answers travel as
  /// objects: throws LimitExceeded when the node's store has no room for one.
  // clang-format off
  template <auto M> requires detail::Takes<M, 0> auto call() const { return send<M>(); }
  template <auto M> requires detail::Takes<M, 1> auto call(At<M, 0> a) const { return send<M>(a); }
  template <auto M> requires detail::Takes<M, 2> auto call(At<M, 0> a, At<M, 1> b) const { return send<M>(a, b); }
  template <auto M> requires detail::Takes<M, 3> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c) const { return send<M>(a, b, c); }
  template <auto M> requires detail::Takes<M, 4> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d) const { return send<M>(a, b, c, d); }
  template <auto M> requires detail::Takes<M, 5> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e) const { return send<M>(a, b, c, d, e); }
  template <auto M> requires detail::Takes<M, 6> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f) const { return send<M>(a, b, c, d, e, f); }
  template <auto M> requires detail::Takes<M, 7> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f, At<M, 6> g) const { return send<M>(a, b, c, d, e, f, g); }
  template <auto M> requires detail::Takes<M, 8> auto call(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f, At<M, 6> g, At<M, 7> h) const { return send<M>(a, b, c, d, e, f, g, h); }
  // clang-format on
  template <auto M, class... Args>
  requires(!detail::Takes<M, sizeof...(Args)> ||
           sizeof...(Args) > detail::kMostArguments) void call(Args&&...) const {
    detail::refuse_count<M, sizeof...(Args)>();
  }

  /// The same without an answer: a failure is not reported.
  // clang-format off
  template <auto M> requires detail::Takes<M, 0> void tell() const { return post<M>(); }
  template <auto M> requires detail::Takes<M, 1> void tell(At<M, 0> a) const { return post<M>(a); }
  template <auto M> requires detail::Takes<M, 2> void tell(At<M, 0> a, At<M, 1> b) const { return post<M>(a, b); }
  template <auto M> requires detail::Takes<M, 3> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c) const { return post<M>(a, b, c); }
  template <auto M> requires detail::Takes<M, 4> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d) const { return post<M>(a, b, c, d); }
  template <auto M> requires detail::Takes<M, 5> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e) const { return post<M>(a, b, c, d, e); }
  template <auto M> requires detail::Takes<M, 6> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f) const { return post<M>(a, b, c, d, e, f); }
  template <auto M> requires detail::Takes<M, 7> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f, At<M, 6> g) const { return post<M>(a, b, c, d, e, f, g); }
  template <auto M> requires detail::Takes<M, 8> void tell(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d, At<M, 4> e, At<M, 5> f, At<M, 6> g, At<M, 7> h) const { return post<M>(a, b, c, d, e, f, g, h); }
  // clang-format on
  template <auto M, class... Args>
  requires(!detail::Takes<M, sizeof...(Args)> ||
           sizeof...(Args) > detail::kMostArguments) void tell(Args&&...) const {
    detail::refuse_count<M, sizeof...(Args)>();
  }

  /// A handle whose calls throw LimitExceeded while `most` (>= 1) of them have no answer. Copies of it share
  /// the count; in another process it has no limit.
  ActorHandle with_max_pending(std::size_t most) const {
    ActorHandle limited = *this;
    limited.limit_ = std::make_shared<PendingLimit>(most);
    return limited;
  }

  /// For the runtime: a call whose arguments are encoded.
  template <auto M>
  auto call_encoded(CallBody body) const {
    return Future<typename detail::MethodEntry<M>::Answer>(start<M>(false, std::move(body)), gate_);
  }

  const ActorAddress& address() const { return address_; }
  ProcessGate* process() const { return gate_; }  ///< null if default-constructed
  explicit operator bool() const { return gate_ != nullptr; }
  /// Whether it is the same actor, in whichever life.
  bool operator==(const ActorHandle& other) const { return address_.actor == other.address_.actor; }

 private:
  template <class Other>
  friend class ActorHandle;
  template <auto M, class... P>
  auto send(const Argument<P>&... argument) const {
    return call_encoded<M>(
        detail::encode_call(gate_, wire::kArgumentBound, detail::MethodEntry<M>::kName, argument...));
  }
  template <auto M, class... P>
  void post(const Argument<P>&... argument) const {
    start<M>(true,
             detail::encode_call(gate_, wire::kArgumentBound, detail::MethodEntry<M>::kName, argument...));
  }

  template <auto M>
  std::shared_ptr<CallState> start(bool one_way, CallBody body) const {
    using Entry = detail::MethodEntry<M>;
    using Object = typename Entry::Traits::Object;
    static_assert(
        std::is_same_v<Object, T> || std::is_base_of_v<Object, T>,
        "call<&T::method>: the method belongs to another class than the actor: call a method of the handle's "
        "class or of a base of it");
    (void)&Entry::registered;
    if constexpr (!std::is_same_v<Object, T>) (void)&detail::BaseEntry<T, Object>::registered;
    return detail::start_call(gate_, address_, Entry::kId, Entry::kName, std::move(body), limit_.get(),
                              one_way);
  }

  ProcessGate* gate_ = nullptr;
  ActorAddress address_;
  std::shared_ptr<PendingLimit> limit_;
};

/// A handle crosses as its address, and belongs to the process that decodes it.
template <class T>
struct wire::Codec<ActorHandle<T>> {
  static void encode(Writer& to, const ActorHandle<T>& handle) { write(to, handle.address()); }
  static bool decode(Reader& from, ActorHandle<T>& handle) {
    ActorAddress address;
    if (!read(from, address)) return false;
    handle = address == ActorAddress{} ? ActorHandle<T>() : ActorHandle<T>(ProcessGate::current(), address);
    return true;
  }
};

}  // namespace troupe
