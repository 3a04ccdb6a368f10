/// The tables of the real libraries. CUDA's runtime is linked statically; NCCL is loaded when it is first
/// asked for, so that a program built with this backend starts on machines without NCCL, and shares the NCCL
/// that LibTorch may have loaded before.

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/tree_fold.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {
namespace {

static_assert(kNcclSuccess == ncclSuccess && kNcclUnhandledCudaError == ncclUnhandledCudaError &&
              kNcclInvalidUsage == ncclInvalidUsage && kNcclInProgress == ncclInProgress);
static_assert(kCudaSuccess == cudaSuccess && kCudaNotReady == cudaErrorNotReady &&
              kCaptureRelaxed == cudaStreamCaptureModeRelaxed);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(int(NcclType::kInt8) == ncclInt8 && int(NcclType::kUint8) == ncclUint8 &&
              int(NcclType::kInt32) == ncclInt32 && int(NcclType::kInt64) == ncclInt64 &&
              int(NcclType::kFloat16) == ncclFloat16 && int(NcclType::kFloat32) == ncclFloat32 &&
              int(NcclType::kFloat64) == ncclFloat64 && int(NcclType::kBfloat16) == ncclBfloat16);
static_assert(int(NcclOp::kSum) == ncclSum && int(NcclOp::kProd) == ncclProd &&
              int(NcclOp::kMax) == ncclMax && int(NcclOp::kMin) == ncclMin && int(NcclOp::kAvg) == ncclAvg);

[[noreturn]] void cannot_load(const std::string& why) {
  throw_error({ErrorCode::kUnavailable, "cannot load NCCL", why,
               "install libnccl2 or the wheel nvidia-nccl-cu13 and put its folder on LD_LIBRARY_PATH"});
}

/// The loader's libnccl.so.2, else the one that this was built against.
void* open_nccl() {
  if (void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string why = ::dlerror();
  if (void* library = ::dlopen(TROUPE_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL)) return library;
  cannot_load(why);
}

/// Functions of the library by name. The types are nccl.h's; what that header lacks is declared here.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  /// Null where the library lacks it.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  template <class Function>
  Function* need(const char* name) const {
    Function* found = find<Function>(name);
    if (found == nullptr) cannot_load(std::string("the library has no ") + name);
    return found;
  }

 private:
  void* library_;
};

/// What api.hpp calls so, as the library's headers do: handles, and enumerators of the same values.
template <class Real, class Ours>
Real as(Ours value) {
  if constexpr (std::is_pointer_v<Real>) {
    return reinterpret_cast<Real>(value);
  } else {
    return static_cast<Real>(value);
  }
}

/// Lets `entry` call `function` with the same arguments.
template <class Result, class... Ours, class RealResult, class... Real>
void set(std::function<Result(Ours...)>& entry, RealResult (*function)(Real...)) {
  entry = [function](Ours... arguments) -> Result { return function(as<Real>(arguments)...); };
}

#define TROUPE_NEED(name) symbols.need<decltype(::name)>(#name)
/// An entry that every library has, and one that stays null where the library lacks it.
#define TROUPE_SET(name) set(api.name, TROUPE_NEED(name))
#define TROUPE_FIND(name) \
  if (auto* found = symbols.find<decltype(::name)>(#name)) set(api.name, found)

using RevokeFn = ncclResult_t(ncclComm_t, int);
using ShrinkFn = ncclResult_t(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int);

ncclConfig_t config_of(int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  return config;
}

void fill_life(NcclApi& api, const Symbols& symbols) {
  TROUPE_SET(ncclGetErrorString);
  TROUPE_SET(ncclGetLastError);
  TROUPE_SET(ncclGetUniqueId);
  api.allow_shared_gpu = [version = api.version](int rank) {
    if (version >= kVersionOfSharedGpu) {
      ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    } else {
      ::setenv("NCCL_HOSTID", ("troupe-" + std::to_string(rank)).c_str(), 1);
    }
  };
  api.ncclCommInitRankConfig = [f = TROUPE_NEED(ncclCommInitRankConfig)](
                                   Comm* comm, int ranks, const UniqueId& id, int rank, int blocking) {
    ncclConfig_t config = config_of(blocking);
    ncclUniqueId real_id;
    std::memcpy(&real_id, id.bytes.data(), sizeof real_id);
    return f(as<ncclComm_t*>(comm), ranks, real_id, rank, &config);
  };
  api.ncclCommGetAsyncError = [f = TROUPE_NEED(ncclCommGetAsyncError)](Comm comm, NcclCode* code) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = f(as<ncclComm_t>(comm), &state);
    *code = state;
    return asked;
  };
  TROUPE_SET(ncclCommFinalize);
  TROUPE_SET(ncclCommDestroy);
  TROUPE_SET(ncclCommAbort);
  TROUPE_SET(ncclGroupStart);
  TROUPE_SET(ncclGroupEnd);
}

void fill_operations(NcclApi& api, const Symbols& symbols) {
  TROUPE_SET(ncclAllReduce);
  TROUPE_SET(ncclReduce);
  TROUPE_SET(ncclReduceScatter);
  TROUPE_SET(ncclBroadcast);
  TROUPE_SET(ncclAllGather);
  TROUPE_SET(ncclSend);
  TROUPE_SET(ncclRecv);
  api.ncclRedOpCreatePreMulSum = [f = TROUPE_NEED(ncclRedOpCreatePreMulSum)](NcclOp* op, void* scalar,
                                                                             NcclType type, Comm comm) {
    ncclRedOp_t made = ncclSum;
    const ncclResult_t code =
        f(&made, scalar, as<ncclDataType_t>(type), ncclScalarHostImmediate, as<ncclComm_t>(comm));
    *op = static_cast<NcclOp>(made);
    return code;
  };
  TROUPE_SET(ncclRedOpDestroy);
}

/// What not every library has.
void fill_newer(NcclApi& api, const Symbols& symbols) {
  TROUPE_FIND(ncclMemAlloc);
  TROUPE_FIND(ncclMemFree);
  TROUPE_FIND(ncclCommRegister);
  TROUPE_FIND(ncclCommDeregister);
  if (api.version < kVersionOfRevoke) return;
  if (auto* f = symbols.find<RevokeFn>("ncclCommRevoke")) {
    api.ncclCommRevoke = [f](Comm comm) { return f(as<ncclComm_t>(comm), 0); };
  }
  if (auto* f = symbols.find<ShrinkFn>("ncclCommShrink")) {
    api.ncclCommShrink = [f](Comm comm, int* gone, int count, Comm* made, int blocking) {
      ncclConfig_t config = config_of(blocking);
      return f(as<ncclComm_t>(comm), gone, count, as<ncclComm_t*>(made), &config, 0);
    };
  }
}

CudaCode create_stream(Stream* stream) {
  int least = 0, greatest = 0;
  const cudaError_t asked = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (asked != cudaSuccess) return asked;
  return cudaStreamCreateWithPriority(as<cudaStream_t*>(stream), cudaStreamNonBlocking, greatest);
}

void fill(CudaApi& api) {
  set(api.cudaGetErrorString, &::cudaGetErrorString);
  set(api.cudaGetDeviceCount, &::cudaGetDeviceCount);
  set(api.cudaGetDevice, &::cudaGetDevice);
  set(api.cudaSetDevice, &::cudaSetDevice);
  api.cudaStreamCreate = create_stream;
  set(api.cudaStreamDestroy, &::cudaStreamDestroy);
  api.cudaStreamWaitEvent = [](Stream stream, Event event) {
    return ::cudaStreamWaitEvent(as<cudaStream_t>(stream), as<cudaEvent_t>(event), 0);
  };
  api.cudaEventCreate = [](Event* event) {
    return ::cudaEventCreateWithFlags(as<cudaEvent_t*>(event), cudaEventDisableTiming);
  };
  set(api.cudaEventDestroy, &::cudaEventDestroy);
  set(api.cudaEventRecord, &::cudaEventRecord);
  set(api.cudaEventQuery, &::cudaEventQuery);
  api.cudaStreamIsCapturing = [](Stream stream, bool* capturing) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = ::cudaStreamIsCapturing(as<cudaStream_t>(stream), &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    return code;
  };
  api.cudaThreadExchangeStreamCaptureMode = [](int* mode) {
    auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
    const cudaError_t code = ::cudaThreadExchangeStreamCaptureMode(&exchanged);
    *mode = exchanged;
    return code;
  };
  api.cudaMallocAsync = [](void** at, std::size_t bytes, Stream stream) {
    return ::cudaMallocAsync(at, bytes, as<cudaStream_t>(stream));
  };
  set(api.cudaFreeAsync, &::cudaFreeAsync);
  api.cudaMemcpyAsync = [](void* to, const void* from, std::size_t bytes, Stream stream) {
    return ::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as<cudaStream_t>(stream));
  };
  api.cudaMallocHost = [](void** at, std::size_t bytes) { return ::cudaMallocHost(at, bytes); };
  set(api.cudaFreeHost, &::cudaFreeHost);
  api.load_kernels = load_tree_fold_kernels;
  api.launch_tree_fold = [](const TreeFold& fold, Stream stream) { return launch_tree_fold(fold, stream); };
}

Api load() {
  const Symbols symbols(open_nccl());
  Api api;
  auto* get_version = TROUPE_NEED(ncclGetVersion);
  if (get_version(&api.nccl.version) != ncclSuccess) cannot_load("ncclGetVersion failed");
  fill_life(api.nccl, symbols);
  fill_operations(api.nccl, symbols);
  fill_newer(api.nccl, symbols);
  fill(api.cuda);
  return api;
}

}  // namespace

const Api& real_api() {
  static const Api api = load();
  return api;
}

}  // namespace troupe::collectives::nccl
