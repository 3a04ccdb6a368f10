#include "runtime/client/session.hpp"

#include <cmath>
#include <mutex>

#include "runtime/client/find_or_spawn.hpp"
#include "runtime/client/group_options.hpp"
#include "runtime/client/start_group.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/names.hpp"
#include "runtime/wire/frame.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {
namespace {

constexpr Duration kSpawnTimeout = std::chrono::seconds(120);
constexpr Duration kHeadAnswers = std::chrono::seconds(30);
/// Of a spawn that waits.
constexpr Duration kSaysWhy = std::chrono::seconds(10);

/// A constructor's arguments that no message can hold; and those that the head keeps in memory.
constexpr wire::Bound kConstructorBound{
    wire::kMaxBodyBytes, "the constructor arguments of",
    "give it large data in parts, or through shared memory (Session::open_region)"};
constexpr wire::Bound kPlacedConstructorBound{cluster::kMaxPayloadBytes, "the constructor arguments of",
                                              "an actor that is isolated, holds CPUs or has a name is "
                                              "started through the head: give it large data by a "
                                              "call, or through shared memory (Session::open_region)"};

/// GPUs as the cluster counts them.
std::int64_t gpus_of(const ActorOptions& options, std::string_view class_name) {
  const auto refuse = [&](std::string why, std::string todo) {
    throw BadConfig("cannot spawn a " + std::string(class_name), std::move(why), std::move(todo));
  };
  const double gpus = options.num_gpus;
  const std::string asked = "num_gpus = " + detail::short_text(gpus);
  if (!(gpus >= 0 && gpus <= 1024) || (gpus > 1 && gpus != std::floor(gpus)))  // a NaN is refused, too
    refuse(asked, "ask for a part of one GPU, or for 0 to 1,024 whole ones");
  const std::int64_t gpu_e4 = std::llround(gpus * cluster::kGpu);
  if (gpus > 0 && gpu_e4 == 0) refuse(asked, "ask for 0.0001 of a GPU or more");
  if (gpu_e4 > 0 && (!options.isolated || options.here)) {
    refuse(asked + (options.here ? " in this process" : " for an actor that shares its process with others"),
           "GPUs are dealt to processes when they start: spawn it with .isolated = true");
  }
  return gpu_e4;
}

void check_restarts(const ActorSpawn& spawn) {
  const std::string what = "cannot spawn a " + spawn.type;
  const std::string asked = "max_restarts = " + std::to_string(spawn.max_restarts) +
                            ", max_task_retries = " + std::to_string(spawn.max_task_retries);
  if (spawn.max_restarts < -1 || spawn.max_task_retries < -1)
    throw BadConfig(what, asked, "ask for 0 or more, or for -1: without end");
  if (spawn.max_restarts != 0 && (!spawn.isolated || spawn.here)) {
    throw BadConfig(
        what, asked + (spawn.here ? " in this process" : " for an actor that shares its process with others"),
        "an actor is started again in a process of its own: spawn it with .isolated = true");
  }
  if (spawn.max_restarts == 0 && spawn.max_task_retries != 0)
    throw BadConfig(what, asked, "calls are sent again to the next life: set max_restarts, too");
}

void check_concurrency(const ActorSpawn& spawn) {
  const auto refuse = [&](std::string why, std::string todo) {
    throw BadConfig("cannot spawn a " + spawn.type,
                    "max_concurrency = " + std::to_string(spawn.max_concurrency) + why, std::move(todo));
  };
  if (spawn.max_concurrency < 1 || spawn.max_concurrency > 1024)
    refuse("", "let 1 to 1,024 methods run at a time");
  if (spawn.max_concurrency > 1 && !spawn.isolated)
    refuse(" for an actor that shares its process with others",
           "spawn it with .isolated = true, or return Tasks, which wait by co_await");
}

/// `args_kept`: it refers to objects of this process.
void check_detached(const ActorSpawn& spawn, bool args_kept) {
  if (!spawn.detached) return;
  const auto refuse = [&](std::string why, std::string todo) {
    throw BadConfig("cannot spawn a detached " + spawn.type, std::move(why), std::move(todo));
  };
  if (spawn.name.empty()) refuse("it has no name, by which another program could find it", "give it .name");
  if (!spawn.isolated || spawn.here)
    refuse("it shares its process with actors that end with this program", "spawn it with .isolated = true");
  if (spawn.group) refuse("it is in a placement group, which ends with this program", "leave the group out");
  if (args_kept) {
    refuse(
        "objects among its constructor arguments (references, or what is too large for a message) end with "
        "this "
        "program",
        "give it the values themselves, large ones by a call");
  }
}

template <class T>
T await(const std::shared_ptr<CallState>& state) {
  return Future<T>(state).get(kHeadAnswers);
}

/// Of a group that starts: why it does not. Thread-safe.
class FirstFailure {
 public:
  /// The first member that fails takes the others with it at once: they may wait for it.
  static std::shared_ptr<FirstFailure> of(const std::vector<std::shared_ptr<CallState>>& starting,
                                          const GroupShape& shape) {
    auto self = std::make_shared<FirstFailure>();
    using States = std::vector<std::weak_ptr<CallState>>;
    const auto all = std::make_shared<const States>(starting.begin(), starting.end());
    for (std::size_t i = 0; i < starting.size(); ++i) {
      const std::string name = shape.name_of(i) + " of " + std::to_string(starting.size());
      starting[i]->on_ready([self, all, name, i] {
        const auto one = (*all)[i].lock();
        if (one == nullptr || one->outcome().ok() || !self->is_first(name, one->outcome().error())) return;
        for (const auto& other : *all) {
          if (const auto state = other.lock())
            state->cancel({ErrorCode::kUnavailable, "an actor was not started", "its group was not", ""});
        }
      });
    }
    return self;
  }
  /// Of that member, unless another one failed before.
  ErrorInfo with(const std::string& member, const ErrorInfo& why) {
    is_first(member, why);
    const std::lock_guard lock(mutex_);
    return *why_;
  }

