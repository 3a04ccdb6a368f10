#include "runtime/client/session.hpp"

#include <cmath>

#include "runtime/wire/frame.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {
namespace {

constexpr Duration kSpawnTimeout = std::chrono::seconds(120);
constexpr Duration kHeadAnswers = std::chrono::seconds(30);

[[noreturn]] void throw_too_large(const std::string& what, std::size_t bytes, std::size_t limit,
                                  std::string todo) {
  throw LimitExceeded({ErrorCode::kLimit, what + " are too large",
                       std::to_string(bytes) + " bytes is more than " + std::to_string(limit),
                       std::move(todo)});
}

/// GPUs as the cluster counts them.
std::int64_t gpus_of(const ActorOptions& options, std::string_view class_name) {
  const auto refuse = [&](std::string why, std::string todo) {
    throw BadConfig("cannot spawn a " + std::string(class_name), std::move(why), std::move(todo));
  };
  const double gpus = options.num_gpus;
  const std::string asked = "num_gpus = " + std::to_string(gpus);
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

void check_spawn(const ActorSpawn& spawn) {
  const std::string what = "the constructor arguments of " + spawn.type;
  if (spawn.through_head() && spawn.args.size() > kMaxPlacedArgumentBytes) {
    throw_too_large(
        what, spawn.args.size(), kMaxPlacedArgumentBytes,
        "an actor that is isolated, holds CPUs or has a name is started through the head: give it large "
        "data by a call, or through shared memory (Session::open_region)");
  }
  if (spawn.args.size() > wire::kMaxBodyBytes) {
    throw_too_large(what, spawn.args.size(), wire::kMaxBodyBytes,
                    "give it large data in parts, or through shared memory (Session::open_region)");
  }
}

template <class T>
T await(const std::shared_ptr<CallState>& state) {
  return Future<T>(state).get(kHeadAnswers);
}

}  // namespace

namespace detail {

std::shared_ptr<CallState> start_call(ProcessGate* gate, const ActorAddress& to, std::uint64_t method,
                                      std::string_view name, wire::Bytes args, PendingLimit* limit,
                                      bool one_way) {
  if (gate == nullptr) {
    throw BadConfig("cannot call " + std::string(name),
                    "the handle refers to no actor: it was default-constructed",
                    "call a handle that spawn() or find() gave");
  }
  gate->check_not_forked();
  if (args.size() > wire::kMaxBodyBytes) {
    throw_too_large("the arguments of " + std::string(name), args.size(), wire::kMaxBodyBytes,
                    "pass them in parts, or through shared memory (Session::open_region)");
  }
  if (limit == nullptr || one_way) return gate->call(to, method, std::move(args), one_way);
  limit->check();
  auto state = gate->call(to, method, std::move(args), one_way);
  limit->add(state);
  return state;
}

}  // namespace detail

std::shared_ptr<CallState> Session::start(ActorOptions options, std::uint64_t constructor,
                                          std::string_view class_name, wire::Bytes args) const {
  if (!(options.num_cpus >= 0 && options.num_cpus <= 1e6)) {  // a NaN is refused, too
    throw BadConfig("cannot spawn a " + std::string(class_name),
                    "num_cpus = " + std::to_string(options.num_cpus), "ask for 0 to 1,000,000 CPUs");
  }
  if (options.max_pending_calls != 0) {
    throw BadConfig("cannot spawn a " + std::string(class_name) + " asynchronously with max_pending_calls",
                    "a limit belongs to a handle, and there is none yet",
                    "call with_max_pending on the handle");
  }
  ActorSpawn spawn;
  spawn.constructor = constructor;
  spawn.args = std::move(args);
  spawn.type = class_name;
  spawn.label = options.label.empty() ? spawn.type : std::move(options.label);
  spawn.name = std::move(options.name);
  spawn.cpu_e4 = std::llround(options.num_cpus * cluster::kCpu);
  spawn.gpu_e4 = gpus_of(options, class_name);
  spawn.isolated = options.isolated;
  spawn.here = options.here;
  spawn.node = options.node;
  check_spawn(spawn);
  return process().spawn(std::move(spawn));
}

ActorAddress Session::await_spawn(const std::shared_ptr<CallState>& spawn) const {
  detail::check_may_block("Session::spawn", "use spawn_async");
  if (!spawn->wait(kSpawnTimeout)) {
    const std::string waits_for = spawn->waits_for();
    spawn->cancel({ErrorCode::kTimeout, "an actor was not started",
                   std::to_string(to_seconds(kSpawnTimeout)) + " s passed; it is not wanted any more" +
                       (waits_for.empty() ? "" : "; it waited: " + waits_for),
                   "see the status of the cluster for what its nodes have free, and whether a constructor of "
                   "the job does "
                   "not return: light actors share a process"});
  }
  return Future<ActorAddress>(spawn).get();
}

ActorAddress Session::find_address(const std::string& name) const {
  detail::check_may_block("Session::find", "use find_async");
  return await<ActorAddress>(process().find(name));
}

void Session::kill(const ActorAddress& actor, const std::string& reason) const {
  process().kill(actor, reason);
}

void Session::monitor(const ActorAddress& actor, OnDown callback) const {
  if (ActorContext* monitoring = current_actor()) {
    callback = [run = monitoring->executor(), callback = std::move(callback)](const std::string& reason) {
      run([callback, reason] { callback(reason); });
    };
  }
  process().monitor(actor, std::move(callback));
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
