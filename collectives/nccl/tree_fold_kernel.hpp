/// What tree_fold.cu gives to real_api.cpp. Both return a cudaError_t.
#pragma once

#include "collectives/nccl/tree_fold.hpp"

namespace troupe::collectives::nccl {

int launch_tree_fold(const TreeFold& fold, void* stream);
int load_tree_fold_kernels();

}  // namespace troupe::collectives::nccl
