#include "actors/ddp/broadcast_state.hpp"

#include <torch/torch.h>

#include <utility>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/named_tensor.hpp"
#include "actors/ddp/optimizer_snapshot.hpp"

namespace troupe::train {

using collectives::ProcessGroup;

namespace {

using Named = torch::OrderedDict<std::string, torch::Tensor>;

/// Type, dtype and shape; a difference in what requires a gradient does not matter here.
std::vector<Fact> facts_of(const char* kind, const Named& named) {
  std::vector<Fact> facts;
  for (const auto& item : named) facts.push_back(fact_of(kind, {item.key(), item.value()}));
  return facts;
}

}  // namespace

void broadcast_parameters(const Named& named, ProcessGroup& group, int root) {
  check_agreement(group.host_group(), facts_of("tensor", named));
  broadcast_tensors(group, named.values(), root);
}

void broadcast_parameters(const torch::nn::Module& module, ProcessGroup& group, int root) {
  Named all = module.named_parameters();
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) all.insert(item.key(), item.value());
  }
  broadcast_parameters(all, group, root);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, ProcessGroup& group, int root) {
  check_agreement(group.host_group(), facts_of(optimizer));
  if (group.size() == 1) return;
  const torch::NoGradGuard no_grad;
  const bool is_root = group.rank() == root;
  OptimizerSnapshot snapshot = snapshot_of(optimizer);
  const std::string text = broadcast_text(group.host_group(), text_of(snapshot), root);
  if (!is_root) snapshot = snapshot_for(optimizer, text);
  std::vector<torch::Tensor> sent;
  for (const torch::Tensor* tensor : snapshot.tensors()) sent.push_back(tensor->to(device_of(group)));
  broadcast_tensors(group, sent, root);
  if (is_root) return;
  std::size_t next = 0;
  for (torch::Tensor* tensor : snapshot.tensors()) *tensor = sent[next++];
  // Numbers are read on the host: rates, options and counters.
  snapshot.rates = snapshot.rates.cpu();
  for (OptimizerField& option : snapshot.options) option.tensor = option.tensor.cpu();
  install(optimizer, snapshot);
}

std::string broadcast_object(std::string bytes, ProcessGroup& group, int root) {
  return broadcast_text(group.host_group(), std::move(bytes), root);
}

}  // namespace troupe::train
