/// What the kernel of tree_fold.cu does, on memory of the host.
#pragma once

#include "collectives/nccl/tree_fold.hpp"

namespace troupe::collectives::nccl {

void fold_on_host(const TreeFold& fold);

}  // namespace troupe::collectives::nccl
