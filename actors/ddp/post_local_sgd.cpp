#include "actors/ddp/post_local_sgd.hpp"

#include <string>
#include <utility>

#include "actors/ddp/device_streams.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

CommHook post_local_sgd(PostLocalSgdOptions options) {
  if (options.start_iteration < 0) {
    throw BadConfig("cannot make the hook post_local_sgd",
                    "start_iteration is " + std::to_string(options.start_iteration), "give 0 or more");
  }
  auto iteration = std::make_shared<int>(0);
  const auto is_local = [iteration, start = options.start_iteration] { return *iteration >= start; };
  CommHook reduce = [=, subgroup = options.subgroup](
                        GradBucket bucket, collectives::ProcessGroup& group) -> std::function<void()> {
    const bool local = is_local();
    if (bucket.is_last && !local) ++*iteration;
    if (!local) return allreduce()(std::move(bucket), group);
    if (subgroup) return allreduce()(std::move(bucket), *subgroup);
    return [] {};
  };
  return for_one_module("post_local_sgd", std::move(reduce), is_local);
}

PeriodicModelAverager::PeriodicModelAverager(std::shared_ptr<collectives::ProcessGroup> group,
                                             AveragerOptions options)
    : group_(std::move(group)), options_(options) {
  const auto refuse = [](const std::string& why, const char* todo) {
    throw BadConfig("cannot make a PeriodicModelAverager", why, todo);
  };
  if (!group_) refuse("there is no group", "call init_process_group");
  if (options_.period < 1) refuse("period is " + std::to_string(options_.period), "give at least 1");
  if (options_.warmup_steps < 0)
    refuse("warmup_steps is " + std::to_string(options_.warmup_steps), "give 0 or more");
}

bool PeriodicModelAverager::average_parameters(const std::vector<torch::Tensor>& parameters) {
  const std::int64_t since = step_++ - options_.warmup_steps;
  if (since < 0 || since % options_.period != 0) return false;
  const torch::NoGradGuard no_grad;
  const DeviceStreams streams(device_of(*group_));
  streams.on_default([&] {
    std::vector<std::shared_ptr<collectives::Work>> works;
    std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // of those with gaps: parameter, its values
    for (const torch::Tensor& parameter : parameters) {
      torch::Tensor values = parameter.detach();
      if (!values.is_non_overlapping_and_dense()) {
        values = values.contiguous();
        copies.emplace_back(parameter.detach(), values);
      }
      works.push_back(group_->all_reduce(buffer_of(values), collectives::ReduceOp::kAvg));
    }
    for (const auto& work : works) work->wait();
    for (auto& [parameter, values] : copies) parameter.copy_(values);
  });
  streams.synchronize();  // a wait for a group of GPUs is the stream's, which does not throw
  group_->throw_if_aborted();
  return true;
}

}  // namespace troupe::train
