/// What training stands on in the simulation: the stub model behind TrainEngine, a dataset of numbers, files
/// that hosts may not see, and simulated groups. And the referee: what must hold of every decision.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/train/floor.hpp"
#include "tests/simulation/model.hpp"

namespace troupe::sim {

struct Cluster;
struct Driver;
struct Hosted;

/// A disk that all hosts share; a file may be damaged, or missing on one of them.
class Files {
 public:
  struct File {
    std::vector<std::byte> bytes;
    int missing_on = -1;  ///< a host
  };
  std::map<std::string, File> all;
  bool full = false;
};

class Floor final : public train::TrainFloor {
 public:
  explicit Floor(Cluster& cluster) : cluster_(cluster) {}

  std::unique_ptr<train::TrainEngine> make_engine(const train::RunSettings& settings) override;
  std::shared_ptr<data::Dataset> make_dataset(const train::RunSettings& settings, data::Split split) override;
  data::Sampling make_sampling(const train::RunSettings&, const data::Dataset&) override { return {}; }
  void seed_generators(std::uint64_t) override {}
  std::string job_name(const train::RunSettings&) override { return "Stub"; }
  ErrorInfo describe_exception(const std::string& part) override;
  std::size_t batch_piece() const override { return 100; }  // so that batches to other nodes take several
  std::unique_ptr<train::GroupMaker> make_groups(const Session& session,
                                                 const train::RunSettings& settings) override;
  std::unique_ptr<checkpoint::FileSystem> files(std::function<void()> progress) override;
  std::string who() const override;

  train::Mutations mutations() const override;
  void watch(const train::TrainerMachine& machine, ActorId trainer) override;
  void watch(const train::DriverMachine& machine, const train::DriverEvent& event,
             const std::vector<train::DriverAction>& actions) override;

 private:
  void check_report(const train::DriverEvent& event);
  void check_staleness(const train::DriverEvent& event, const std::vector<train::DriverAction>& actions);
  void check(const train::DriverMachine& machine, const train::DriverAction& action);
  void check(const train::DriverMachine& machine, const train::CommitStep& commit);
  void check(const train::EpochDone& epoch);
  void check_seen(const train::CheckpointInfo& checkpoint);
  void check(const train::DriverMachine& machine, const train::RewindLedger& rewind);
  void check(const train::DriverMachine& machine, const train::JobDone& done);
  int expected_epochs(const std::string& history);

  Cluster& cluster_;
  /// Of one driver: who is a member of its job, and whom it has ended.
  struct Knows {
    std::set<ActorId> members;
    std::set<ActorId> killed;
    Generation generation;  ///< before the event
  };
  std::map<const Driver*, Knows> knows_;
};

}  // namespace troupe::sim
