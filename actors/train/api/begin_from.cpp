#include "actors/train/api/begin_from.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/driver/history.hpp"
#include "actors/train/engine/apply_step.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/leaf_random.hpp"

namespace troupe::train {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& todo) {
  throw BadConfig("cannot begin from '" + path + "'", why, todo);
}

/// Of a folder the newest manifest that can be read.
std::string file_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return path;
  checkpoint::PosixFileSystem files;
  const auto listed = checkpoint::CheckpointStore(files, {path}).list().value();
  for (auto at = listed.rbegin(); at != listed.rend(); ++at) {
    if (at->manifest) return at->manifest_path;
  }
  refuse(path, "there is no checkpoint in that folder",
         "name a checkpoint's folder, its manifest, or weights");
}

/// As the seed makes it. The program's own random numbers go on as they were.
std::unique_ptr<TrainingModel> model_of(const RunPlan& plan) {
  const auto generator = default_generator_state();
  auto model =
      JobRegistry::instance().find(plan.job_type).make_model(plan.job, plan.options.seed, torch::kCPU);
  set_default_generator_state(generator);
  return model;
}

bool keeps_averages(TrainingModel& model) {
  const auto& parts = model.setup().state.parts();
  return std::any_of(parts.begin(), parts.end(),
                     [](const UserPart& part) { return ("user/" + part.name).starts_with(kAveragedPrefix); });
}
bool has_averages(const std::string& path, std::span<const std::byte> bytes) {
  const auto file = checkpoint::read_safetensors(path, bytes).value();
  return std::any_of(file.tensors.begin(), file.tensors.end(),
                     [](const StatePart& part) { return part.name.starts_with(kAveragedPrefix); });
}

/// The averages in place of the weights, where the job keeps them and the file has them.
wire::Bytes with_averages(TrainingModel& model, const std::string& path, std::span<const std::byte> bytes) {
  if (!keeps_averages(model) || !has_averages(path, bytes)) return {bytes.begin(), bytes.end()};
  return averaged_weights(path, bytes);
}

Snapshot snapshot_of(const RunPlan& plan, JobPlace place, const std::vector<StatePart>& parts) {
  return {std::move(place),
          plan.job_type,
          {},
          std::make_shared<const wire::Bytes>(
              checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value()))};
}

/// The initial state with the weights of the file.
Snapshot begin_with_weights(const RunPlan& plan, const std::string& path, std::span<const std::byte> bytes,
                            std::vector<std::string>& told) {
  const auto model = model_of(plan);
  auto tensors = model->parameters();
  for (const NamedTensor& buffer : model->buffers()) tensors.push_back(buffer);
  wire::Bytes averages;  // what an evaluation after an epoch uses
  if (plan.evaluates) bytes = averages = with_averages(*model, path, bytes);
  const auto load = plan.options.from_partial ? &copy_matching_weights : &copy_weights;
  const LeftOut left_out = load(path, bytes, "", tensors);
  if (left_out.missing.size() + left_out.other.size() == tensors.size())
    refuse(path, "none of its tensors fits the job's model: " + to_string(left_out), "name another file");
  if (const auto text = to_string(left_out); !text.empty())
    told.push_back("left out of '" + path + "': " + text);
  if (const auto text = text_of_converted(left_out); !text.empty())
    told.push_back("converted from '" + path + "': " + text);
  const StateView view = TrainState(*model).view();
  return snapshot_of(plan, {}, view.parts);
}

/// How often a schedule has stepped by that place in the job.
std::int64_t schedule_steps(const TrainedBy& trained, const checkpoint::JobPosition& at) {
  return static_cast<std::int64_t>(trained.every == Every::kStep ? at.global_step : at.epoch);
}

/// What the state came to, unless a schedule of the model looks at a figure that the other job did not have.
/// The model is of no use any more: its schedules have looked.
std::string history_of(const checkpoint::Manifest& manifest, TrainingModel& model) try {
  const auto text = manifest.metadata.find(kHistoryKey);
  if (text == manifest.metadata.end()) return {};
  observe_plateaus(model, decode_history(text->second).value_or(History{}).metrics);
  return text->second;
} catch (const BadConfig&) {
  return {};
}

