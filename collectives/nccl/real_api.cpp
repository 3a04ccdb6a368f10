/// The tables of the real libraries. CUDA's runtime is linked statically; NCCL is loaded when it is first
/// asked for, so that a program built with this backend starts on machines without NCCL, and shares the NCCL
/// that LibTorch may have loaded before.

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>

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

#define TROUPE_NEED(name) symbols.need<decltype(::name)>(#name)
#define TROUPE_FIND(name) symbols.find<decltype(::name)>(#name)

using RevokeFn = ncclResult_t(ncclComm_t, int);
using ShrinkFn = ncclResult_t(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int);

ncclComm_t real(Comm comm) {
  return reinterpret_cast<ncclComm_t>(comm);
}
ncclComm_t* real(Comm* comm) {
  return reinterpret_cast<ncclComm_t*>(comm);
}
ncclDataType_t real(NcclType type) {
  return static_cast<ncclDataType_t>(type);
}
ncclRedOp_t real(NcclOp op) {
  return static_cast<ncclRedOp_t>(op);
}
cudaStream_t real(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}
ncclUniqueId real(const UniqueId& id) {
  ncclUniqueId out;
  std::memcpy(&out, id.bytes.data(), sizeof out);
  return out;
}

ncclConfig_t config_of(int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  return config;
}

void fill_life(NcclApi& api, const Symbols& symbols) {
  api.ncclGetErrorString = [f = TROUPE_NEED(ncclGetErrorString)](NcclCode code) {
    return f(static_cast<ncclResult_t>(code));
  };
  api.ncclGetLastError = [f = TROUPE_NEED(ncclGetLastError)](Comm comm) { return f(real(comm)); };
  api.ncclGetUniqueId = [f = TROUPE_NEED(ncclGetUniqueId)](UniqueId* id) {
    return f(reinterpret_cast<ncclUniqueId*>(id));
  };
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
    return f(real(comm), ranks, real(id), rank, &config);
  };
  api.ncclCommGetAsyncError = [f = TROUPE_NEED(ncclCommGetAsyncError)](Comm comm, NcclCode* code) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = f(real(comm), &state);
    *code = state;
    return asked;
  };
  api.ncclCommFinalize = [f = TROUPE_NEED(ncclCommFinalize)](Comm comm) { return f(real(comm)); };
  api.ncclCommDestroy = [f = TROUPE_NEED(ncclCommDestroy)](Comm comm) { return f(real(comm)); };
  api.ncclCommAbort = [f = TROUPE_NEED(ncclCommAbort)](Comm comm) { return f(real(comm)); };
  api.ncclGroupStart = TROUPE_NEED(ncclGroupStart);
  api.ncclGroupEnd = TROUPE_NEED(ncclGroupEnd);
}

void fill_operations(NcclApi& api, const Symbols& symbols) {
  api.ncclAllReduce = [f = TROUPE_NEED(ncclAllReduce)](const void* in, void* out, std::size_t count,
                                                       NcclType type, NcclOp op, Comm comm, Stream stream) {
    return f(in, out, count, real(type), real(op), real(comm), real(stream));
  };
  api.ncclReduce = [f = TROUPE_NEED(ncclReduce)](const void* in, void* out, std::size_t count, NcclType type,
                                                 NcclOp op, int root, Comm comm, Stream stream) {
    return f(in, out, count, real(type), real(op), root, real(comm), real(stream));
  };
  api.ncclReduceScatter = [f = TROUPE_NEED(ncclReduceScatter)](const void* in, void* out, std::size_t count,
                                                               NcclType type, NcclOp op, Comm comm,
                                                               Stream stream) {
    return f(in, out, count, real(type), real(op), real(comm), real(stream));
  };
  api.ncclBroadcast = [f = TROUPE_NEED(ncclBroadcast)](const void* in, void* out, std::size_t count,
                                                       NcclType type, int root, Comm comm, Stream stream) {
    return f(in, out, count, real(type), root, real(comm), real(stream));
  };
  api.ncclAllGather = [f = TROUPE_NEED(ncclAllGather)](const void* in, void* out, std::size_t count,
                                                       NcclType type, Comm comm, Stream stream) {
    return f(in, out, count, real(type), real(comm), real(stream));
  };
  api.ncclSend = [f = TROUPE_NEED(ncclSend)](const void* in, std::size_t count, NcclType type, int peer,
                                             Comm comm, Stream stream) {
    return f(in, count, real(type), peer, real(comm), real(stream));
  };
  api.ncclRecv = [f = TROUPE_NEED(ncclRecv)](void* out, std::size_t count, NcclType type, int peer, Comm comm,
                                             Stream stream) {
    return f(out, count, real(type), peer, real(comm), real(stream));
  };
  api.ncclRedOpCreatePreMulSum = [f = TROUPE_NEED(ncclRedOpCreatePreMulSum)](NcclOp* op, void* scalar,
                                                                             NcclType type, Comm comm) {
    ncclRedOp_t made = ncclSum;
    const ncclResult_t code = f(&made, scalar, real(type), ncclScalarHostImmediate, real(comm));
    *op = static_cast<NcclOp>(made);
    return code;
  };
  api.ncclRedOpDestroy = [f = TROUPE_NEED(ncclRedOpDestroy)](NcclOp op, Comm comm) {
    return f(real(op), real(comm));
  };
}

