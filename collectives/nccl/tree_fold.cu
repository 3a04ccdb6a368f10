/// The kernel of tree_fold.hpp. Compiled with -fmad=false: a contracted multiply-add rounds once where the
/// CPU rounds twice.
#include <cuda_runtime.h>

#include <algorithm>

#include "collectives/nccl/tree_fold.hpp"

namespace troupe::collectives::nccl {
namespace {

constexpr std::size_t kMaxBlocks = 4096;  // a few waves on the largest GPUs; the loop takes the rest

template <class Element, class Op, int kDepth>
__global__ void __launch_bounds__(kFoldThreads)
    tree_fold_kernel(const __grid_constant__ TreeFold fold, std::size_t tiles) {
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    fold_tile<Element, Op, kDepth>(fold, tile, static_cast<int>(threadIdx.x));
  }
}

}  // namespace

int launch_tree_fold(const TreeFold& fold, void* stream) {
  with_fold(fold.dtype, fold.op, [&]<class Element, class Op>(Element, Op) {
    with_depth(fold, [&](auto depth) {
      const std::size_t tiles = tiles_of<Element>(fold.count);
      if (tiles == 0) return;
      const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, tiles));
      tree_fold_kernel<Element, Op, decltype(depth)::value>
          <<<blocks, kFoldThreads, 0, static_cast<cudaStream_t>(stream)>>>(fold, tiles);
    });
  });
  return cudaGetLastError();
}

int load_tree_fold_kernels() {
  int worst = cudaSuccess;
  const auto load = [&](auto* kernel) {
    cudaFuncAttributes unused;
    if (const int rc = cudaFuncGetAttributes(&unused, kernel); rc != cudaSuccess) worst = rc;
  };
  for (std::size_t dtype = 0; dtype < kDTypeNames.size(); ++dtype) {
    for (std::size_t op = 0; op < kReduceOpNames.size(); ++op) {
      with_fold(static_cast<DType>(dtype), static_cast<ReduceOp>(op),
                [&]<class Element, class Op>(Element, Op) {
                  load(tree_fold_kernel<Element, Op, kShallowDepth>);
                  load(tree_fold_kernel<Element, Op, kMaxDepth>);
                });
    }
  }
  return worst;
}

}  // namespace troupe::collectives::nccl
