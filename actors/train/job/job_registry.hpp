/// The user's training jobs by type, so that the actors that run them are ordinary classes: instantiating
/// `train::run(session, Job{...})` anywhere in a program registers Job in every process of the executable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "actors/data/dataset.hpp"
#include "actors/data/sampler.hpp"
#include "actors/train/job/describe_job.hpp"
#include "actors/train/job/member_names.hpp"
#include "actors/train/job/model.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

struct JobType {
  std::string name;
  std::unique_ptr<TrainingModel> (*make_model)(wire::ByteView job, std::uint64_t seed,
                                               torch::Device device) = nullptr;
  std::shared_ptr<data::Dataset> (*make_dataset)(wire::ByteView job, data::Split split) = nullptr;
  data::Sampling (*make_sampling)(wire::ByteView job, const data::Dataset& train) = nullptr;
  std::string (*describe)(wire::ByteView job) = nullptr;  ///< for people
  /// What its datasets are made of: jobs that have the same here have the same samples.
  wire::Bytes (*data_fields)(wire::ByteView job) = nullptr;
  /// It may count figures of any name: its loss() or evaluate() gets a Leaf. Else it has the loss, and of the
  /// sets that are evaluated the accuracy.
  bool counts_figures = true;
  bool looks_at_metrics = false;  ///< a schedule may look at what evaluations come to
  bool has_validation = false;    ///< whether dataset() is asked for kValidation
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
  requires data::DatasetLike<std::remove_cvref_t<decltype(job.dataset(split))>>;
};
/// `static constexpr bool kHasValidation = true;`: dataset() gives kValidation, too. (An empty or null one is
/// none.) It must be said, since most jobs take whatever is not kTrain for the test set.
template <class Job>
concept NamesValidation = requires {
  Job::kHasValidation;
};
template <class Job>
constexpr bool has_validation() {
  if constexpr (NamesValidation<Job>) {
    static_assert(std::is_same_v<decltype(Job::kHasValidation), const bool>,
                  "this job's kHasValidation must be `static constexpr bool kHasValidation = true;`");
    return Job::kHasValidation;
  } else {
    return false;
  }
}
/// `auto data_fields() const { return std::tie(folder); }`: its dataset() is made of these fields alone, so a
/// loader keeps it for jobs that have the same. Without it: of all fields.
template <class Job>
concept HasDataFields = requires(const Job& job) {
  std::tuple_size<std::remove_cvref_t<decltype(job.data_fields())>>::value;
};
TROUPE_NAMES(NamesDataFields, data_fields);
TROUPE_NAMES(NamesSampler, sampler);
template <class Job>
concept HasSampler = requires(const Job& job) {
  { job.sampler() } -> std::convertible_to<data::Sampling>;
};
/// With what the dataset says of its samples: weights by class, for one.
template <class Job>
concept HasDataSampler = requires(const Job& job, const data::Dataset& train) {
  { job.sampler(train) } -> std::convertible_to<data::Sampling>;
};

template <class Job>
struct JobEntry {
  static_assert(
      HasDataset<Job>,
      "this job lacks `auto dataset(troupe::data::Split split) const`, returning a struct with "
      "`std::int64_t size() const` and `Sample get(std::int64_t index, troupe::data::Random& random) "
      "const`, a data::Dataset, or a shared_ptr to one");
  static_assert(
      !NamesDataFields<Job> || HasDataFields<Job>,
      "this job's data_fields must be `auto data_fields() const { return std::tie(...); }` with the "
      "fields that its dataset() is made of");
  static_assert(!NamesSampler<Job> || HasSampler<Job> || HasDataSampler<Job>,
                "this job's sampler must be `troupe::data::Sampling sampler() const`, or take a "
                "`const troupe::data::Dataset& train`");
  static constexpr std::uint64_t kId = troupe::detail::signature_hash(troupe::detail::type_signature<Job>());

  static std::unique_ptr<TrainingModel> make_model(wire::ByteView bytes, std::uint64_t seed,
                                                   torch::Device device) {
    return make_training_model(wire::decode<Job>(bytes).value(), seed, device);
  }
  static std::shared_ptr<data::Dataset> make_dataset(wire::ByteView bytes, data::Split split) {
    const bool may_lack = split == data::Split::kValidation;
    if (may_lack && !has_validation<Job>()) return nullptr;
    const Job job = wire::decode<Job>(bytes).value();
    auto made = data::share(job.dataset(split));
    if (made == nullptr && !may_lack)
      throw BadConfig("the job has no data", "its dataset() returned null", "");
    return made;
  }
  static data::Sampling make_sampling(wire::ByteView bytes, [[maybe_unused]] const data::Dataset& train) {
    if constexpr (HasSampler<Job>) {
      return wire::decode<Job>(bytes).value().sampler();
    } else if constexpr (HasDataSampler<Job>) {
      return wire::decode<Job>(bytes).value().sampler(train);
    } else {
      return {};
    }
  }
  static void append(wire::Bytes& all, const wire::Bytes& one) {
    all.insert(all.end(), one.begin(), one.end());
  }
  static wire::Bytes data_fields(wire::ByteView bytes) {
    if constexpr (HasDataFields<Job>) {
      const Job job = wire::decode<Job>(bytes).value();
      wire::Bytes all;
      std::apply([&](const auto&... field) { (append(all, wire::encode(field)), ...); }, job.data_fields());
      return all;
    } else {
      return {bytes.begin(), bytes.end()};
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
  static inline const bool registered = JobRegistry::instance().add(
      kId, {name(), &make_model, &make_dataset, &make_sampling, &describe_job, &data_fields,
            HasLossOfLeaf<Job> || HasEvaluate<Job>, looks_at_metrics<Job>(), has_validation<Job>()});
};

}  // namespace troupe::train
