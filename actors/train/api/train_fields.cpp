#include "actors/train/api/train_fields.hpp"

namespace troupe::config {

// All but what a program alone can say: chaos (faults on purpose), on_event, hold, handle_signals; and maps,
// which no setting fills: trainer_resources, trainer_labels.
constexpr std::size_t kLeftOut = 6;

void Table<train::TrainOptions>::add(Entries& to, const std::string& table, train::TrainOptions& of) {
  using O = train::TrainOptions;
  const Described<O> fields[] = {
      {field<&O::logical_ranks>(), "Micro-batches a step: part of the job's identity"},
      {field<&O::micro_batch>(), "Samples a logical rank a step"},
      {field<&O::epochs>(), "Passes over the data"},
      {field<&O::max_steps>(), "End after so many steps instead; 0: after the epochs"},
      {field<&O::trainers>(), "Processes that compute; at most one a logical rank"},
      {field<&O::loaders>(), "Processes that read"},
      {field<&O::seed>(), "Of weights and the order of samples"},
      {field<&O::evaluate>(), "Evaluate after every epoch"},
      {field<&O::evaluate_every>(), "Evaluate after so many steps, too"},
      {field<&O::evaluation_samples>(), "Of each set the first so many; 0: all"},
      {field<&O::checkpoint_folder>(), "Folder for checkpoints"},
      {field<&O::checkpoint_every>(), "Steps between checkpoints; 0: one an epoch"},
      {field<&O::keep_checkpoints>(), "Older ones go"},
      {field<&O::resume>(), "Go on at the newest checkpoint in that folder"},
      {field<&O::from>(),
       "Begin with these weights: a checkpoint, a folder of them, a safetensors file, or one of torch.save"},
      {field<&O::from_state>(), "Begin with the whole state of that checkpoint"},
      {field<&O::from_partial>(), "Weights that it lacks stay as the seed makes them"},
      {field<&O::min_trainers>(), "Fewer do not train"},
      {field<&O::trainer_strategy>(), "On which nodes trainers are"},
      {field<&O::trainer_cpus>(), "CPUs that a trainer holds"},
      {field<&O::trainer_gpus>(), "GPUs that a trainer holds and computes on: 0, 1 or a part of one"},
      {field<&O::trainer_memory>(), "Bytes of memory that a trainer holds"},
      {field<&O::threads>(),
       "Intra-op threads of a trainer; other numbers give other bits; 0: its share of the CPUs"},
      {field<&O::exact>(), "The same bits on every trainer"},
      {field<&O::rehearse>(), "Find what changes and is in no state"},
      {field<&O::encrypt_data_plane>(), "Encrypt gradients between hosts"},
      {field<&O::shard>(), "What trainers share out"},
      {field<&O::shard_min_num_params>(), "Elements that make a module a unit of what is shared out"},
      {field<&O::shard_units>(), "Names of modules that are such units"},
      {field<&O::shard_prefetch>(), "The next of them comes while one computes"},
      {field<&O::not_finite>(), "What becomes of a step whose loss is no number"},
      {field<&O::keep_best>(), "Keep the checkpoint that has the best of this figure"},
      {field<&O::keep_best_mode>(), "Which values of it are better"},
      {field<&O::find_unused_parameters>(), "A parameter that a loss does not depend on counts as zeros"},
      {field<&O::return_weights>(), "Bring the weights to the program"},
      {field<&O::title>(), "The first line shown"},
      {field<&O::show_progress>(), "Show the progress, and a summary"},
      {field<&O::events_json>(), "Write every event as a line of JSON to this file"},
      {field<&O::metrics_csv>(), "Write every figure as a row of CSV to this file"},
      {field<&O::tensorboard_folder>(), "Write figures for TensorBoard into this folder"},
      {field<&O::stop_early>(), ""},
      {field<&O::deadlines>(), ""}};
  constexpr std::size_t kAll = std::extent_v<decltype(fields)> + kLeftOut;
  static_assert(wire::detail::accepts<O>(std::make_index_sequence<kAll>{}) &&
                    !wire::detail::accepts<O>(std::make_index_sequence<kAll + 1>{}),
                "each field of TrainOptions is in the list, or counted in kLeftOut");
  for (const auto& one : fields) one.add(to, table, of);
}

void Table<InitOptions>::add(Entries& to, const std::string& table, InitOptions& of) {
  using O = InitOptions;
  const std::vector<Described<O>> fields{
      {&O::nodes, "Nodes of an embedded cluster"},
      {&O::cpus_per_node, "CPUs of each; 0: the cores this process may use"},
      {&O::gpus_per_node, "GPUs that actors may hold; below 0: all that CUDA finds"},
      {&O::memory_per_node, "Bytes that actors may hold; below 0: a share of what there is"},
      {&O::address, "HOST:PORT of the head of a running cluster"},
      {&O::folder, "Of the keys of a running cluster"},
      {&O::token_file, "Join token for a folder that no head knows yet"},
      {&O::job, "Name of the job"}};
  for (const auto& one : fields) one.add(to, table, of);
}

}  // namespace troupe::config
