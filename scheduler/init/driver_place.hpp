/// A driver's place in its cluster: kept for as long as the cluster can give it one.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/host/process.hpp"
#include "scheduler/init/output_printer.hpp"
#include "scheduler/init/restarts.hpp"

namespace troupe {

/// The gate of a driver's sessions and handles, which leads to its process at its present node. When that
/// node dies, everything that went through it fails with a type; then the driver takes the place that it is
/// given next and registers its job again (as a newer driver of it, so what the job had on other nodes ends).
/// Sessions go on from there; actors of before are dead, unless they are detached: what was to be killed is
/// said again there. Until it has a place, spawns and questions fail at once (Unavailable) and say why there
/// is none.
///
/// A head that is away is waited for as long as it takes. Places that do not last are taken ever more slowly,
/// and after many in a row none any more (`Restarts`).
///
/// Thread-safe.
class DriverPlace final : public ProcessGate {
 public:
  /// Waits for a link to a node that takes the driver. An error: why there will be none. Throws why there is
  /// none now. Runs in one thread, which lives as long as the place: a node that it starts is that thread's
  /// child.
  using NextLink = std::function<Result<SocketLink>()>;
  static constexpr Restarts::Policy kPolicy{.most_starts = 12};

  /// Takes the first place. Throws with the reason when there is none.
  DriverPlace(std::string job, NextLink next_link, const Restarts::Policy& policy = kPolicy);
  /// Joins the thread that waits for links: REQUIRES that next_link returns by now.
  ~DriverPlace() override;

  /// Says goodbye: the node ends with all it started. No place is taken after that. The destructor then waits
  /// until what workers printed is written (OutputPrinter::finish).
  void leave(Duration timeout);

  const ProcessConfig& config() const override { return now().config(); }
  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, CallBody args,
                                  bool one_way) override {
    return now().call(to, method, std::move(args), one_way);
  }
  void reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, wire::Kept refers_to) override {
    now().reply(to, call, outcome, std::move(refers_to));
  }
  std::shared_ptr<CallState> spawn(ActorSpawn spawn) override;
  void kill(const ActorAddress& actor, std::string reason) override { now().kill(actor, std::move(reason)); }
  void monitor(const ActorAddress& actor, OnDeath callback) override {
    now().monitor(actor, std::move(callback));
  }
  void watch_leaving(const ActorAddress& actor, OnLeaving callback) override {
    now().watch_leaving(actor, std::move(callback));
  }
  std::shared_ptr<CallState> find(std::string name) override;
  std::shared_ptr<CallState> nodes() override;
  std::shared_ptr<CallState> group(cluster::GroupVerb verb, GroupId group, cluster::GroupSpec spec) override;
  Result<SharedMemory> open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                   bool abortable) override;
  void drop_region(const std::string& key) override { now().drop_region(key); }
  void later(Duration delay, std::function<void()> work) override { now().later(delay, std::move(work)); }
  ObjectsPtr objects() override { return now().objects(); }
  TasksPtr tasks() override { return now().tasks(); }

 private:
  Process& now() const { return *now_.load(std::memory_order_acquire); }
  void take_first(std::promise<void> taken);
  void keep();
  void take(SocketLink link);
  bool take_next();
  std::optional<Duration> try_next();
  std::optional<Duration> failed(const Error& error, Restarts::Failed at);
  void sleep(Duration wait);
  void say_why(const ErrorInfo& why, bool for_good);
  void kill_lost(std::uint32_t place, const ActorAddress& actor, const std::string& reason);
  void lost(std::uint32_t place);
  /// Why `what` cannot be done now; none if there is a place.
  std::optional<ErrorInfo> no_place(const std::string& what);

  const std::string job_;
  const NextLink next_link_;
  const MonotonicClock clock_;
  std::atomic<bool> leaving_{false};
  std::atomic<std::uint32_t> lost_{0};   ///< the latest place that was lost: they are numbered
  std::atomic<std::uint32_t> place_{0};  ///< the present one, or the last one there was
  std::atomic<Process*> now_{nullptr};
  OutputPrinter printer_;
  std::mutex mutex_;      ///< guards what follows, to the next blank line
  ErrorInfo why_;         ///< why there is no other place yet
  bool is_over_ = false;  ///< there will be none
  /// What the program wanted killed when its place was lost: it is said again at the next one.
  std::vector<std::pair<ActorAddress, std::string>> kills_;

  // Of the thread that takes places.
  Restarts restarts_;
  std::uint32_t tries_ = 0;
  std::shared_ptr<ActorThreads> actor_threads_;  ///< of all lives: made with the first
  /// All of them, the present one last: calls and futures of the former ones are still out there. Those have
  /// given back their threads and descriptors.
  std::vector<std::unique_ptr<Process>> lives_;
  std::thread keeper_;
};

}  // namespace troupe
