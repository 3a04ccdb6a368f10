#include "actors/train/engine/pinned_memory.hpp"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "runtime/core/log.hpp"

namespace troupe::train {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: of all contexts

using Register = int(void*, std::size_t, unsigned);
using Unregister = int(void*);
using GetLastError = int();
using GetErrorString = const char*(int);

void say_refused(std::size_t bytes, const std::string& why) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  log(LogLevel::kWarning,
      "batches or gradients are copied more slowly between host and GPU: CUDA cannot pin " +
          std::to_string(bytes) + " bytes: " + why + " (see ulimit -l)");
}

}  // namespace

void* find_cuda_function(const char* name) {
  return ::dlsym(RTLD_DEFAULT, name);  // LibTorch for CUDA is linked, and the runtime with it
}

std::shared_ptr<const void> pin_memory(std::span<std::byte> memory, c10::Device device,
                                       const FindCudaFunction& find) {
  if (device.type() != c10::DeviceType::CUDA || memory.empty()) return nullptr;
  auto* pin = reinterpret_cast<Register*>(find("cudaHostRegister"));
  auto* unpin = reinterpret_cast<Unregister*>(find("cudaHostUnregister"));
  auto* last_error = reinterpret_cast<GetLastError*>(find("cudaGetLastError"));
  auto* text = reinterpret_cast<GetErrorString*>(find("cudaGetErrorString"));
  if (pin == nullptr || unpin == nullptr || last_error == nullptr || text == nullptr) {
    say_refused(memory.size(), "its runtime library is not loaded");
    return nullptr;
  }
  if (const int code = pin(memory.data(), memory.size(), kPortable); code != 0) {
    last_error();  // or LibTorch finds it after its next kernel
    say_refused(memory.size(), text(code));
    return nullptr;
  }
  return {memory.data(), [unpin, last_error](const void* data) {
            if (unpin(const_cast<void*>(data)) != 0) last_error();  // at the end of a process CUDA is gone
          }};
}

}  // namespace troupe::train
