/// Data-parallel training as with Horovod: DistributedOptimizer around an optimizer of LibTorch's, what one
/// rank has on every rank, and a state to go on from when ranks die (docs/horovod.md).
///
///   torch::optim::SGD sgd(net->parameters(), 0.01);
///   troupe::train::broadcast_parameters(*net, *group);
///   troupe::train::DistributedOptimizer optimizer(sgd, net->named_parameters(), group);
///
/// Link troupe::ddp. Includes torch/torch.h.
#pragma once

#include <torch/torch.h>

#include "actors/ddp/broadcast_state.hpp"
#include "actors/ddp/distributed_optimizer.hpp"
#include "actors/ddp/elastic_state.hpp"
#include "troupe/collectives.hpp"
