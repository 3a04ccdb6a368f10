/// What trainers, loaders and their driver stand on beside the runtime: the job's own code and LibTorch,
/// files and groups. TorchFloor is production's; a simulation brings its own, and runs the actors as they
/// are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/file_system.hpp"
#include "actors/data/dataset.hpp"
#include "actors/data/sampler.hpp"
#include "actors/train/driver/driver_types.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/mutations.hpp"
#include "actors/train/settings.hpp"
#include "actors/train/trainer/trainer_machine.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

class DriverMachine;

/// How one trainer gets into a group.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  /// Where other trainers reach this one.
  virtual std::string address() const = 0;
  /// Whether this trainer could reduce gradients over NCCL: it has a GPU and the library.
  virtual bool has_nccl() const { return false; }
  /// The group of `plan`, with the memory that `engine`, which holds no other group, asks of it. Blocks until
  /// it is there; asks `abandoned` meanwhile, and throws then, as for a member that does not come.
  virtual std::shared_ptr<collectives::ProcessGroup> form(const GenerationPlan& plan, int rank,
                                                          TrainEngine& engine,
                                                          std::function<bool()> abandoned) = 0;
  /// The group beside the one that was formed of `plan`, which reduces gradients; null: that one does.
  /// Collective. An abort of either is one of both.
  virtual std::shared_ptr<collectives::ProcessGroup> form_gradients(
      const GenerationPlan& /*plan*/, const std::shared_ptr<collectives::ProcessGroup>& /*group*/) {
    return nullptr;
  }
};

class TrainFloor {
 public:
  virtual ~TrainFloor() = default;

  // The job's code. What it throws is told as its part's ("Digits::dataset threw ...").
  /// Sets up the numerics of this process, too.
  virtual std::unique_ptr<TrainEngine> make_engine(const RunSettings& settings) = 0;
  /// Sets up the numerics of a loader's process, before make_dataset(): those of a trainer with one thread.
  /// Returns the fingerprint; empty where there is none.
  virtual std::string set_up_loader(const RunSettings& /*settings*/) { return {}; }
  /// Null for the validation set of a job that has none.
  virtual std::shared_ptr<data::Dataset> make_dataset(const RunSettings& settings, data::Split split) = 0;
  /// Whether the datasets of both are the same.
  virtual bool same_data(const RunSettings& a, const RunSettings& b) {
    return a.job_type == b.job_type && a.job == b.job;
  }
  virtual data::Sampling make_sampling(const RunSettings& settings, const data::Dataset& train) = 0;
  /// Seeds what a dataset may draw from beside its Random. Called in the thread that reads, before each
  /// sample.
  virtual void seed_generators(std::uint64_t seed) = 0;
  virtual std::string job_name(const RunSettings& settings) = 0;
  /// The exception that is being handled, thrown by `part` of the job's code. Call in a catch block.
  virtual ErrorInfo describe_exception(const std::string& part) = 0;

  /// A batch goes to another node in pieces of so many bytes at most, since a message has a limit.
  virtual std::size_t batch_piece() const { return std::size_t{16} << 20; }
  virtual std::unique_ptr<GroupMaker> make_groups(const Session& session, const RunSettings& settings) = 0;
  /// `progress` is called about every 16 MiB of a long read.
  virtual std::unique_ptr<checkpoint::FileSystem> files(std::function<void()> progress) = 0;
  /// This process, for people: "pid 77 on b".
  virtual std::string who() const = 0;

  // A simulation breaks rules on purpose, and looks on.
  virtual Mutations mutations() const { return {}; }
  virtual void watch(const TrainerMachine& /*machine*/, ActorId /*trainer*/) {}
  /// Before `actions` are carried out.
  virtual void watch(const DriverMachine& /*machine*/, const DriverEvent& /*event*/,
                     const std::vector<DriverAction>& /*actions*/) {}
};

/// That of this process.
TrainFloor& train_floor();

}  // namespace troupe::train
