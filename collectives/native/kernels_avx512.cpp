#if defined(__x86_64__)

#include <immintrin.h>

#include "collectives/native/kernel_loops.hpp"

#define TROUPE_AVX512 [[gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]]

namespace troupe::collectives::kernel {
namespace {

struct Quotient {};

/// Up to sixteen f16 values as floats: see kernels_avx2.cpp. What is left at the end is masked.
struct Halves {
  static constexpr std::size_t kCount = 16;

  static __mmask16 first(std::size_t count) {
    return static_cast<__mmask16>(count >= kCount ? 0xffff : (1U << count) - 1);
  }
  TROUPE_AVX512 static __m512 load(const std::byte* at, __mmask16 which) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(which, at));
  }
  TROUPE_AVX512 static void store(std::byte* at, __mmask16 which, __m512 values) {
    const __m512 nan = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
    const __m512 canonical =
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q), values, nan);
    const __m256i bits =
        _mm512_maskz_cvtps_ph(0xffff, canonical, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16(at, which, bits);
  }
  template <class Op>
  TROUPE_AVX512 static __m512 apply(__m512 x, __m512 y) {
    if constexpr (std::is_same_v<Op, Sum>) return _mm512_add_ps(x, y);
    if constexpr (std::is_same_v<Op, Product>) return _mm512_mul_ps(x, y);
    if constexpr (std::is_same_v<Op, Quotient>) return _mm512_div_ps(x, y);
  }
};

template <class Op>
TROUPE_AVX512 void combine_halves(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  for (std::size_t at = 0; at < count; at += Halves::kCount) {
    const __mmask16 which = Halves::first(count - at);
    const __m512 x = Halves::load(a + 2 * at, which), y = Halves::load(b + 2 * at, which);
    Halves::store(out + 2 * at, which, Halves::apply<Op>(x, y));
  }
}

/// Every value times, or divided by, the same operand.
template <class Op>
TROUPE_AVX512 void halves_by(std::byte* out, const std::byte* in, std::size_t count, float operand) {
  const __m512 by = _mm512_set1_ps(operand);
  for (std::size_t at = 0; at < count; at += Halves::kCount) {
    const __mmask16 which = Halves::first(count - at);
    Halves::store(out + 2 * at, which, Halves::apply<Op>(Halves::load(in + 2 * at, which), by));
  }
}

struct Avx512 {
  template <class Element, class Op>
  TROUPE_AVX512 static void combine(std::byte* out, const std::byte* a, const std::byte* b,
                                    std::size_t count) {
    constexpr bool kConverted = std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>;
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>> && kConverted) {
      combine_halves<Op>(out, a, b, count);
    } else {
      combine_loop<Element, Op>(out, a, b, count);
    }
  }
  template <class Element>
  TROUPE_AVX512 static void divide(std::byte* values, std::size_t count, int divisor) {
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>>) {
      halves_by<Quotient>(values, values, count, static_cast<float>(divisor));
    } else {
      divide_loop<Element>(values, count, divisor);
    }
  }
  template <class Element>
  TROUPE_AVX512 static void scale(std::byte* out, const std::byte* in, std::size_t count, double factor) {
    if constexpr (std::is_same_v<Element, SmallFloat<Float16>>) {
      halves_by<Product>(out, in, count, static_cast<float>(factor));
    } else {
      scale_loop<Element>(out, in, count, factor);
    }
  }
};

}  // namespace

Kernel avx512_kernel(DType dtype, ReduceOp op) {
  return kernel_of<Avx512>(dtype, op);
}

}  // namespace troupe::collectives::kernel

#endif
