/// train::evaluate: a run that begins with the weights, evaluates them, and trains no step.
#include "actors/train/api/begin_from.hpp"

namespace troupe::train {

report::Metrics evaluate_weights(const DriverSession& session, RunPlan plan, const std::string& path,
                                 std::span<const std::byte> bytes) {
  TrainOptions& o = plan.options;
  o.from = path;
  o.resume = o.hold = o.from_state = false;
  o.evaluate = true;
  o.evaluate_every = o.max_steps = 0;
  o.return_weights = o.rehearse = false;
  // The files of the run that these options were given for stay as they are.
  for (std::string* file : {&o.checkpoint_folder, &o.events_json, &o.metrics_csv, &o.tensorboard_folder})
    file->clear();
  o.stop_early = {};
  o.keep_best.clear();
  plan.evaluates = true;
  if (path.empty() && bytes.empty())
    throw BadConfig("there are no weights", "the run returned none", "leave return_weights = false out");
  if (path.empty()) {
    begin_with(plan, "the result of the run", bytes);
  } else {
    begin_from(plan);
  }
  const RunResult result = start_training(session, std::move(plan)).wait();
  if (result.metrics.empty() && !result.stopped)
    throw BadConfig("there is nothing to evaluate", "the job's dataset has no test and no validation samples",
                    "return samples for Split::kTest");
  return result.metrics;
}

}  // namespace troupe::train
