/// DataParallel: one process, a replica of a module on each device, and gradients in the module. Needs no
/// process group and no launcher; over several processes or hosts, and faster on one, is <troupe/ddp.hpp>.
///
///   troupe::train::DataParallel dp(net);  // on all CUDA devices; {.replicas = 2}: on the CPU
///   auto loss = criterion(dp->forward(x), y);
///   loss.backward();
///   optimizer.step();
///
/// Link troupe::ddp (docs/data-parallel.md). Includes torch/torch.h.
#pragma once

#include <torch/torch.h>

#include "actors/ddp/data_parallel.hpp"
#include "actors/ddp/freed_memory.hpp"
#include "troupe/error.hpp"
