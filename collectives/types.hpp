/// The vocabulary of collectives: element types, reduce operations, devices, buffers.
#pragma once

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
  kBool
};
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

/// How the ranks' values become one.
///
/// `exact` (the default): the result is a function of the inputs and the tree of leaves alone, whatever the
/// algorithm, the number of ranks, the machines they are on and the instruction set. Without it a backend may
/// add in the order that is fastest.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  ///< of kPremulSum: every input is multiplied by it, in its dtype, before it is added
  bool exact = true;

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

/// The dtype of a C++ type.
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<U, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<U, std::int8_t>) return DType::kInt8;
  if constexpr (std::is_same_v<U, std::int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<U, std::int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<U, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<U, std::uint8_t>) return DType::kUInt8;
  if constexpr (std::is_same_v<U, bool>) return DType::kBool;
}

/// Elements in the CPU's memory. An input is not written, though Buffer holds a plain pointer.
template <class T>
Buffer buffer_of(std::span<T> elements) {
  using U = std::remove_const_t<T>;
  return {const_cast<U*>(elements.data()), elements.size(), dtype_of<U>(), {}, nullptr};
}

std::size_t element_size(DType dtype);
std::string_view dtype_name(DType dtype);
std::string_view reduce_op_name(ReduceOp op);

}  // namespace troupe::collectives