 private:
  bool is_first(const std::string& member, ErrorInfo why) {
    const std::lock_guard lock(mutex_);
    if (why_) return false;
    why.what = member + ": " + why.what;
    why_ = std::move(why);
    return true;
  }
  std::mutex mutex_;
  std::optional<ErrorInfo> why_;
};

}  // namespace

namespace detail {

const wire::Bound& constructor_bound(const ActorOptions& options) {
  if (options.here) return wire::kUnbounded;
  const bool through_head = options.isolated || options.num_cpus > 0 || !options.name.empty() ||
                            options.placement_group || options.memory != 0 || !options.resources.empty() ||
                            !options.labels.empty();
  return through_head ? kPlacedConstructorBound : kConstructorBound;
}

/// Each life of the actor reads its constructor's arguments.
void keep_for_lives(ProcessGate& gate, const std::shared_ptr<CallState>& spawn,
                    std::vector<std::shared_ptr<const void>> kept) {
  spawn->on_ready([&gate, state = std::weak_ptr(spawn), kept = std::move(kept)] {
    const auto spawned = state.lock();
    if (spawned == nullptr || !spawned->outcome().ok()) return;
    if (const auto actor = wire::decode<ActorAddress>(*spawned->outcome()))
      gate.monitor(*actor, [kept](const Death&) {});
  });
}

std::shared_ptr<CallState> start_call(ProcessGate* gate, const ActorAddress& to, std::uint64_t method,
                                      std::string_view name, CallBody args, PendingLimit* limit,
                                      bool one_way) {
  if (gate == nullptr) {
    throw BadConfig("cannot call " + std::string(name),
                    "the handle refers to no actor: it was default-constructed",
                    "call a handle that spawn() or find() gave");
  }
  gate->check_not_forked();
  if (one_way && !args.kept.empty()) {  // they live until it is answered: nobody reads that
    gate->call(to, method, std::move(args), false);
    return nullptr;
  }
  if (limit != nullptr && !one_way) limit->check();
  const ActorContext* actor = current_actor();
  const bool is_own = actor != nullptr && actor->address().actor == to.actor;
  // Its handle may be of an earlier life.
  auto state = gate->call(is_own ? actor->address() : to, method, std::move(args), one_way);
  if (state == nullptr) return state;
  state->set_method(name);
  if (limit != nullptr) limit->add(state);
  if (is_own && actor->runs_one_at_a_time()) state->set_own_call(actor);
  return state;
}

}  // namespace detail

