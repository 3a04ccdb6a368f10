/// A driver's place in its cluster: kept for as long as the cluster can give it one.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/host/process.hpp"
#include "scheduler/init/output_printer.hpp"

namespace troupe {

/// The gate of a driver's sessions and handles, which leads to its process at its present node. When that
/// node dies, everything that went through it fails with a type; then the driver takes the place that it is
/// given next and registers its job again (as a newer driver of it, so what the job had on other nodes ends).
/// Sessions go on from there; actors of before are dead.
///
/// Thread-safe.
class DriverPlace final : public ProcessGate {
 public:
  /// Waits for a link to a node that takes the driver. Nothing: there will be none. Throws why there is none.
  /// Runs in one thread, which lives as long as the place: a node that it starts is that thread's child.
  using NextLink = std::function<std::optional<SocketLink>()>;

  /// Takes the first place. Throws with the reason when there is none.
  DriverPlace(std::string job, NextLink next_link);
  /// Joins the thread that waits for links: REQUIRES that next_link returns by now.
  ~DriverPlace() override;

  /// Says goodbye: the node ends with all it started. No place is taken after that. The destructor then waits
  /// until what workers printed is written (OutputPrinter::finish).
  void leave(Duration timeout);

  const ProcessConfig& config() const override { return now().config(); }
  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, wire::Bytes args,
                                  bool one_way) override {
    return now().call(to, method, std::move(args), one_way);
  }
  void reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome) override {
    now().reply(to, call, outcome);
  }
  std::shared_ptr<CallState> spawn(ActorSpawn spawn) override { return now().spawn(std::move(spawn)); }
  void kill(const ActorAddress& actor, std::string reason) override { now().kill(actor, std::move(reason)); }
  void monitor(const ActorAddress& actor, OnDown callback) override {
    now().monitor(actor, std::move(callback));
  }
  std::shared_ptr<CallState> find(std::string name) override { return now().find(std::move(name)); }
  std::shared_ptr<CallState> nodes() override { return now().nodes(); }
  Result<SharedMemory> open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                   bool abortable) override {
    return now().open_region(key, bytes, label, abortable);
  }
  void drop_region(const std::string& key) override { now().drop_region(key); }
  void later(Duration delay, std::function<void()> work) override { now().later(delay, std::move(work)); }

 private:
  Process& now() const { return *now_.load(std::memory_order_acquire); }
  void take_first(std::promise<void> taken);
  void keep();
  bool take_next();
  void take(SocketLink link);
  void lost();

  const std::string job_;
  const NextLink next_link_;
  std::atomic<bool> leaving_{false};
  std::atomic<std::uint32_t> lost_{0};  ///< places that were lost
  std::atomic<Process*> now_{nullptr};
  OutputPrinter printer_;
  /// All of them, the present one last: calls and futures of the former ones are still out there. Of the
  /// thread that takes places.
  std::vector<std::unique_ptr<Process>> lives_;
  std::thread keeper_;
};

}  // namespace troupe
