#include "scheduler/init/driver_place.hpp"

#include <cerrno>
#include <climits>

#include "runtime/core/futex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "scheduler/init/program_end.hpp"

namespace troupe {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);
constexpr const char* kNode = "this driver's node";
constexpr const char* kNodeGone = "the node of its program is gone";
constexpr const char* kNoOther = "its program's node is gone, and it gets no other one";

std::shared_ptr<CallState> failed_call(ErrorInfo why) {
  auto state = std::make_shared<CallState>(nullptr);
  state->resolve(std::move(why));
  return state;
}

void say_not_killed(const ActorAddress& actor, const std::string& why) {
  log(LogLevel::kError, "nobody heard that actor " + to_string(actor.actor) +
                            " is to be killed, and if it is detached it lives on: " + why);
}

void cannot_print(int error) {
  if (error != EPIPE)
    log(LogLevel::kError, io_error("workers' output is lost: this program's cannot be written", error,
                                   "free space, and start the program again")
                              .message());
  output_failed(error);
}

}  // namespace

DriverPlace::DriverPlace(std::string job, NextLink next_link, const Restarts::Policy& policy)
    : job_(std::move(job)),
      next_link_(std::move(next_link)),
      printer_({[this](NodeId node, std::size_t bytes) {
                  if (Process* process = now_.load(std::memory_order_acquire))
                    process->output_taken(node, bytes);
                },
                cannot_print}),
      restarts_(policy) {
  std::promise<void> taken;
  auto first = taken.get_future();
  keeper_ = start_thread([this, taken = std::move(taken)]() mutable { take_first(std::move(taken)); });
  try {
    first.get();
  } catch (...) {
    keeper_.join();
    throw;
  }
}

DriverPlace::~DriverPlace() {
  leaving_ = true;
  lost(UINT32_MAX);
  if (keeper_.joinable()) keeper_.join();
  printer_.finish();
  // Their threads still tell us things.
  for (auto& life : lives_) life->end();
  if (is_program_ending()) {
    for (auto& life : lives_) static_cast<void>(life.release());  // CAF needs what may be gone already
  } else if (actor_threads_) {
    actor_threads_->system().await_all_actors_done();  // what they still do is done with lives that are there
  }
  lives_.clear();
  for (const auto& [actor, reason] : kills_)
    say_not_killed(actor, "the program ended before it had another node");
}

/// In the keeper's thread, as every later place: init() may be called in a thread that ends.
void DriverPlace::take_first(std::promise<void> taken) {
  try {
    take(next_link_().value());
  } catch (...) {
    return taken.set_exception(std::current_exception());
  }
  taken.set_value();
  keep();
}

void DriverPlace::take(SocketLink link) {
  auto received = receive_control(link, kConfigured);
  const auto* config = received ? std::get_if<wire::Configure>(&received->message) : nullptr;
  if (config == nullptr)
    throw Unavailable({ErrorCode::kUnavailable, "the node gave this driver no place",
                       received ? "it said something else" : received.error().why, ""});
  if (!actor_threads_) actor_threads_ = std::make_shared<ActorThreads>(true);
  const std::uint32_t place = ++tries_;
  auto process = std::make_unique<Process>(
      ProcessConfig{config->node, config->process, {}, 0, config->label, config->host, config->package},
      std::move(link),
      Process::Handlers{[this, place] { lost(place); },
                        [this](const wire::Output& output) { printer_.print(output); },
                        [this, place](const ActorAddress& actor, const std::string& reason) {
                          kill_lost(place, actor, reason);
                        }},
      actor_threads_);
  process->register_job(job_, kConfigured);
  std::vector<std::pair<ActorAddress, std::string>> kills;
  {
    const std::lock_guard lock(mutex_);
    now_.store(process.get(), std::memory_order_release);
    place_ = place;
    kills.swap(kills_);
  }
  for (auto& [actor, reason] : kills) process->kill(actor, std::move(reason));
  lives_.push_back(std::move(process));
  restarts_.up(clock_.now());
}

/// In a thread of that place's process.
void DriverPlace::kill_lost(std::uint32_t place, const ActorAddress& actor, const std::string& reason) {
  bool is_over = false;
  {
    const std::lock_guard lock(mutex_);
    is_over = is_over_;
    if (place_ <= place && !is_over) return kills_.emplace_back(actor, reason), void();
  }
  if (is_over) return say_not_killed(actor, kNoOther);
  now().kill(actor, reason);
}

/// Also of a place that was never ours, because its node died before it had taken us.
void DriverPlace::lost(std::uint32_t place) {
  std::uint32_t before = lost_;
  while (before < place && !lost_.compare_exchange_weak(before, place)) {
  }
  futex_wake(lost_, INT_MAX);
}

