/// What the numbers of a process depend on beside the program: setup, and a fingerprint to compare.
///
/// The same binary gives other bits under AVX-512 than under AVX2, with another BLAS and with another number
/// of threads. An exact job pins the fingerprint and refuses a trainer that differs.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::train {

/// Alignment of every tensor that the engine lays over memory of its own; kernels may pick another path for
/// less.
inline constexpr std::size_t kTensorAlignment_bytes = 64;

/// Sets LibTorch of this process to one way of computing: `threads` intra-op threads (default 1) and one
/// inter-op thread, deterministic algorithms, denormals kept, no threads that MKL or OpenMP add or take as
/// they see fit. Call once, before the first tensor operation of the process. Throws BadConfig where LibTorch
/// already started its inter-op threads with another number.
/// On a GPU also: no TF32, cuDNN's deterministic algorithms without a search for the fastest, and a fixed
/// workspace of cuBLAS (CUBLAS_WORKSPACE_CONFIG).
/// Without `exact` it sets the threads alone: which algorithms compute stays as LibTorch, or the job, has it.
void set_up_numerics(int threads = 1, c10::Device device = c10::DeviceType::CPU, bool exact = true);

/// Where a trainer computes: the CPU, or cuda:0, which is the GPU that it holds. Throws BadConfig where
/// that is wanted and LibTorch was built without CUDA, or sees no GPU.
c10::Device computing_device(bool on_gpu);

/// "libtorch 2.13.0; blas ...; cpu AVX512; threads 1": equal on two processes means equal bits. On a GPU with
/// its model, driver, CUDA, cuDNN and the settings above: "...; gpu NVIDIA H200, driver 13000, cuda 13000,
/// cudnn 91900, no tf32, workspace :4096:8".
std::string numerics_fingerprint(c10::Device device = c10::DeviceType::CPU);

/// The number of threads that a fingerprint tells of; none in what is no fingerprint.
std::optional<int> threads_in(std::string_view fingerprint);

}  // namespace troupe::train
