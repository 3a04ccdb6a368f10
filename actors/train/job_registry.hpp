/// The user's training jobs by type, so that the actors that run them are ordinary classes: instantiating
/// `train::run(session, Job{...})` anywhere in a program registers Job in every process of the executable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "actors/data/dataset.hpp"
#include "actors/train/describe_job.hpp"
#include "actors/train/model.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

struct JobType {
  std::string name;
  std::unique_ptr<TrainingModel> (*make_model)(wire::ByteView job, std::uint64_t seed) = nullptr;
  std::shared_ptr<data::Dataset> (*make_dataset)(wire::ByteView job, data::Split split) = nullptr;
  std::string (*describe)(wire::ByteView job) = nullptr;  ///< for people
};

/// Written before main, read after: thread-safe.
class JobRegistry {
 public:
  static JobRegistry& instance();
  bool add(std::uint64_t id, JobType type);
  /// Throws Refused when this executable has no such job: driver and workers are different builds.
  const JobType& find(std::uint64_t id) const;

 private:
  std::unordered_map<std::uint64_t, JobType> types_;
};

template <class Job>
concept HasDataset = requires(const Job& job, data::Split split) {
  requires std::derived_from<std::remove_cvref_t<decltype(job.dataset(split))>, data::Dataset> ||
      std::convertible_to<decltype(job.dataset(split)), std::shared_ptr<data::Dataset>>;
};

template <class Job>
struct JobEntry {
  static_assert(HasDataset<Job>,
                "this job lacks `auto dataset(troupe::data::Split split) const`, returning a dataset or a "
                "shared_ptr to one");
  static constexpr std::uint64_t kId = troupe::detail::signature_hash(troupe::detail::type_signature<Job>());

  static std::unique_ptr<TrainingModel> make_model(wire::ByteView bytes, std::uint64_t seed) {
    return make_training_model(wire::decode<Job>(bytes).value(), seed);
  }
  static std::shared_ptr<data::Dataset> make_dataset(wire::ByteView bytes, data::Split split) {
    const Job job = wire::decode<Job>(bytes).value();
    using Made = std::remove_cvref_t<decltype(job.dataset(split))>;
    if constexpr (std::derived_from<Made, data::Dataset>) {
      return std::make_shared<Made>(job.dataset(split));
    } else {
      return job.dataset(split);
    }
  }
  static std::string name() {
    return std::string(troupe::detail::pretty_part(troupe::detail::type_signature<Job>()));
  }
  static std::string describe_job(wire::ByteView bytes) {
    std::string text = name();
    describe(text, wire::decode<Job>(bytes).value());
    return text;
  }
  static inline const bool registered =
      JobRegistry::instance().add(kId, {name(), &make_model, &make_dataset, &describe_job});
};

}  // namespace troupe::train
