/// NCCL_TRY and CUDA_TRY: every call's return code is looked at, and an error names the call, the code and
/// the rank.
#pragma once

#include <string>

#include "collectives/nccl/api.hpp"

namespace troupe::collectives::nccl {

/// Who calls: what an error says besides the code.
struct Caller {
  const Api* api = nullptr;
  int rank = 0;
};

/// "ncclAllReduce" of "caller.api->nccl.ncclAllReduce(in, out)".
std::string call_name(const char* expression);

/// Throws Unavailable: "ncclAllReduce failed on rank 1: unhandled system error (code 2): <NCCL's last
/// error>".
[[noreturn]] void throw_nccl(const Caller& caller, const char* expression, NcclCode code);
[[noreturn]] void throw_cuda(const Caller& caller, const char* expression, CudaCode code);

}  // namespace troupe::collectives::nccl

#define NCCL_TRY(caller, call)                                           \
  do {                                                                   \
    const ::troupe::collectives::nccl::NcclCode nccl_code = (call);      \
    if (nccl_code != ::troupe::collectives::nccl::kNcclSuccess) {        \
      ::troupe::collectives::nccl::throw_nccl(caller, #call, nccl_code); \
    }                                                                    \
  } while (false)

#define CUDA_TRY(caller, call)                                           \
  do {                                                                   \
    const ::troupe::collectives::nccl::CudaCode cuda_code = (call);      \
    if (cuda_code != ::troupe::collectives::nccl::kCudaSuccess) {        \
      ::troupe::collectives::nccl::throw_cuda(caller, #call, cuda_code); \
    }                                                                    \
  } while (false)