/// The whole state of the checkpoint. Schedules that it lacks are where they would be by its step; what else
/// it lacks is as the seed makes it, and what the job has no place for is left out.
Snapshot begin_with_state(const RunPlan& plan, const std::string& path, std::vector<std::string>& told) {
  if (!path.ends_with(".json"))
    refuse(path, "it has weights and no whole state",
           "name a checkpoint's manifest or folder, or leave "
           "from_state out");
  checkpoint::PosixFileSystem files;
  const std::filesystem::path named(path);
  const std::string folder = named.has_parent_path() ? named.parent_path().string() : ".";
  const auto loaded = checkpoint::CheckpointStore(files, {folder})
                          .load_manifest(folder + "/" + named.filename().string())
                          .value();
  const auto model = model_of(plan);
  TrainState state(*model);
  const StateView own = state.view();
  std::set<std::string> known;
  for (const StatePart& part : own.parts) known.insert(part.name);
  const auto may_lack = [](const std::string& name) {
    return name.starts_with("scheduler") || name.starts_with("user/");
  };
  std::vector<StatePart> parts;
  std::set<std::string> there;
  LeftOut left_out;
  for (const StatePart& part : loaded.tensors) {
    if (may_lack(part.name) && !known.contains(part.name)) {
      left_out.unused.push_back(part.name);
      continue;
    }
    parts.push_back(part);
    there.insert(part.name);
  }
  std::vector<std::int64_t> steps;
  steps.reserve(model->optimizers().size());
  for (const StatePart& part : own.parts) {
    if (!may_lack(part.name) || there.contains(part.name)) continue;
    parts.push_back(part);
    if (!part.name.starts_with("scheduler")) left_out.missing.push_back(part.name);
    for (const TrainedBy& trained : model->optimizers()) {
      const std::string name = trained.name.empty() ? "" : "[" + trained.name + "]";
      if (part.name != "scheduler" + name + "/steps") continue;
      steps.push_back(schedule_steps(trained, loaded.manifest.position));
      parts.back().bytes = std::as_bytes(std::span(&steps.back(), 1));
    }
  }
  if (auto fits = state.install(parts); !fits)
    refuse(path, fits.error().what + ": " + fits.error().why,
           "begin with its weights alone: leave from_state out");
  if (const auto text = to_string(left_out); !text.empty())
    told.push_back("left out of '" + path + "': " + text);
  Snapshot begun = snapshot_of(
      plan, {static_cast<std::int64_t>(loaded.manifest.position.global_step), {}, loaded.manifest.job, {}},
      parts);
  begun.place.history = history_of(loaded.manifest, *model);
  return begun;
}

}  // namespace

void begin_from(RunPlan& plan) {
  const TrainOptions& options = plan.options;
  if (options.from.empty()) {
    if (options.from_state || options.from_partial)
      throw BadConfig("cannot train", "from_state and from_partial say how `from` is read, and it is empty",
                      "name a file or a folder in from");
    return;
  }
  if (options.resume || plan.from)
    refuse(options.from, "the run goes on with a state of its own",
           "begin from a file, or resume (or clone), not both");
  if (options.from_state && options.from_partial)
    refuse(options.from, "a whole state is taken whole", "leave from_partial out");
  const std::string path = file_of(options.from);
  if (!options.from_state) return begin_with(plan, path, read_weights(path));
  plan.from = begin_with_state(plan, path, plan.told);
  plan.clone = true;
  plan.from_path = path;
}

wire::Bytes weights_to_use(const RunPlan& plan, const std::string& path, std::span<const std::byte> bytes) {
  if (path.empty() && bytes.empty())
    throw BadConfig("there are no weights", "the run returned none", "leave return_weights = false out");
  const std::string name = path.empty() ? "the result of the run" : file_of(path);
  const std::vector<std::byte> read = path.empty() ? std::vector<std::byte>() : read_weights(name);
  const auto model = model_of(plan);
  return with_averages(*model, name, path.empty() ? bytes : std::span<const std::byte>(read));
}

void begin_with(RunPlan& plan, const std::string& name, std::span<const std::byte> bytes) {
  plan.from = begin_with_weights(plan, name, bytes, plan.told);
  plan.clone = true;
  plan.from_path = name;
}

}  // namespace troupe::train
