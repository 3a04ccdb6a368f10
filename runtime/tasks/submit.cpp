#include "runtime/tasks/submit.hpp"

#include <cmath>

#include "runtime/client/group_options.hpp"
#include "runtime/tasks/tasks.hpp"
#include "runtime/wire/cluster.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {

bool is_cancelled() {
  ProcessGate* gate = ProcessGate::current();
  const auto tasks = gate == nullptr ? nullptr : gate->tasks();
  return tasks != nullptr && tasks->is_cancelled();
}

namespace tasks {

PushedTask::PushedTask(wire::ByteView& bytes) : tasks_(ProcessGate::current()->tasks()) {
  cancelled_ = tasks_->begin_pushed(cut_attempt(bytes));
}

PushedTask::~PushedTask() {
  tasks_->end_pushed();
}

ErrorInfo task_cancelled(std::string_view name) {
  return {ErrorCode::kCancelled, std::string(name) + " was not run", "it was cancelled", ""};
}

void run_body(const std::function<void()>& body) {
  ProcessGate* gate = ProcessGate::current();
  const auto tasks = gate == nullptr ? nullptr : gate->tasks();
  if (tasks == nullptr) return body();
  tasks->run(body);
}

namespace {

TaskSpec spec_of(std::uint64_t function, std::string_view name, CallBody args, const TaskOptions& options) {
  const auto refuse = [&](std::string why, std::string todo) {
    throw BadConfig("cannot submit " + std::string(name), std::move(why), std::move(todo));
  };
  if (!(options.num_cpus >= 0 && options.num_cpus <= 1e6))  // a NaN is refused, too
    refuse("num_cpus = " + detail::short_text(options.num_cpus), "ask for 0 to 1,000,000 CPUs");
  const double gpus = options.num_gpus;
  if (!(gpus >= 0 && gpus <= 1024) || (gpus > 1 && gpus != std::floor(gpus)))
    refuse("num_gpus = " + detail::short_text(gpus),
           "ask for a part of one GPU, or for 0 to 1,024 whole ones");
  if (options.max_retries < 0)
    refuse("max_retries = " + std::to_string(options.max_retries), "ask for 0 or more");
  if (const char* wrong = detail::group_options_wrong(options)) refuse(wrong, detail::kGroupOptions);
  auto other = cluster::other_resources(options.memory, options.resources, options.labels);
  if (std::string wrong = cluster::wrong_about(other); !wrong.empty()) refuse(wrong, detail::kOtherOptions);
  if (options.placement_group && !other.labels.empty())
    refuse("it asks for labels in a placement group", "give the labels to the group's bundles");
  TaskSpec spec;
  spec.function = function;
  spec.name = name;
  spec.args = std::move(args);
  spec.demand = {std::llround(options.num_cpus * cluster::kCpu),
                 std::llround(gpus * cluster::kGpu),
                 options.node,
                 options.placement_group,
                 options.bundle,
                 std::move(other)};
  spec.retries = options.max_retries;
  spec.retry_exceptions = options.retry_exceptions;
  return spec;
}

TasksPtr tasks_of(ProcessGate& gate, std::string_view name) {
  auto tasks = gate.tasks();
  if (tasks == nullptr)
    throw BadConfig("cannot submit " + std::string(name), "this process belongs to no cluster",
                    "submit it in a session");
  return tasks;
}

}  // namespace

std::shared_ptr<CallState> submit(ProcessGate& gate, std::uint64_t function, std::string_view name,
                                  CallBody args, const TaskOptions& options) {
  return tasks_of(gate, name)->submit(spec_of(function, name, std::move(args), options));
}

std::vector<objects::HandlePtr> compute(ProcessGate& gate, std::uint64_t function, std::string_view name,
                                        CallBody args, const TaskOptions& options, std::size_t results) {
  TaskSpec spec = spec_of(function, name, std::move(args), options);
  spec.results = results;
  return tasks_of(gate, name)->compute(std::move(spec));
}

Outcome computed_here(std::span<const wire::ByteView> objects, bool is_pushed) {
  return ProcessGate::current()->tasks()->computed_here(objects, is_pushed);
}

void leave_objects(detail::EncodedAnswer& answer) {
  ProcessGate::current()->tasks()->leave_objects(answer);
}

}  // namespace tasks
}  // namespace troupe
