/// A build without NCCL.
#include "collectives/nccl/api.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

const Api& real_api() {
  throw_error({ErrorCode::kUnavailable, "the nccl backend is not there",
               "this program was built without NCCL",
               "install nvcc and NCCL (or the wheel nvidia-nccl-cu13) and configure with -DTROUPE_NCCL=ON"});
}

}  // namespace troupe::collectives::nccl
