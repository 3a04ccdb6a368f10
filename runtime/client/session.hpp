/// What a user's program holds: a Session to start actors, and handles to call them.
///
///   auto session = troupe::init(argc, argv);
///   auto counter = session.spawn<Counter>({.num_cpus = 0.1});
///   troupe::Future<int> sum = counter.call<&Counter::add>(5);
///   std::cout << sum.get(1s) << "\n";
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/host/actor_context.hpp"
#include "runtime/client/future.hpp"
#include "runtime/host/process.hpp"
#include "runtime/host/registry.hpp"

namespace troupe {

/// How an actor is started.
struct ActorOptions {
  double num_cpus = 0;  ///< CPUs it holds on its node, in steps of 1/10000
  bool isolated =
      false;  ///< a process and a thread of its own: it may block. Otherwise thousands share a process
  bool here =
      false;      ///< in this very process instead of a worker; then num_cpus, node and name have no meaning
  NodeId node{};  ///< on this node and no other
  std::string name;   ///< refused when another living actor has it
  std::string label;  ///< prefix of its process's output; default: its class
};

/// A reference to an actor, wherever it runs. Copyable, crosses processes as an argument. Thread-safe.
template <class T>
class ActorHandle {
 public:
  ActorHandle() = default;
  ActorHandle(Process* process, ActorAddress address) : process_(process), address_(address) {}

  /// Calls a method; arguments are copied to the actor's process. A wrong method or argument does not
  /// compile. The answer is a Future of what the method returns; a method that returns Future<X> answers when
  /// that is ready. Calls from one caller to one actor run in order.
  template <auto Method, class... Args>
  auto call(Args&&... args) const {
    using Entry = detail::MethodEntry<Method>;
    using Answer = typename detail::AnswerOf<typename Entry::Traits::Return>::type;
    return Future<std::decay_t<Answer>>(
        process_->call(address_, Entry::kId, pack_args<Method>(std::forward<Args>(args)...), false));
  }
  /// The same without an answer: a failure is not reported.
  template <auto Method, class... Args>
  void tell(Args&&... args) const {
    process_->call(address_, detail::MethodEntry<Method>::kId, pack_args<Method>(std::forward<Args>(args)...),
                   true);
  }

  const ActorAddress& address() const { return address_; }
  explicit operator bool() const { return process_ != nullptr; }
  bool operator==(const ActorHandle& other) const { return address_ == other.address_; }

 private:
  template <auto Method, class... Args>
  static wire::Bytes pack_args(Args&&... args) {
    using Entry = detail::MethodEntry<Method>;
    using Stored = typename Entry::Traits::Arguments;
    static_assert(std::is_same_v<typename Entry::Traits::Object, T>,
                  "call<&T::method>: the method belongs to another class than the actor");
    static_assert(std::is_constructible_v<Stored, Args&&...>,
                  "call<&T::method>(args...): the arguments do not fit the method");
    (void)&Entry::registered;
    return wire::encode(Stored(std::forward<Args>(args)...));
  }

  Process* process_ = nullptr;
  ActorAddress address_;
};

/// A handle is decoded as a handle of the process whose actor's turn it is.
template <class T>
struct wire::Codec<ActorHandle<T>> {
  static void encode(Packer& p, const ActorHandle<T>& handle) { pack(p, handle.address()); }
  static bool decode(const msgpack::object& o, ActorHandle<T>& handle) {
    ActorAddress address;
    if (!unpack(o, address)) return false;
    ActorContext* actor = current_actor();
    handle = ActorHandle<T>(actor == nullptr ? nullptr : &actor->process(), address);
    return true;
  }
};

/// A process's way into its cluster. Copies share one connection. Thread-safe.
class Session {
 public:
  explicit Session(Process& process) : process_(&process) {}

