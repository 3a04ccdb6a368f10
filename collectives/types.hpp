/// The vocabulary of collectives: element types, reduce operations, devices, buffers.
#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace troupe::collectives {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat8E4M3,  ///< without infinities, as OCP and PyTorch's float8_e4m3fn
  kFloat8E5M2,
  kComplex64,  ///< two floats: real, imaginary
  kComplex128
};
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

/// How the ranks' values become one.
///
/// `exact` (the default): the result is a function of the inputs and the tree of leaves alone, whatever the
/// algorithm, the number of ranks, the machines they are on and the instruction set. Without it a backend may
/// add in the order that is fastest.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  bool exact = true;
  double factor = 1;  ///< of kPremulSum: every input is multiplied by it, in its dtype, before it is added

  constexpr Reduction(ReduceOp what = ReduceOp::kSum, bool in_order = true) : op(what), exact(in_order) {}
  static constexpr Reduction premul_sum(double by, bool in_order = true) {
    Reduction made(ReduceOp::kPremulSum, in_order);
    made.factor = by;
    return made;
  }
  bool operator==(const Reduction&) const = default;
};

enum class DeviceKind : std::uint8_t { kCpu, kCuda };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// A run of elements on a device. `stream` is the device's stream that produced them (a cudaStream_t, or null
/// on the CPU): work on the buffer starts after what was enqueued there.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  ///< elements
  DType dtype = DType::kFloat32;
  Device device{};
  void* stream = nullptr;
};

/// Whether a C++ type has a dtype: float, double, std::complex of these, bool, integers of 1 to 8 bytes.
template <class T>
inline constexpr bool has_dtype = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                  std::is_same_v<T, std::complex<float>> ||
                                  std::is_same_v<T, std::complex<double>> ||
                                  (std::is_integral_v<T> && sizeof(T) <= 8);

/// The dtype of a C++ type.
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  static_assert(has_dtype<U>, "collectives take float, double, std::complex of these, bool and integers");
  if constexpr (std::is_same_v<U, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<U, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<U, bool>) return DType::kBool;
  if constexpr (std::is_same_v<U, std::complex<float>>) return DType::kComplex64;
  if constexpr (std::is_same_v<U, std::complex<double>>) return DType::kComplex128;
  if constexpr (std::is_unsigned_v<U>) {
    return sizeof(U) == 8   ? DType::kUInt64
           : sizeof(U) == 4 ? DType::kUInt32
           : sizeof(U) == 2 ? DType::kUInt16
                            : DType::kUInt8;
  }
  return sizeof(U) == 8   ? DType::kInt64
         : sizeof(U) == 4 ? DType::kInt32
         : sizeof(U) == 2 ? DType::kInt16
                          : DType::kInt8;
}

/// Elements in the CPU's memory. An input is not written, though Buffer holds a plain pointer.
template <class T, std::size_t N>
Buffer buffer_of(std::span<T, N> elements) {
  using U = std::remove_const_t<T>;
  U* data = const_cast<U*>(elements.data());
  // Others write here from now on. At -O1 GCC 12 does not see that the address leaves by the call, and goes
  // on with the old value of a variable (tests/collectives/local_buffers_test.cpp).
  asm volatile("" : "+r"(data) : : "memory");
  return {data, elements.size(), dtype_of<U>(), {}, nullptr};
}

inline constexpr std::array<std::string_view, 17> kDTypeNames{"f64", "f32",    "f16",    "bf16", "i8",  "i16",
                                                              "i32", "i64",    "u8",     "bool", "u16", "u32",
                                                              "u64", "f8e4m3", "f8e5m2", "c64",  "c128"};
inline constexpr std::array<std::uint8_t, 17> kElementSizes{8, 4, 2, 2, 1, 2, 4, 8, 1,
                                                            1, 2, 4, 8, 1, 1, 8, 16};
inline constexpr std::array<std::string_view, 9> kReduceOpNames{"sum",  "avg", "product", "min",       "max",
                                                                "band", "bor", "bxor",    "premul_sum"};

/// Whether these are of the enums, which an integer from elsewhere may not be.
constexpr bool is_known(DType dtype) {
  return static_cast<std::size_t>(dtype) < kDTypeNames.size();
}
constexpr bool is_known(ReduceOp op) {
  return static_cast<std::size_t>(op) < kReduceOpNames.size();
}
constexpr bool is_float(DType dtype) {
  return dtype <= DType::kBFloat16 || dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}
constexpr bool is_complex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}
/// In bytes. REQUIRES: is_known(dtype).
constexpr std::size_t element_size(DType dtype) {
  return kElementSizes.at(static_cast<std::size_t>(dtype));
}
constexpr std::string_view dtype_name(DType dtype) {
  return is_known(dtype) ? kDTypeNames[static_cast<std::size_t>(dtype)] : "?";
}
constexpr std::string_view reduce_op_name(ReduceOp op) {
  return is_known(op) ? kReduceOpNames[static_cast<std::size_t>(op)] : "?";
}

}  // namespace troupe::collectives
