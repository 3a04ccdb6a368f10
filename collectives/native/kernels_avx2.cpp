#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "collectives/native/kernel_loops.hpp"

#define TROUPE_AVX2 [[gnu::target("avx2,f16c")]]

namespace troupe::collectives::kernel {
namespace {

/// Eight f16 values as floats, by the processor's own conversions, which compilers do not find in
/// Float16::widen and narrow. They round and keep subnormals as those do; of NaN they would keep the payload.
struct Halves {
  static constexpr std::size_t kCount = 8;
  static constexpr std::size_t kBytes = 16;

  TROUPE_AVX2 static __m256 load(const std::byte* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  TROUPE_AVX2 static void store(std::byte* at, __m256 values) {
    const __m256 nan = _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN());
    const __m256 canonical = _mm256_blendv_ps(values, nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m128i bits = _mm256_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), bits);
  }
};

template <class Op>
TROUPE_AVX2 inline void combine_eight(std::byte* out, const std::byte* a, const std::byte* b) {
  const __m256 x = Halves::load(a), y = Halves::load(b);
  if constexpr (std::is_same_v<Op, Sum>) Halves::store(out, _mm256_add_ps(x, y));
  if constexpr (std::is_same_v<Op, Product>) Halves::store(out, _mm256_mul_ps(x, y));
}

template <class Op>
TROUPE_AVX2 void combine_halves(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  for (; count >= Halves::kCount; count -= Halves::kCount) {
    combine_eight<Op>(out, a, b);
    out += Halves::kBytes, a += Halves::kBytes, b += Halves::kBytes;
  }
  if (count == 0) return;
  std::byte x[Halves::kBytes]{}, y[Halves::kBytes]{};
  std::memcpy(x, a, 2 * count);
  std::memcpy(y, b, 2 * count);
  combine_eight<Op>(x, x, y);
  std::memcpy(out, x, 2 * count);
}

struct Quotient {};

template <class Op>
TROUPE_AVX2 inline void by_eight(std::byte* out, const std::byte* in, __m256 operand) {
  const __m256 x = Halves::load(in);
  if constexpr (std::is_same_v<Op, Product>) Halves::store(out, _mm256_mul_ps(x, operand));
  if constexpr (std::is_same_v<Op, Quotient>) Halves::store(out, _mm256_div_ps(x, operand));
}

/// Every value times, or divided by, the same operand.
template <class Op>
TROUPE_AVX2 void halves_by(std::byte* out, const std::byte* in, std::size_t count, float operand) {
  const __m256 by = _mm256_set1_ps(operand);
  for (; count >= Halves::kCount; count -= Halves::kCount) {
    by_eight<Op>(out, in, by);
    out += Halves::kBytes, in += Halves::kBytes;
  }
  if (count == 0) return;
  std::byte x[Halves::kBytes]{};
  std::memcpy(x, in, 2 * count);
  by_eight<Op>(x, x, by);
  std::memcpy(out, x, 2 * count);
}

struct Avx2 {
  template <class Element, class Op>
  TROUPE_AVX2 static void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
    constexpr bool kConverted = std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>;
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>> && kConverted) {
      combine_halves<Op>(out, a, b, count);
    } else {
      combine_loop<Element, Op>(out, a, b, count);
    }
  }
  template <class Element>
  TROUPE_AVX2 static void divide(std::byte* values, std::size_t count, int divisor) {
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>>) {
      halves_by<Quotient>(values, values, count, static_cast<float>(divisor));
    } else {
      divide_loop<Element>(values, count, divisor);
    }
  }
  template <class Element>
  TROUPE_AVX2 static void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>>) {
      halves_by<Product>(out, in, count, static_cast<float>(factor));
    } else {
      scale_loop<Element>(out, in, count, factor);
    }
  }
};

}  // namespace

Kernel avx2_kernel(DType dtype, ReduceOp op) {
  return kernel_of<Avx2>(dtype, op);
}

}  // namespace troupe::collectives::kernel

#endif
