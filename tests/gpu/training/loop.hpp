/// The loop that somebody writes without a job for train::run: in plain LibTorch, or with
/// DistributedDataParallel or FullyShardedDataParallel by hand. A step's gradients are the same sum any way,
/// in the same order, as long as there are two micro-batches a step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/data/dataset.hpp"
#include "actors/data/torch.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/job/batch.hpp"
#include "troupe/ddp.hpp"
#include "troupe/fsdp.hpp"

namespace troupe::gpu {

/// Of steps that are done, how fast: the first tenth warms up, and does not count.
class Speed {
 public:
  Speed(std::int64_t steps, std::int64_t samples) : warm_up_(steps / 10), samples_(samples) {}
  void step(double loss);
  /// Throws where there were too few steps to measure.
  void print() const;

 private:
  using Clock = std::chrono::system_clock;
  const std::int64_t warm_up_;
  const std::int64_t samples_;  ///< a step
  std::int64_t done_ = 0;
  double loss_ = 0;
  std::optional<Clock::time_point> first_;
  Clock::time_point last_;
};

struct LoopOptions {
  bool on_gpu = false;
  int micro_batches = 4;    ///< a step, of all ranks together
  std::int64_t batch = 25;  ///< samples of a micro-batch
  int epochs = 1;
  bool sharded = false;  ///< with a group
};

/// All samples as one batch, read once.
data::Batch read_all(const data::Dataset& dataset);

/// Prints "state sha256 <hex>". With a group rank 0 does; throws where another rank has another hash.
void print_parameters(const std::vector<torch::Tensor>& parameters, collectives::ProcessGroup* group);

/// `group`: of the ranks, each with as many micro-batches; null: plain LibTorch, in this process alone.
template <class Job>
void train_in_a_loop(const Job& job, const LoopOptions& o, const data::Dataset& dataset,
                     const std::shared_ptr<collectives::ProcessGroup>& group) {
  const torch::Device device = group ? train::device_of(*group) : train::computing_device(o.on_gpu);
  train::set_up_numerics(1, device);  // as a trainer
  const data::Batch all = read_all(dataset);
  torch::manual_seed(7);
  auto net = job.model();
  net->to(device);
  auto optimizer = job.optimizer(net);
  std::optional<train::DistributedDataParallel<decltype(net)>> ddp;
  std::optional<train::FullyShardedDataParallel<decltype(net)>> fsdp;
  if (group && o.sharded) {
    fsdp.emplace(net, group, train::FsdpOptions{.min_num_params = 1000});
    optimizer.param_groups().front().params() = fsdp->parameters();
  } else if (group) {
    ddp.emplace(net, group);
  }
  const int mine = o.micro_batches / (group ? group->size() : 1), first = group ? group->rank() * mine : 0;
  const std::int64_t a_step = o.micro_batches * o.batch, steps = all.size() / a_step;
  Speed speed(o.epochs * steps, a_step);
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(all.size());
    for (std::int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      torch::Tensor sum = torch::zeros({}, device);
      const auto run = [&](int i) {
        const torch::Tensor chosen = order.narrow(0, step * a_step + (first + i) * o.batch, o.batch);
        const data::Batch batch{all.input.index_select(0, chosen).to(device),
                                all.target.index_select(0, chosen).to(device)};
        const torch::Tensor output = ddp    ? ddp->forward(batch.input)
                                     : fsdp ? fsdp->forward(batch.input)
                                            : net->forward(batch.input);
        const torch::Tensor loss = job.criterion(output, batch) / mine;
        loss.backward();
        sum += loss.detach();
      };
      for (int i = 0; i + 1 < mine; ++i) {
        if (ddp) {
          const auto alone = ddp->no_sync();
          run(i);
        } else if (fsdp) {
          const auto alone = fsdp->no_sync();
          run(i);
        } else {
          run(i);
        }
      }
      run(mine - 1);
      optimizer.step();
      speed.step(sum.item<double>());
    }
  }
  if (!group || group->rank() == 0) speed.print();
  if (!fsdp) return print_parameters(net->parameters(), group.get());
  const auto state = fsdp->full_state_dict();
  if (group->rank() != 0) return;
  std::vector<torch::Tensor> whole;
  for (const auto& item : net->named_parameters()) whole.push_back(state[item.key()]);
  print_parameters(whole, nullptr);
}

/// Runs `rank(r)` in a process each, and returns 0 if all did. Call it before LibTorch or CUDA is used: a
/// process that has used them cannot be forked.
int run_in_processes(int ranks, const std::function<void(int rank)>& body);

}  // namespace troupe::gpu