void DriverPlace::keep() {
  for (;;) {
    for (std::uint32_t lost = lost_; lost < place_; lost = lost_)
      futex_wait(lost_, lost, std::chrono::seconds(60));
    if (leaving_) return;
    Process& former = now();
    const std::string node = to_string(former.address().node);
    log(LogLevel::kWarning,
        "this driver's node " + node + " is gone: its actors are dead, and what is under way fails");
    const std::string why = "node " + node + " of its program is gone";
    former.stop_actors(why);
    if (!take_next()) return;
    former.stop_actors(why);  // who was spawned in between
    former.give_back();
  }
}

/// False: there will be no other place.
bool DriverPlace::take_next() {
  std::optional<Duration> wait = restarts_.died(clock_.now(), kNodeGone);
  while (wait && !leaving_) {
    sleep(*wait);
    if (leaving_) return false;
    wait = try_next();
    if (!restarts_.is_up()) continue;
    {
      const std::lock_guard lock(mutex_);
      why_ = {};
    }
    log(LogLevel::kWarning, "this driver has a new node: spawns work again");
    return true;
  }
  if (!leaving_ && !is_over_) say_why(restarts_.gave_up(kNode), true);
  return false;
}

/// How long to wait before the next try, if this one failed; nothing: there is none.
std::optional<Duration> DriverPlace::try_next() {
  std::optional<SocketLink> link;
  try {
    auto next = next_link_();
    if (leaving_) return std::nullopt;
    if (!next) {
      say_why(next.error(), true);
      return std::nullopt;
    }
    link = *std::move(next);
  } catch (const Error& error) {
    return failed(error, Restarts::Failed::kStart);
  }
  try {
    take(*std::move(link));
    return Duration(0);
  } catch (const Error& error) {
    return failed(error, Restarts::Failed::kJoin);
  }
}

std::optional<Duration> DriverPlace::failed(const Error& error, Restarts::Failed at) {
  if (leaving_) return std::nullopt;
  say_why(error.info(), false);
  return restarts_.failed(clock_.now(), kNode, error.info(), at).wait;
}

void DriverPlace::sleep(Duration wait) {
  const Instant until = clock_.now() + wait;
  for (Instant now = clock_.now(); now < until; now = clock_.now()) {
    const std::uint32_t lost = lost_;
    if (leaving_) return;
    futex_wait(lost_, lost, until - now);
  }
}

void DriverPlace::say_why(const ErrorInfo& why, bool for_good) {
  log(for_good ? LogLevel::kError : LogLevel::kWarning,
      (for_good ? "this driver gets no other node: " : "this driver has no other node yet: ") +
          why.message());
  std::vector<std::pair<ActorAddress, std::string>> kills;
  {
    const std::lock_guard lock(mutex_);
    why_ = why;
    is_over_ = for_good;
    if (for_good) kills.swap(kills_);
  }
  for (const auto& [actor, reason] : kills) say_not_killed(actor, kNoOther);
  if (for_good) now().no_other_node(why);
}

std::optional<ErrorInfo> DriverPlace::no_place(const std::string& what) {
  if (lost_ < place_ || leaving_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (is_over_) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot " + what,
                     "this program's node is gone, and it gets no other one: " + why_.message(), kStartAgain};
  }
  const std::string why = why_.what.empty() ? "" : ": " + why_.message();
  return ErrorInfo{ErrorCode::kUnavailable, "cannot " + what,
                   "this program's node is gone, and it has no other one yet" + why,
                   "try again in a while: it gets one when the head answers"};
}

std::shared_ptr<CallState> DriverPlace::spawn(ActorSpawn spawn) {
  if (auto why = no_place("spawn " + spawn.type)) return failed_call(*std::move(why));
  return now().spawn(std::move(spawn));
}

std::shared_ptr<CallState> DriverPlace::find(std::string name) {
  if (auto why = no_place("find " + name)) return failed_call(*std::move(why));
  return now().find(std::move(name));
}

std::shared_ptr<CallState> DriverPlace::nodes() {
  if (auto why = no_place("list the nodes")) return failed_call(*std::move(why));
  return now().nodes();
}

std::shared_ptr<CallState> DriverPlace::group(cluster::GroupVerb verb, GroupId group,
                                              cluster::GroupSpec spec) {
  if (auto why = no_place("ask about a placement group")) return failed_call(*std::move(why));
  return now().group(verb, group, std::move(spec));
}

Result<SharedMemory> DriverPlace::open_region(const std::string& key, std::size_t bytes,
                                              const std::string& label, bool abortable) {
  if (auto why = no_place("open region " + key)) return *std::move(why);
  return now().open_region(key, bytes, label, abortable);
}

void DriverPlace::leave(Duration timeout) {
  leaving_ = true;
  now().end_cluster(timeout);
}

}  // namespace troupe
