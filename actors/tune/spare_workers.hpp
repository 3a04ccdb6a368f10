/// Processes of trials that are over, until the next one takes them: they are loaded, and have their data.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "actors/train/driver/run_result.hpp"
#include "runtime/client/session.hpp"

namespace troupe::tune {

/// Ends what nobody takes. Not thread-safe.
class SpareWorkers {
 public:
  explicit SpareWorkers(const Session& session) : session_(session) {}
  ~SpareWorkers() { end_all(); }
  SpareWorkers(const SpareWorkers&) = delete;
  SpareWorkers& operator=(const SpareWorkers&) = delete;

  /// `kind`: what a trial must have in common with that one.
  void add(const std::string& kind, train::Workers workers, Instant now) {
    if (!workers.trainers.empty() || !workers.loaders.empty())
      spares_.push_back({kind, std::move(workers), now + kKept});
  }
  /// None: there are none of that kind.
  train::Workers take(const std::string& kind) {
    for (auto at = spares_.begin(); at != spares_.end(); ++at) {
      if (at->kind != kind) continue;
      train::Workers taken = std::move(at->workers);
      spares_.erase(at);
      return taken;
    }
    return {};
  }
  /// Others may want the CPUs that they hold.
  void end_idle(Instant now) {
    std::erase_if(spares_, [&](const Spare& spare) {
      if (now >= spare.until) end(spare.workers);
      return now >= spare.until;
    });
  }
  void end_all() {
    for (const Spare& spare : std::exchange(spares_, {})) end(spare.workers);
  }
  void end(const train::Workers& workers) const {
    for (const auto& all : {workers.trainers, workers.loaders}) {
      for (const ActorAddress& each : all) session_.kill(each, "no trial follows in its process");
    }
  }

 private:
  static constexpr Duration kKept = std::chrono::seconds(1);
  struct Spare {
    std::string kind;
    train::Workers workers;
    Instant until;
  };
  const Session& session_;
  std::vector<Spare> spares_;
};

}  // namespace troupe::tune
