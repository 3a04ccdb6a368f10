/// BatchNorm over the samples of all ranks of a process group, as torch.nn.SyncBatchNorm.
///
///   auto net = troupe::train::convert_sync_batchnorm(ConvNet(), group);
///   troupe::train::DistributedDataParallel ddp(net, group);
///
/// Link troupe::ddp (docs/ddp.md). Includes torch/torch.h.
#pragma once

#include <torch/torch.h>

#include "actors/ddp/sync_batch_norm.hpp"
#include "troupe/collectives.hpp"
