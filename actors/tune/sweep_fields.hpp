/// What troupe::configure fills of SweepOptions: `[sweep]` in a file, and `--trials 64`. How a trial trains
/// is in the table `options`, as without a sweep.
#pragma once

#include "actors/train/api/train_fields.hpp"
#include "actors/tune/tune.hpp"
#include "runtime/config/configure.hpp"

namespace troupe::config {

template <class Job>
struct Table<tune::SweepOptions<Job>> {
  static constexpr const char* kTable = "sweep";
  /// All but what a program alone can say: the space, schedulers and searches, adjust, try_first.
  static void add(Entries& to, const std::string& table, tune::SweepOptions<Job>& of) {
    using O = tune::SweepOptions<Job>;
    const Described<O> fields[] = {
        {&O::trials, "Configs to try"},
        {&O::metric, "What the job reports and the sweep looks at, as validation/accuracy"},
        {&O::mode, "Which values of it are better"},
        {&O::target, "A trial whose metric is as good as that has finished"},
        {&O::repeats, "Trials of each config, with seeds of their own"},
        {&O::seed, "Of the configs and the scheduler's chance"},
        {&O::max_concurrent, "Trials at a time; 0: as many as the cluster's CPUs allow"},
        {&O::max_seconds, "Then the sweep ends and may be resumed; 0: when all trials are over"},
        {&O::silent_seconds, "A trial that tells nothing for so long has failed; 0: it may"},
        {&O::retries, "How often a trial that fails is tried again"},
        {&O::keep_processes, "A trial trains in the processes of the one before it"},
        {&O::name, "Of the sweep and of its folder"},
        {&O::folder, "Records and weights are in FOLDER/NAME"},
        {&O::resume, "Go on with the sweep of this name"},
        {&O::report_json, "Write a line of JSON for each report to this file"},
        {&O::show_progress, "Show the table of trials"}};
    for (const auto& one : fields) one.add(to, table, of);
    Table<train::TrainOptions>::add(to, Table<train::TrainOptions>::kTable, of.train);
    // What a sweep refuses (sweep_plan.cpp): trials end by epochs and have no checkpoints, and --resume is to
    // mean the sweep's.
    std::erase_if(to, [](const Entry& entry) {
      return entry.name == "options.resume" || entry.name == "options.max_steps" ||
             entry.name == "options.checkpoint_folder" || entry.name == "options.keep_best";
    });
    for (const std::string& drawn : of.space.options()) {
      for (Entry& entry : to) {
        if (entry.name != "options." + drawn) continue;
        entry.help = "Drawn by the sweep's space: not to be given";
        entry.value.clear();
        entry.set = [](const Value&) { return std::string("the sweep's space draws it: leave it out"); };
      }
    }
  }
};

}  // namespace troupe::config
