/// Data-parallel training by hand, in any program: DistributedDataParallel over any process group, its comm
/// hooks, DistributedSampler, Autocast, GradScaler and Apex's levels (Amp).
///
///   auto group = troupe::collectives::init_process_group("native", "env://");
///   troupe::train::DistributedDataParallel ddp(net, group);
///   auto loss = criterion(ddp->forward(x), y);
///   loss.backward();  // gradients are averaged over the ranks when it returns
///   optimizer.step();
///
/// Link troupe::ddp (docs/ddp.md): collectives and LibTorch, no cluster. Includes torch/torch.h.
#pragma once

#include <torch/torch.h>

#include "actors/ddp/amp.hpp"
#include "actors/ddp/autocast.hpp"
#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/distributed_sampler.hpp"
#include "actors/ddp/freed_memory.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/ddp/post_local_sgd.hpp"
#include "troupe/collectives.hpp"