std::shared_ptr<CallState> Session::start(ActorOptions options, std::uint64_t constructor,
                                          std::string_view class_name, CallBody args) const {
  if (!(options.num_cpus >= 0 && options.num_cpus <= 1e6)) {  // a NaN is refused, too
    throw BadConfig("cannot spawn a " + std::string(class_name),
                    "num_cpus = " + detail::short_text(options.num_cpus), "ask for 0 to 1,000,000 CPUs");
  }
  if (options.max_pending_calls != 0) {
    throw BadConfig("cannot spawn a " + std::string(class_name) + " asynchronously with max_pending_calls",
                    "a limit belongs to a handle, and there is none yet",
                    "call with_max_pending on the handle");
  }
  ActorSpawn spawn;
  spawn.constructor = args.object_bytes == 0 ? constructor : constructor ^ kArgumentsInObject;
  spawn.args = std::move(args.bytes);
  spawn.type = class_name;
  spawn.name = std::move(options.name);
  for (const auto& [part, name] :
       {std::pair{"its name", &spawn.name}, std::pair{"its label", &options.label}}) {
    if (auto wrong = check_name(*name, "cannot spawn a " + spawn.type, part)) throw_error(*std::move(wrong));
  }
  spawn.label = options.label.empty() ? spawn.type : std::move(options.label);
  spawn.cpu_e4 = std::llround(options.num_cpus * cluster::kCpu);
  spawn.gpu_e4 = gpus_of(options, class_name);
  spawn.other = cluster::other_resources(options.memory, options.resources, options.labels);
  if (std::string wrong = cluster::wrong_about(spawn.other); !wrong.empty())
    throw BadConfig("cannot spawn a " + spawn.type, std::move(wrong), detail::kOtherOptions);
  spawn.isolated = options.isolated;
  spawn.here = options.here;
  spawn.node = options.node;
  spawn.group = options.placement_group;
  spawn.bundle = options.bundle;
  const char* wrong = detail::group_options_wrong(options);
  if (options.here && options.placement_group) wrong = "it asks for a placement group, in this process";
  if (wrong != nullptr) throw BadConfig("cannot spawn a " + spawn.type, wrong, detail::kGroupOptions);
  spawn.max_restarts = options.max_restarts;
  spawn.max_task_retries = options.max_task_retries;
  check_restarts(spawn);
  spawn.max_concurrency = options.max_concurrency;
  check_concurrency(spawn);
  spawn.detached = options.detached;
  check_detached(spawn, !args.kept.empty() || args.object_bytes != 0);
  const bool restarts = spawn.max_restarts != 0;
  const bool gets = options.get_if_exists;
  if (gets && (spawn.name.empty() || spawn.here)) {
    throw BadConfig(
        "cannot get a " + spawn.type + " if it exists",
        spawn.here ? "it is spawned in this process, where names have no meaning" : "it has no name",
        "give it .name, and not .here");
  }
  auto state = gets ? detail::find_or_spawn(process(), std::move(spawn)) : process().spawn(std::move(spawn));
  if (restarts && !args.kept.empty()) detail::keep_for_lives(process(), state, args.kept);
  state->keep(std::move(args.kept));
  return state;
}

ActorAddress Session::await_spawn(const std::shared_ptr<CallState>& spawn) const {
  detail::check_may_block("Session::spawn", "use spawn_async");
  return await_spawn(spawn, kSpawnTimeout);
}

ActorAddress Session::await_spawn(const std::shared_ptr<CallState>& spawn, Duration timeout) const {
  const auto say = [](const std::string& why) {
    log(LogLevel::kWarning, "an actor is not started yet, it waits: " + why);
  };
  if (!detail::wait_and_say(*spawn, timeout, kSaysWhy, say)) {
    const std::string waits_for = spawn->waits_for();
    spawn->cancel({ErrorCode::kTimeout, "an actor was not started",
                   std::to_string(std::llround(to_seconds(kSpawnTimeout))) +
                       " s passed; it is not wanted any more" +
                       (waits_for.empty() ? "" : "; it waited: " + waits_for),
                   "see the status of the cluster for what its nodes have free, and whether a constructor of "
                   "the job does not return: light actors share a process"});
  }
  return Future<ActorAddress>(spawn).get();
}

