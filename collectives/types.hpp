/// The vocabulary of collectives: element types, reduce operations, devices, buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

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

std::size_t element_size(DType dtype);
std::string_view dtype_name(DType dtype);
std::string_view reduce_op_name(ReduceOp op);

}  // namespace troupe::collectives
