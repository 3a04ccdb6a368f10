/// The calls of NCCL and CUDA that this backend makes, as two tables.
///
/// Everything above the tables compiles and is tested without NCCL, CUDA or a GPU: tests fill them with a
/// double (tests/collectives/nccl_double.hpp). The real ones are in real_api.cpp, which alone sees nccl.h and
/// cuda_runtime.h; it holds the constants below to those headers. A member is named as the function it stands
/// for, so that errors can name it; a member that is null is one the library at hand does not have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/types.hpp"

namespace troupe::collectives::nccl {

using Comm = struct OpaqueComm*;  ///< ncclComm_t
using Stream = void*;             ///< cudaStream_t, as in Buffer::stream
using Event = void*;              ///< cudaEvent_t

/// ncclResult_t and cudaError_t, of which these are told apart.
using NcclCode = int;
using CudaCode = int;
inline constexpr NcclCode kNcclSuccess = 0;
inline constexpr NcclCode kNcclUnhandledCudaError = 1;
inline constexpr NcclCode kNcclInvalidUsage = 5;
inline constexpr NcclCode kNcclInProgress = 7;
inline constexpr CudaCode kCudaSuccess = 0;
inline constexpr CudaCode kCudaNotReady = 600;
/// ncclConfig_t's `blocking`. A group of calls on communicators that are not starts a thread.
inline constexpr int kBlocking = 1;
/// cudaStreamCaptureMode: a thread in this mode may ask what would end another thread's capture.
inline constexpr int kCaptureRelaxed = 2;

/// ncclDataType_t and ncclRedOp_t.
enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum class NcclOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };  // others are made at run time

/// ncclUniqueId. Whoever has it can join the communicator: it travels over authenticated channels alone.
struct UniqueId {
  std::array<char, 128> bytes{};
};

/// From which library on there is a call, as ncclGetVersion counts: 2.28.7 is 22807.
inline constexpr int kVersionOfRevoke = 22807;  ///< with it a group that failed can be shrunk
inline constexpr int kVersionOfSharedGpu = 23003;

struct NcclApi {
  int version = 0;  ///< ncclGetVersion of the library that is loaded

  std::function<const char*(NcclCode)> ncclGetErrorString;
  std::function<const char*(Comm)> ncclGetLastError;
  std::function<NcclCode(UniqueId*)> ncclGetUniqueId;
  /// Lets ranks of this process's communicators share GPUs, by the environment that NCCL reads when it makes
  /// its first: NCCL_MULTI_RANK_GPU_ENABLE, or before 2.30.3 a host of its own for each rank.
  std::function<void(int rank)> allow_shared_gpu;
  /// Blocks until all ranks have called it. `made` may be filled in before that; then an abort ends the call.
  std::function<NcclCode(Comm* made, int ranks, const UniqueId&, int rank, int blocking)>
      ncclCommInitRankConfig;
  std::function<NcclCode(Comm, NcclCode*)> ncclCommGetAsyncError;
  std::function<NcclCode(Comm)> ncclCommFinalize;
  std::function<NcclCode(Comm)> ncclCommDestroy;
  std::function<NcclCode(Comm)> ncclCommAbort;

  std::function<NcclCode()> ncclGroupStart;
  std::function<NcclCode()> ncclGroupEnd;
  std::function<NcclCode(const void* in, void* out, std::size_t count, NcclType, NcclOp, Comm, Stream)>
      ncclAllReduce;
  std::function<NcclCode(const void* in, void* out, std::size_t count, NcclType, NcclOp, int root, Comm,
                         Stream)>
      ncclReduce;
  std::function<NcclCode(const void* in, void* out, std::size_t count, NcclType, NcclOp, Comm, Stream)>
      ncclReduceScatter;
  std::function<NcclCode(const void* in, void* out, std::size_t count, NcclType, int root, Comm, Stream)>
      ncclBroadcast;
  std::function<NcclCode(const void* in, void* out, std::size_t count, NcclType, Comm, Stream)> ncclAllGather;
  std::function<NcclCode(const void* in, std::size_t count, NcclType, int peer, Comm, Stream)> ncclSend;
  std::function<NcclCode(void* out, std::size_t count, NcclType, int peer, Comm, Stream)> ncclRecv;
  /// The scalar is in host memory and read before the call returns.
  std::function<NcclCode(NcclOp*, void* scalar, NcclType, Comm)> ncclRedOpCreatePreMulSum;
  std::function<NcclCode(NcclOp, Comm)> ncclRedOpDestroy;

  // Null before 2.19.
  std::function<NcclCode(void**, std::size_t)> ncclMemAlloc;
  std::function<NcclCode(void*)> ncclMemFree;
  std::function<NcclCode(Comm, void*, std::size_t, void** handle)> ncclCommRegister;
  std::function<NcclCode(Comm, void* handle)> ncclCommDeregister;

  // Null before kVersionOfRevoke.
  std::function<NcclCode(Comm)> ncclCommRevoke;
  std::function<NcclCode(Comm, int* gone, int count, Comm* made, int blocking)> ncclCommShrink;
};

struct TreeFold;  // tree_fold.hpp

struct CudaApi {
  std::function<const char*(CudaCode)> cudaGetErrorString;
  std::function<CudaCode(int*)> cudaGetDeviceCount;
  std::function<CudaCode(int*)> cudaGetDevice;
  std::function<CudaCode(int)> cudaSetDevice;
  /// Non-blocking with regard to the default stream, at the highest priority.
  std::function<CudaCode(Stream*)> cudaStreamCreate;
  std::function<CudaCode(Stream)> cudaStreamDestroy;
  std::function<CudaCode(Stream, Event)> cudaStreamWaitEvent;
  /// Without timing.
  std::function<CudaCode(Event*)> cudaEventCreate;
  std::function<CudaCode(Event)> cudaEventDestroy;
  std::function<CudaCode(Event, Stream)> cudaEventRecord;
  std::function<CudaCode(Event)> cudaEventQuery;
  std::function<CudaCode(Stream, bool*)> cudaStreamIsCapturing;
  std::function<CudaCode(int* mode)> cudaThreadExchangeStreamCaptureMode;
  std::function<CudaCode(void**, std::size_t, Stream)> cudaMallocAsync;
  std::function<CudaCode(void*, Stream)> cudaFreeAsync;
  /// Between any two of: device memory, and host memory of cudaMallocHost.
  std::function<CudaCode(void* to, const void* from, std::size_t, Stream)> cudaMemcpyAsync;
  std::function<CudaCode(void**, std::size_t)> cudaMallocHost;
  std::function<CudaCode(void*)> cudaFreeHost;

  /// Our own kernel (tree_fold.cu), and the loading of its code ahead of time: loaded at its first launch, it
  /// could wait for a collective that is running and waits for us.
  std::function<CudaCode()> load_kernels;
  std::function<CudaCode(const TreeFold&, Stream)> launch_tree_fold;
};

/// Both tables, which outlive every group that uses them.
struct Api {
  NcclApi nccl;
  CudaApi cuda;
};

/// The tables of the libraries on this machine, loaded once. Throws Unavailable where this program was built
/// without NCCL or the library cannot be loaded.
const Api& real_api();

/// "2.30.3" of 23003.
std::string version_text(int version);

}  // namespace troupe::collectives::nccl