GroupId Session::start_together(std::size_t members, const ActorOptions& options) const {
  detail::check_may_block("Session::spawn_group", "use spawn_async for each, and make an ActorGroup of them");
  if (options.detached)
    throw BadConfig("cannot spawn a detached group", "groups start in the room of a program, and end with it",
                    "spawn its actors one by one, each with a name");
  const auto group = detail::start_group(process(), members, options);
  return group.valid() ? group.get(kHeadAnswers).status.record.group : GroupId{};
}

ActorOptions Session::member_options(ActorOptions options, std::size_t place, GroupId together) {
  if (together) {
    options.placement_group = together;
    options.bundle = static_cast<int>(place);
  }
  if (options.get_if_exists)
    throw BadConfig("cannot spawn a group with get_if_exists",
                    "a member that was found is somebody else's, and a group ends its own",
                    "leave it out, or find() the actors and call them");
  if (!options.name.empty()) options.name += "/" + std::to_string(place);
  if (!options.label.empty()) options.label += " " + std::to_string(place);
  return options;
}

void Session::give_up(const std::vector<std::shared_ptr<CallState>>& starting, const ErrorInfo& why) const {
  for (const auto& state : starting) {
    state->cancel(why);
    if (!state->outcome().ok()) continue;
    if (const auto at = wire::decode<ActorAddress>(*state->outcome())) kill(*at, "its group did not start");
  }
}

std::vector<ActorAddress> Session::await_group(const std::vector<std::shared_ptr<CallState>>& starting,
                                               const GroupShape& shape) const {
  detail::check_may_block("Session::spawn_group", "use spawn_async for each, and make an ActorGroup of them");
  const Instant deadline = MonotonicClock().now() + kSpawnTimeout;
  const auto failure = FirstFailure::of(starting, shape);
  std::vector<ActorAddress> members;
  for (std::size_t i = 0; i < starting.size(); ++i) {
    try {
      members.push_back(await_spawn(starting[i], deadline - MonotonicClock().now()));
    } catch (const Error& error) {
      ErrorInfo info =
          failure->with(shape.name_of(i) + " of " + std::to_string(starting.size()), error.info());
      give_up(starting, {ErrorCode::kUnavailable, "an actor was not started", "its group was not", ""});
      throw_error(std::move(info));
    }
  }
  return members;
}

ActorAddress Session::find_address(const std::string& name) const {
  detail::check_may_block("Session::find", "use find_async");
  return await<ActorAddress>(process().find(name));
}

void Session::kill(const ActorAddress& actor, const std::string& reason) const {
  process().kill(actor, bounded_text(reason));
}

void Session::monitor(const ActorAddress& actor, OnDown callback) const {
  monitor(actor, [callback = std::move(callback)](const Death& death) {
    if (!death.restarts) callback(death.reason);
  });
}

void Session::monitor(const ActorAddress& actor, OnDeath callback) const {
  if (ActorContext* monitoring = current_actor()) {
    callback = [run = monitoring->executor(), callback = std::move(callback)](const Death& death) {
      run([callback, death] { callback(death); });
    };
  }
  process().monitor(actor, std::move(callback));
}

void Session::watch_leaving(const ActorAddress& actor, OnLeaving callback) const {
  if (ActorContext* watching = current_actor()) {
    callback = [run = watching->executor(), callback = std::move(callback)](const Leaving& leaving) {
      run([callback, leaving] { callback(leaving); });
    };
  }
  process().watch_leaving(actor, std::move(callback));
}

std::vector<cluster::NodeInfo> Session::nodes() const {
  detail::check_may_block("Session::nodes", "spawn the actor with .isolated = true");
  return await<wire::NodesAnswer>(process().nodes()).nodes;
}

SharedMemory Session::open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                  bool abortable) const {
  detail::check_may_block("Session::open_region", "spawn the actor with .isolated = true");
  return process().open_region(key, bytes, label, abortable).value();
}

void Session::drop_region(const std::string& key) const {
  process().drop_region(key);
}

}  // namespace troupe
