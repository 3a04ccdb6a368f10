#include "actors/train/api/predict.hpp"

#include <algorithm>
#include <numeric>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/data/batch_builder.hpp"
#include "actors/train/api/begin_from.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/leaf_random.hpp"
#include "actors/train/job/user_code.hpp"
#include "actors/train/job/view_batch.hpp"

namespace troupe::train {
namespace detail {

/// A batch of a prediction.
struct PredictAsk {
  std::uint64_t job_type = 0;
  wire::Bytes job;
  std::string weights_hash;  ///< by which a worker knows that it has them
  std::uint8_t split = 0;
  std::uint64_t seed = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What a worker keeps from task to task.
struct Prepared {
  wire::Bytes job;
  std::string weights_hash;
  std::uint8_t split = 0;
  std::unique_ptr<TrainingModel> model;
  std::shared_ptr<data::Dataset> dataset;
  bool is_for(const PredictAsk& ask) const {
    return model != nullptr && job == ask.job && weights_hash == ask.weights_hash && split == ask.split;
  }
};

/// `read`: gives the weights, where they are needed.
template <class Read>
Prepared& prepared_for(const PredictAsk& ask, const Read& read) {
  static Prepared prepared;  // a worker runs one task at a time
  if (prepared.is_for(ask)) return prepared;
  prepared = {};
  set_up_numerics();
  const JobType& type = JobRegistry::instance().find(ask.job_type);
  const auto split = static_cast<data::Split>(ask.split);
  auto dataset = run_user_code(type.name + "::dataset", [&] { return type.make_dataset(ask.job, split); });
  auto model = run_user_code(type.name + "::model (or setup, optimizer, precision)",
                             [&] { return type.make_model(ask.job, ask.seed, torch::kCPU); });
  auto tensors = model->parameters();
  for (const NamedTensor& buffer : model->buffers()) tensors.push_back(buffer);
  const wire::Bytes weights = read();
  copy_weights("the weights", weights, "", tensors);
  prepared = {ask.job, ask.weights_hash, ask.split, std::move(model), std::move(dataset)};
  return prepared;
}

struct alignas(data::kBatchAlignment) Line {
  std::byte bytes[data::kBatchAlignment];
};

/// A task: the outputs of the samples [begin, end), as a safetensors file.
wire::Bytes predict_batch(PredictAsk ask, ObjectRef<wire::Bytes> weights) {
  Prepared& prepared = prepared_for(ask, [&] { return weights.get(); });
  const std::string name = JobRegistry::instance().find(ask.job_type).name;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(ask.end - ask.begin));
  std::iota(indices.begin(), indices.end(), ask.begin);
  const data::RandomKey key{mix(ask.seed, ask.split), 0};
  data::BatchBuilder builder(*prepared.dataset, indices, key,
                             {.seed = [](std::uint64_t seed) { seed_default_generator(seed); }});
  std::vector<Line> memory(builder.total() / sizeof(Line));
  const auto bytes = std::as_writable_bytes(std::span(memory));
  builder.write(bytes, {});
  const data::Batch batch = as_batch(data::view_batch(bytes).value());
  const torch::Tensor output =
      run_user_code(name + "::predict", [&] { return prepared.model->predict(batch); });
  if (!output.defined() || output.dim() == 0 || output.size(0) != ask.end - ask.begin)
    throw BadConfig("a prediction of " + name + " is not one of each sample",
                    "it is " + (output.defined() ? c10::str(output.sizes()) : std::string("undefined")) +
                        " for " + std::to_string(ask.end - ask.begin) + " samples",
                    "return a tensor of [samples, ...]");
  const torch::Tensor plain = output.contiguous();
  return checkpoint::write_safetensors(
      checkpoint::lay_out_safetensors(std::vector{tensor_as_part("output", plain)}).value());
}

}  // namespace detail

torch::Tensor predict_with(const DriverSession& session, const RunPlan& plan, const std::string& path,
                           std::span<const std::byte> bytes, const PredictOptions& options) {
  if (options.batch < 1)
    throw BadConfig("cannot predict", "batches of " + std::to_string(options.batch), "use at least 1");
  const wire::Bytes weights = weights_to_use(plan, path, bytes);
  const auto dataset = JobRegistry::instance().find(plan.job_type).make_dataset(plan.job, options.split);
  if (dataset == nullptr || dataset->size() == 0)
    throw BadConfig("cannot predict", "the job's dataset has no samples of that split", "name another");
  const std::string hash = hash_of_bytes(weights);
  const auto shared = session.put(weights);
  std::vector<Future<wire::Bytes>> parts;
  for (std::int64_t begin = 0; begin < dataset->size(); begin += options.batch) {
    const detail::PredictAsk ask{plan.job_type,
                                 plan.job,
                                 hash,
                                 static_cast<std::uint8_t>(options.split),
                                 options.seed,
                                 begin,
                                 std::min(begin + options.batch, dataset->size())};
    parts.push_back(session.with({.num_cpus = options.num_cpus}).submit<&detail::predict_batch>(ask, shared));
  }
  std::vector<torch::Tensor> outputs;
  for (auto& part : parts) {
    const wire::Bytes file = part.get();
    const auto read = checkpoint::read_safetensors("a prediction", file).value();
    outputs.push_back(part_as_tensor(read.tensors.at(0)).clone());
  }
  return torch::cat(outputs);
}

}  // namespace troupe::train
