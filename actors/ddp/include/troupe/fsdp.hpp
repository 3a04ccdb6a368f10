/// Sharded data-parallel training by hand (ZeRO-3 and ZeRO-2): FullyShardedDataParallel over a process group.
///
///   auto group = troupe::collectives::init_process_group("native", "env://");
///   troupe::train::FullyShardedDataParallel fsdp(net, group, {.units = {"layers.0", "layers.1"}});
///   torch::optim::AdamW optimizer(fsdp.parameters(), 1e-3);
///
/// Link troupe::ddp (docs/sharding.md). Includes torch/torch.h.
#pragma once

#include <torch/torch.h>

#include "actors/ddp/fully_sharded_data_parallel.hpp"
#include "troupe/collectives.hpp"