/// What not every library has.
void fill_newer(NcclApi& api, const Symbols& symbols) {
  if (auto* f = TROUPE_FIND(ncclMemAlloc)) api.ncclMemAlloc = f;
  if (auto* f = TROUPE_FIND(ncclMemFree)) api.ncclMemFree = f;
  if (auto* f = TROUPE_FIND(ncclCommRegister)) {
    api.ncclCommRegister = [f](Comm comm, void* data, std::size_t bytes, void** handle) {
      return f(real(comm), data, bytes, handle);
    };
  }
  if (auto* f = TROUPE_FIND(ncclCommDeregister)) {
    api.ncclCommDeregister = [f](Comm comm, void* handle) { return f(real(comm), handle); };
  }
  if (api.version < kVersionOfRevoke) return;
  if (auto* f = symbols.find<RevokeFn>("ncclCommRevoke")) {
    api.ncclCommRevoke = [f](Comm comm) { return f(real(comm), 0); };
  }
  if (auto* f = symbols.find<ShrinkFn>("ncclCommShrink")) {
    api.ncclCommShrink = [f](Comm comm, int* gone, int count, Comm* made, int blocking) {
      ncclConfig_t config = config_of(blocking);
      return f(real(comm), gone, count, real(made), &config, 0);
    };
  }
}

CudaCode create_stream(Stream* stream) {
  int least = 0, greatest = 0;
  const cudaError_t asked = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (asked != cudaSuccess) return asked;
  return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking,
                                      greatest);
}

void fill(CudaApi& api) {
  api.cudaGetErrorString = [](CudaCode code) { return ::cudaGetErrorString(static_cast<cudaError_t>(code)); };
  api.cudaGetDeviceCount = [](int* count) { return ::cudaGetDeviceCount(count); };
  api.cudaGetDevice = [](int* device) { return ::cudaGetDevice(device); };
  api.cudaSetDevice = [](int device) { return ::cudaSetDevice(device); };
  api.cudaStreamCreate = create_stream;
  api.cudaStreamDestroy = [](Stream stream) { return ::cudaStreamDestroy(real(stream)); };
  api.cudaStreamWaitEvent = [](Stream stream, Event event) {
    return ::cudaStreamWaitEvent(real(stream), static_cast<cudaEvent_t>(event), 0);
  };
  api.cudaEventCreate = [](Event* event) {
    return ::cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
  };
  api.cudaEventDestroy = [](Event event) { return ::cudaEventDestroy(static_cast<cudaEvent_t>(event)); };
  api.cudaEventRecord = [](Event event, Stream stream) {
    return ::cudaEventRecord(static_cast<cudaEvent_t>(event), real(stream));
  };
  api.cudaEventQuery = [](Event event) { return ::cudaEventQuery(static_cast<cudaEvent_t>(event)); };
  api.cudaStreamIsCapturing = [](Stream stream, bool* capturing) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = ::cudaStreamIsCapturing(real(stream), &status);
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
    return ::cudaMallocAsync(at, bytes, real(stream));
  };
  api.cudaFreeAsync = [](void* at, Stream stream) { return ::cudaFreeAsync(at, real(stream)); };
  api.cudaMemcpyAsync = [](void* to, const void* from, std::size_t bytes, Stream stream) {
    return ::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, real(stream));
  };
  api.cudaMallocHost = [](void** at, std::size_t bytes) { return ::cudaMallocHost(at, bytes); };
  api.cudaFreeHost = [](void* at) { return ::cudaFreeHost(at); };
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
