/// What a user's program holds: a Session to start actors, and handles to call them.
///
///   auto session = troupe::init(argc, argv);
///   auto counter = session.spawn<Counter>({.num_cpus = 0.1});
///   troupe::Future<int> sum = counter.call<&Counter::add>(5);
///   std::cout << sum.get(1s) << "\n";
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/actor_group.hpp"
#include "runtime/client/actor_handle.hpp"
#include "runtime/client/future.hpp"
#include "runtime/client/placement_group.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/tasks/submit.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe {

/// How an actor is started.
struct ActorOptions {
  double num_cpus = 0;  ///< CPUs it holds on its node, in steps of 1/10000
  /// GPUs it holds on its node: a part of one, in steps of 1/10000, or a whole number. Its process sees those
  /// and no others (CUDA_VISIBLE_DEVICES); a process that holds none sees none. Only with `isolated`. A part
  /// is a share in the count alone: what shares a GPU must itself keep to its part of the memory.
  double num_gpus = 0;
  /// Bytes of memory that it holds on its node; 0: none. What has a process of its own is ended when it has
  /// more than that and its node is short of memory.
  std::int64_t memory = 0;
  std::map<std::string, double> resources{};    ///< custom ones that it holds: {{"tpu", 1}}
  std::map<std::string, std::string> labels{};  ///< only on a node that has all of them: {{"zone", "a"}}
  /// A process and a thread of its own: it may block. Otherwise thousands share a process.
  bool isolated = false;
  /// In this very process instead of a worker; then num_cpus, memory, resources, labels, node and name have
  /// no meaning, and it can hold no GPU.
  bool here = false;
  NodeId node{};  ///< on this node and no other
  /// In the room that this placement group has reserved, and no other: it waits while the group does, and is
  /// killed when that is removed.
  GroupId placement_group{};
  int bundle = -1;     ///< in that one of the group's bundles, from 0; -1: in any that has room
  std::string name{};  ///< refused when another living actor of the job has it; see Session::find
  /// If a living actor of the job has the name, spawn gives its handle, and the rest of the options and the
  /// arguments have no meaning. Of several that spawn it so at a time one does.
  bool get_if_exists = false;
  /// How often it is started again when its process or node dies: with the same constructor arguments, where
  /// there is room, at once and then ever more slowly. -1: without end. Not when it is killed, stops itself,
  /// or throws in its constructor, nor after whoever spawned it is gone. Only with `isolated`.
  int max_restarts = 0;
  /// How often a call is sent again that had no answer when the actor died: then it may run more than once.
  /// 0: it throws Unavailable, and ran once at most. -1: without end. Only with `max_restarts`.
  int max_task_retries = 0;
  /// So many of its methods run at a time, each in a thread of the actor's own: what they share needs locks.
  /// Calls begin in the order in which they came. Its methods return values, not Tasks, which wait by
  /// co_await where one thread does. Only with `isolated`, at most 1,024.
  int max_concurrency = 1;
  /// It outlives the program that spawned it, on a cluster that does: the next program of the same job name
  /// finds it by its name. Only with `name` and `isolated`, and with no references among its arguments.
  bool detached = false;
  std::string label{};  ///< prefix of its process's output; default: its class
  /// Calls of the handle without an answer, above which a call throws LimitExceeded; 0: no limit.
  std::size_t max_pending_calls = 0;
  /// Of spawn_group: how its members lie.
  PlacementStrategy group_strategy = PlacementStrategy::kPack;
};

namespace detail {

/// How long the constructor arguments of such an actor may be.
const wire::Bound& constructor_bound(const ActorOptions& options);

}  // namespace detail

/// A process's way into its cluster. Copies share one connection. Thread-safe. Copies and handles must not be
/// used after the DriverSession that init() gave has ended; Futures may: what had no answer then has failed.
class Session : public tasks::Submits<Session> {
 public:
  explicit Session(ProcessGate& process) : process_(&process) {}

  /// Starts an actor of class T with these constructor arguments and waits for it. Throws what the
  /// constructor threw, Refused when no node can ever hold it, LimitExceeded for arguments that the node's
  /// store has no room for, and Timeout after 2 minutes: the actor is then not wanted any more, and ended if
  /// it should start.
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