  /// Starts an actor of class T with these constructor arguments and waits for it. Throws what the
  /// constructor threw, BadConfig when no node can ever hold it, Timeout after `timeout`.
  template <class T, class... Args>
  ActorHandle<T> spawn(ActorOptions options = {}, Args&&... args) const {
    return spawn_async<T>(std::move(options), std::forward<Args>(args)...).get(std::chrono::seconds(120));
  }

  /// The same without waiting.
  template <class T, class... Args>
  Future<ActorHandle<T>> spawn_async(ActorOptions options = {}, Args&&... args) const {
    using Entry = detail::ConstructorEntry<T, detail::StoredArg<Args>...>;
    (void)&Entry::registered;
    auto bytes = wire::encode(std::tuple<detail::StoredArg<Args>...>(std::forward<Args>(args)...));
    if (options.label.empty()) options.label = detail::pretty_part(detail::type_signature<T>());
    const auto inner = start(std::move(options), Entry::kId, std::move(bytes));
    auto state = std::make_shared<CallState>(nullptr);
    inner->on_ready([inner, state] { state->resolve(inner->outcome()); });
    return Future<ActorHandle<T>>(std::move(state), process_);
  }

  /// Ends an actor at once: an isolated one by killing its process, a light one after its current method.
  template <class T>
  void kill(const ActorHandle<T>& actor, const std::string& reason = "killed by its owner") const {
    kill(actor.address(), reason);
  }
  void kill(const ActorAddress& actor, const std::string& reason) const;

  /// Calls `callback(reason)` once when the actor is gone, whatever ended it; at once if it is gone already.
  /// As the monitoring actor when called in one.
  template <class T>
  void monitor(const ActorHandle<T>& actor, OnDown callback) const {
    process_->monitor(actor.address(), std::move(callback));
  }

  /// The live nodes.
  std::vector<cluster::NodeInfo> nodes() const;

  /// Shared memory on this node by name: whoever opens the same key maps the same bytes. It is gone when the
  /// last process that holds it ends. With `abortable` it starts with an abort word
  /// (runtime/core/abort_word.hpp), which the node sets when a process that opened it dies; `label` then
  /// names the dead.
  SharedMemory open_region(const std::string& key, std::size_t bytes, const std::string& label,
                           bool abortable) const;
  /// The node forgets the region's name; the memory lives on where it is mapped.
  void drop_region(const std::string& key) const;

  /// How many drivers this job has had, this one included; it survives the head, so a restarted driver
  /// outranks the one before it.
  std::uint32_t incarnation() const { return process_->config().incarnation; }
  Process& process() const { return *process_; }
  NodeId node() const { return process_->config().node; }
  /// The address on which this machine is reached by others: where a data plane listens.
  const std::string& host() const { return process_->config().host; }

 private:
  std::shared_ptr<CallState> start(ActorOptions options, std::uint64_t constructor, wire::Bytes args) const;

  Process* process_;
};

template <class T>
ActorHandle<T> ActorContext::self() const {
  return ActorHandle<T>(&process(), address());
}

/// The answer of a spawn is an address, which becomes a handle of the spawning process.
template <class T>
class Future<ActorHandle<T>> {
 public:
  using value_type = ActorHandle<T>;
  Future() = default;
  Future(std::shared_ptr<CallState> state, Process* process) : inner_(std::move(state)), process_(process) {}

  bool ready() const { return inner_.ready(); }
  ActorHandle<T> get(Duration timeout = std::chrono::hours(1)) const {
    return {process_, inner_.get(timeout).address};
  }
  template <class Callback>
  void then(Callback callback) const {
    inner_.then(
        [process = process_, callback = std::move(callback)](Result<wire::SpawnAnswer> answer) mutable {
          if (answer) {
            callback(Result<ActorHandle<T>>(ActorHandle<T>(process, answer->address)));
          } else {
            callback(Result<ActorHandle<T>>(answer.error()));
          }
        });
  }

 private:
  Future<wire::SpawnAnswer> inner_;
  Process* process_ = nullptr;
};

}  // namespace troupe
