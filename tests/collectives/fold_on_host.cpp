#include "tests/collectives/fold_on_host.hpp"

namespace troupe::collectives::nccl {

void fold_on_host(const TreeFold& fold) {
  with_fold(fold.dtype, fold.op, [&]<class Element, class Op>(Element, Op) {
    with_depth(fold, [&](auto depth) {
      for (std::size_t tile = 0; tile < tiles_of<Element>(fold.count); ++tile) {
        for (int thread = 0; thread < kFoldThreads; ++thread)
          fold_tile<Element, Op, decltype(depth)::value>(fold, tile, thread);
      }
    });
  });
}

}  // namespace troupe::collectives::nccl