  /// Starts a group of such actors, 4 or {{"host", 2}, {"gpu", 4}}, all with these options and arguments, and
  /// waits for them; kPlace stands for each one's place. With a name "x" they are "x/0", "x/1" and so on.
  /// Those that hold CPUs or GPUs start together: a group that finds no room for all holds none and waits,
  /// for 2 minutes (1,000 members at most; with .node or .placement_group they are placed one by one). If one
  /// cannot be started none is left, and it throws as spawn, with that one's name.
  template <class T, class... Args>
  ActorGroup<T> spawn_group(const GroupShape& shape, const ActorOptions& options = {},
                            const Args&... args) const {
    std::vector<std::shared_ptr<CallState>> starting;
    const GroupId together = start_together(shape.size(), options);
    try {
      for (std::size_t i = 0; i < shape.size(); ++i)
        starting.push_back(start<T>(member_options(options, i, together), detail::for_member(args, i)...));
    } catch (...) {
      give_up(starting, {ErrorCode::kUnavailable, "an actor was not started", "its group was not", ""});
      throw;
    }
    std::vector<ActorHandle<T>> members;
    for (const ActorAddress& address : await_group(starting, shape)) members.emplace_back(process_, address);
    return {std::move(members), shape};
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

  /// Has an actor ended for good: an isolated one by killing its process, a light one after its current
  /// method. Does not wait: calls sent just after it may still be answered. monitor() tells when it is gone.
  template <class T>
  void kill(const ActorHandle<T>& actor, const std::string& reason = "killed by its owner") const {
    kill(actor.address(), reason);
  }
  void kill(const ActorAddress& actor, const std::string& reason) const;

  /// Calls `callback(reason)` once when the actor is gone for good, whatever ended it; at once if it is gone
  /// already. If called in an actor, the callback runs in its mailbox; otherwise in a thread of the runtime,
  /// where it must not block. It is not called for actors that end with the session itself.
  template <class T>
  void monitor(const ActorHandle<T>& actor, OnDown callback) const {
    monitor(actor.address(), std::move(callback));
  }
  void monitor(const ActorAddress& actor, OnDown callback) const;
  /// The same for each death of an actor with max_restarts: death.restarts says whether another life follows.
  template <class T>
  void monitor(const ActorHandle<T>& actor, OnDeath callback) const {
    monitor(actor.address(), std::move(callback));
  }
  void monitor(const ActorAddress& actor, OnDeath callback) const;

  /// Calls `callback` when the node of an actor that was spawned here drains (troupe drain), with the reason:
  /// end it within the time that the drain has, and have another one elsewhere. Again, with `stays`, when
  /// that is cancelled. Runs as monitor's. Of actors that the head placed alone, and only where they were
  /// spawned.
  template <class T>
  void watch_leaving(const ActorHandle<T>& actor, OnLeaving callback) const {
    watch_leaving(actor.address(), std::move(callback));
  }
  void watch_leaving(const ActorAddress& actor, OnLeaving callback) const;

  /// The same as submit(), with options: session.with({.num_cpus = 2}).submit<&f>(args...).
  tasks::Submitter with(const TaskOptions& options) const { return {process(), options}; }
  TaskOptions task_options() const { return {}; }  ///< of submit()

  /// Keeps a value for whoever is given the reference: arguments of calls and tasks, of which each node gets
  /// it once. It lives while a reference does and this process does. Throws LimitExceeded when the node's
  /// store is full (TROUPE_REGIONS_BYTES). A light actor's lies in its process's own memory.
  template <class T>
  ObjectRef<std::decay_t<T>> put(const T& value) const {
    return detail::put_value<std::decay_t<T>>(process(), value);
  }

  /// Reserves room for all of these bundles, or for none of them until there is room for all. Does not wait
  /// for that: see PlacementGroup::wait. The group is the job's, and removed when that ends. Throws BadConfig
  /// for no bundles, empty ones and numbers that no node could have, and Refused when another group of the
  /// job has the name. Waits for the head.
  PlacementGroup placement_group(const std::vector<Bundle>& bundles,
                                 const PlacementGroupOptions& options = {}) const;
  /// The group of that name in this job. Throws Unavailable if there is none. Waits for the head.
  PlacementGroup find_placement_group(const std::string& name) const;

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
    const wire::Bound& bound = detail::constructor_bound(options);
    return start(std::move(options), Entry::kId, Entry::kClass,
                 detail::encode_constructor(process(), bound, Entry::kClass, detail::as_sent(args)...));
  }
  std::shared_ptr<CallState> start(ActorOptions options, std::uint64_t constructor,
                                   std::string_view class_name, CallBody args) const;
  ActorAddress await_spawn(const std::shared_ptr<CallState>& spawn) const;
  ActorAddress await_spawn(const std::shared_ptr<CallState>& spawn, Duration timeout) const;
  /// The group in which so many actors start together; none: they need none.
  GroupId start_together(std::size_t members, const ActorOptions& options) const;
  static ActorOptions member_options(ActorOptions options, std::size_t place, GroupId together);
  std::vector<ActorAddress> await_group(const std::vector<std::shared_ptr<CallState>>& starting,
                                        const GroupShape& shape) const;
  /// Ends those that have started, too.
  void give_up(const std::vector<std::shared_ptr<CallState>>& starting, const ErrorInfo& why) const;
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
