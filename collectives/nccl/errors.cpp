#include "collectives/nccl/errors.hpp"

#include <algorithm>
#include <string_view>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

std::string call_name(const char* expression) {
  std::string_view text(expression);
  // The call is the last one: what is before its parentheses may have some of its own.
  std::size_t open = std::min(text.rfind(')'), text.size());
  for (int depth = 1; depth > 0 && open > 0;) {
    --open;
    if (text[open] == ')') ++depth;
    if (text[open] == '(') --depth;
  }
  if (open > 0) text = text.substr(0, open);
  const auto start = text.find_last_of(".>: ");
  return std::string(start == std::string_view::npos ? text : text.substr(start + 1));
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void throw_nccl(const Caller& caller, const char* expression, NcclCode code) {
  const NcclApi& api = caller.api->nccl;
  std::string why = std::string(api.ncclGetErrorString(code)) + " (code " + std::to_string(code) + ")";
  // Early, since an abort board cuts what is long.
  if (code == kNcclInvalidUsage) why += ", as for ranks on one GPU without NCCL_MULTI_RANK_GPU_ENABLE=1";
  // Null is the calling thread's: the error may be of a call that made no communicator.
  if (const char* last = api.ncclGetLastError(nullptr); last != nullptr && *last != '\0') {
    why += ": " + std::string(last);
  }
  throw_error({ErrorCode::kUnavailable,
               call_name(expression) + " failed on rank " + std::to_string(caller.rank), std::move(why),
               code == kNcclInvalidUsage ? "where ranks share a GPU, set NcclGroupOptions::share_gpu on each"
                                         : "NCCL_DEBUG=WARN in the environment prints what NCCL saw"});
}

void throw_cuda(const Caller& caller, const char* expression, CudaCode code) {
  throw_error(
      {ErrorCode::kUnavailable, call_name(expression) + " failed on rank " + std::to_string(caller.rank),
       std::string(caller.api->cuda.cudaGetErrorString(code)) + " (code " + std::to_string(code) + ")",
       "an error of a kernel shows at a later call: CUDA_LAUNCH_BLOCKING=1 finds which"});
}

}  // namespace troupe::collectives::nccl
