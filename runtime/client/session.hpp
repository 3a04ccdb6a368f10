/// What a user's program holds: a Session to start actors, and handles to call them.
///
///   auto session = troupe::init(argc, argv);
///   auto counter = session.spawn<Counter>({.num_cpus = 0.1});
///   troupe::Future<int> sum = counter.call<&Counter::add>(5);
///   std::cout << sum.get(1s) << "\n";
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/actor_handle.hpp"
#include "runtime/client/future.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe {

/// How an actor is started.
struct ActorOptions {
  double num_cpus = 0;  ///< CPUs it holds on its node, in steps of 1/10000
  /// GPUs it holds on its node: a part of one, in steps of 1/10000, or a whole number. Its process sees those
  /// and no others (CUDA_VISIBLE_DEVICES); a process that holds none sees none. Only with `isolated`. A part
  /// is a share in the count alone: what shares a GPU must itself keep to its part of the memory.
  double num_gpus = 0;
  /// A process and a thread of its own: it may block. Otherwise thousands share a process.
  bool isolated = false;
  /// In this very process instead of a worker; then num_cpus, node and name have no meaning, and it can hold
  /// no GPU.
  bool here = false;
  NodeId node{};        ///< on this node and no other
  std::string name{};   ///< refused when another living actor of the job has it; see Session::find
  std::string label{};  ///< prefix of its process's output; default: its class
  /// Calls of the handle without an answer, above which a call throws LimitExceeded; 0: no limit.
  std::size_t max_pending_calls = 0;
};

/// A process's way into its cluster. Copies share one connection. Thread-safe. Copies and handles must not be
/// used after the DriverSession that init() gave has ended; Futures may: what had no answer then has failed.
class Session {
 public:
  explicit Session(ProcessGate& process) : process_(&process) {}

  /// Starts an actor of class T with these constructor arguments and waits for it. Throws what the
  /// constructor threw, Refused when no node can ever hold it, LimitExceeded for arguments above 4 MiB
  /// (isolated, with CPUs or a name) or 64 MiB (others), and Timeout after 2 minutes: the actor is then not
  /// wanted any more, and ended if it should start.
  template <class T, class... Args>
  ActorHandle<T> spawn(ActorOptions options = {}, Args&&... args) const {
    const std::size_t most = std::exchange(options.max_pending_calls, 0);
    return limited(
        ActorHandle<T>(process_, await_spawn(start<T>(std::move(options), std::forward<Args>(args)...))),
        most);
  }

  /// The same without waiting. Throws BadConfig for max_pending_calls: give the handle a limit when it is
  /// there (ActorHandle::with_max_pending).
  template <class T, class... Args>
  Future<ActorHandle<T>> spawn_async(ActorOptions options = {}, Args&&... args) const {
    return Future<ActorHandle<T>>(start<T>(std::move(options), std::forward<Args>(args)...), process_);
  }

  /// The living actor of that name in this job. Waits for the head; in a light actor use find_async. Throws
  /// what the head says if there is none. A call of the handle throws Refused if the actor is of another
  /// class. REQUIRES: T is its class, or a base that some handle was converted to.
  template <class T>
  ActorHandle<T> find(const std::string& name) const {
    return ActorHandle<T>(process_, find_address(name));
  }
  /// The same without waiting.
  template <class T>
  Future<ActorHandle<T>> find_async(const std::string& name) const {
    return Future<ActorHandle<T>>(process().find(name), process_);
  }

  /// Has an actor ended: an isolated one by killing its process, a light one after its current method. Does
  /// not wait: calls sent just after it may still be answered. monitor() tells when it is gone.
  template <class T>
  void kill(const ActorHandle<T>& actor, const std::string& reason = "killed by its owner") const {
    kill(actor.address(), reason);
  }
  void kill(const ActorAddress& actor, const std::string& reason) const;

  /// Calls `callback(reason)` once when the actor is gone, whatever ended it; at once if it is gone already.
  /// If called in an actor, the callback runs in its mailbox; otherwise in a thread of the runtime, where it
  /// must not block. It is not called for actors that end with the session itself.
  template <class T>
  void monitor(const ActorHandle<T>& actor, OnDown callback) const {
    monitor(actor.address(), std::move(callback));
  }
  void monitor(const ActorAddress& actor, OnDown callback) const;

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
  ProcessGate& process() const {
    process_->check_not_forked();
    return *process_;
  }
  NodeId node() const { return process_->config().node; }
  /// The address on which this machine is reached by others: where a data plane listens.
  const std::string& host() const { return process_->config().host; }

 private:
  template <class T, class... Args>
  std::shared_ptr<CallState> start(ActorOptions options, Args&&... args) const {
    using Entry = detail::ConstructorEntry<T, detail::StoredArg<Args>...>;
    (void)&Entry::registered;
    return start(std::move(options), Entry::kId, Entry::kClass,
                 detail::encode_arguments(Entry::kClass, detail::as_sent(args)...));
  }
  std::shared_ptr<CallState> start(ActorOptions options, std::uint64_t constructor,
                                   std::string_view class_name, wire::Bytes args) const;
  ActorAddress await_spawn(const std::shared_ptr<CallState>& spawn) const;
  ActorAddress find_address(const std::string& name) const;
  template <class T>
  static ActorHandle<T> limited(ActorHandle<T> handle, std::size_t most) {
    return most == 0 ? handle : handle.with_max_pending(most);
  }

  ProcessGate* process_;
};

template <class T>
ActorHandle<T> ActorContext::self() const {
  return ActorHandle<T>(&process(), address());
}

}  // namespace troupe
