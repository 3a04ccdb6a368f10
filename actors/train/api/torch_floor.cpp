/// The floor of production: the jobs of this executable, LibTorch, native groups, the machine's disk.
#include <ATen/Parallel.h>

#include "actors/ddp/freed_memory.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/torch_engine.hpp"
#include "actors/train/floor.hpp"
#include "actors/train/job/job_registry.hpp"
#include "actors/train/job/leaf_random.hpp"
#include "actors/train/job/user_code.hpp"
#include "actors/train/trainer/group_setup.hpp"
#include "collectives/rendezvous/connect/address.hpp"
#include "runtime/core/process_title.hpp"

namespace troupe::train {
namespace {

const JobType& type_of(const RunSettings& settings) {
  return JobRegistry::instance().find(settings.job_type);
}

class TorchFloor final : public TrainFloor {
 public:
  std::unique_ptr<TrainEngine> make_engine(const RunSettings& settings) override {
    keep_freed_memory();
    set_up_numerics(settings.threads, computing_device(settings.trainer_gpus > 0), settings.exact);
    return make_torch_engine(settings);
  }
  std::string set_up_loader(const RunSettings& settings) override {
    set_up_numerics(1, c10::DeviceType::CPU, settings.exact);
    return numerics_fingerprint();
  }
  std::shared_ptr<data::Dataset> make_dataset(const RunSettings& settings, data::Split split) override {
    const JobType& type = type_of(settings);
    return run_user_code(type.name + "::dataset", [&] { return type.make_dataset(settings.job, split); });
  }
  bool same_data(const RunSettings& a, const RunSettings& b) override {
    return a.job_type == b.job_type && type_of(a).data_fields(a.job) == type_of(b).data_fields(b.job);
  }
  data::Sampling make_sampling(const RunSettings& settings, const data::Dataset& train) override {
    return type_of(settings).make_sampling(settings.job, train);
  }
  void seed_generators(std::uint64_t seed) override {
    at::internal::lazy_init_num_threads();  // this thread, too, computes as set_up_loader() chose
    seed_default_generator(seed);
  }
  std::string job_name(const RunSettings& settings) override { return type_of(settings).name; }
  ErrorInfo describe_exception(const std::string& part) override { return describe_user_exception(part); }

  std::unique_ptr<GroupMaker> make_groups(const Session& session, const RunSettings& settings) override {
    name_process_work(job_name(settings));  // a trainer's first question
    return make_native_groups(session, settings, own_memory_);
  }
  std::unique_ptr<checkpoint::FileSystem> files(std::function<void()> progress) override {
    return std::make_unique<checkpoint::PosixFileSystem>(std::move(progress));
  }
  std::string who() const override { return collectives::who_we_are(); }

 private:
  OwnMemory own_memory_;  ///< of this process's trainer
};

}  // namespace

/// For good: at the process's end the session that would give its memory back is gone, and the node takes it.
TrainFloor& train_floor() {
  static TorchFloor& floor = *new TorchFloor;
  return floor;
}

}  // namespace troupe::train
