#include "collectives/native/kernel_loops.hpp"

namespace troupe::collectives::kernel {
namespace {

/// What every processor of the architecture has.
struct Base {
  template <class Element, class Op>
  static void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
    combine_loop<Element, Op>(out, a, b, count);
  }
  template <class Element>
  static void divide(std::byte* values, std::size_t count, int divisor) {
    divide_loop<Element>(values, count, divisor);
  }
  template <class Element>
  static void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
    scale_loop<Element>(out, in, count, factor);
  }
};

}  // namespace

Kernel base_kernel(DType dtype, ReduceOp op) {
  return kernel_of<Base>(dtype, op);
}

}  // namespace troupe::collectives::kernel
