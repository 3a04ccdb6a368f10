/// The kernel of tree_fold.hpp. Compiled with -fmad=false: a contracted multiply-add rounds once where the
/// CPU rounds twice.
#include <cuda_runtime.h>

#include <algorithm>

#include "collectives/nccl/tree_fold_kernel.hpp"

namespace troupe::collectives::nccl {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMaxBlocks = 4096;  // a few waves on the largest GPUs; the loop takes the rest
constexpr std::size_t kPackBytes = 16;    // the widest load

template <class Element, class Op, int kWidth>
__global__ void tree_fold_kernel(const __grid_constant__ TreeFold fold, std::size_t first,
                                 std::size_t packs) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < packs; i += step) {
    fold_pack<Element, Op, kWidth>(fold, first + i);
  }
}

template <class Element>
constexpr int kPackWidth = kPackBytes / sizeof(typename Element::Stored);

template <class Element, class Op, int kWidth>
void launch(const TreeFold& fold, std::size_t first, std::size_t packs, cudaStream_t stream) {
  if (packs == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, (packs + kThreads - 1) / kThreads));
  tree_fold_kernel<Element, Op, kWidth><<<blocks, kThreads, 0, stream>>>(fold, first, packs);
}

bool aligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kPackBytes == 0;
}

bool all_aligned(const TreeFold& fold) {
  if (!aligned(fold.received) || fold.stride % kPackBytes != 0 || !aligned(fold.out)) return false;
  return std::all_of(fold.own, fold.own + fold.own_count, aligned);
}

}  // namespace

int launch_tree_fold(const TreeFold& fold, void* stream) {
  auto* on = static_cast<cudaStream_t>(stream);
  with_fold(fold.dtype, fold.op, [&]<class Element, class Op>(Element, Op) {
    constexpr int kWidth = kPackWidth<Element>;
    const std::size_t packs = all_aligned(fold) ? fold.count / kWidth : 0;
    launch<Element, Op, kWidth>(fold, 0, packs, on);
    launch<Element, Op, 1>(fold, packs * kWidth, fold.count - packs * kWidth, on);
  });
  return cudaGetLastError();
}

int load_tree_fold_kernels() {
  int worst = cudaSuccess;
  for (std::size_t dtype = 0; dtype < kDTypeNames.size(); ++dtype) {
    for (std::size_t op = 0; op < kReduceOpNames.size(); ++op) {
      with_fold(
          static_cast<DType>(dtype), static_cast<ReduceOp>(op), [&]<class Element, class Op>(Element, Op) {
            cudaFuncAttributes unused;
            for (int rc : {cudaFuncGetAttributes(&unused, tree_fold_kernel<Element, Op, kPackWidth<Element>>),
                           cudaFuncGetAttributes(&unused, tree_fold_kernel<Element, Op, 1>)}) {
              if (rc != cudaSuccess) worst = rc;
            }
          });
    }
  }
  return worst;
}

}  // namespace troupe::collectives::nccl
