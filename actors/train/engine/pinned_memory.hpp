/// Host memory that a GPU reads and writes by itself: copies to and from other memory go through a buffer of
/// the driver's, and the host waits for them.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

namespace troupe::train {

/// Finds a function of the CUDA runtime that this process has loaded; null: there is none.
using FindCudaFunction = std::function<void*(const char* name)>;
void* find_cuda_function(const char* name);

/// Registers `memory`, whole pages of its own, with CUDA until the last copy of what is returned goes; that
/// must be before the memory does, and with no copy under way. Null: the device is no GPU, or CUDA refuses,
/// which is logged once a process, since copies then work as well and take longer.
std::shared_ptr<const void> pin_memory(std::span<std::byte> memory, c10::Device device,
                                       const FindCudaFunction& find = find_cuda_function);

}  // namespace troupe::train
