#include "actors/train/engine/numerics.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// The lines of LibTorch's own configuration text that name a library of kernels or the instruction set.
std::string kernel_libraries() {
  std::istringstream config(at::show_config());
  std::string found;
  for (std::string line; std::getline(config, line);) {
    const bool matters = line.find("Math Kernel Library") != std::string::npos ||
                         line.find("MKL-DNN") != std::string::npos ||
                         line.find("CPU capability") != std::string::npos;
    const auto start = line.find_first_not_of(" -");
    if (matters && start != std::string::npos) found += line.substr(start) + "; ";
  }
  return found;
}

/// A function of the BLAS that this process loaded, or null: Debian's LibTorch takes whichever BLAS the
/// system's alternatives name, so OpenBLAS is asked at run time and is no dependency.
template <class Function>
Function* blas_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

std::string blas_library() {
  std::string text;
  if (auto* config = blas_function<char*()>("openblas_get_config")) text += std::string(config()) + "; ";
  if (auto* core = blas_function<char*()>("openblas_get_corename")) text += std::string(core()) + "; ";
  return text;
}

constexpr const char* kWorkspaceVariable = "CUBLAS_WORKSPACE_CONFIG";
constexpr const char* kWorkspace = ":4096:8";
constexpr std::string_view kThreads = "threads ";

/// A function of CUDA's driver, which LibTorch for CUDA has loaded. Null: there is none.
template <class Function>
Function* driver_function(const char* name) {
  static void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(driver, name));
}

/// Model, driver, libraries and settings: what chooses the GPU's kernels. Asked of the first device that this
/// process sees.
std::string gpu() {
  char model[256] = "unknown";
  int driver = 0;
  if (auto* init = driver_function<int(unsigned)>("cuInit"); init != nullptr && init(0) == 0) {
    if (auto* name = driver_function<int(char*, int, int)>("cuDeviceGetName")) name(model, sizeof model, 0);
    if (auto* version = driver_function<int(int*)>("cuDriverGetVersion")) version(&driver);
  }
  const auto& hooks = at::detail::getCUDAHooks();
  const at::Context& context = at::globalContext();
  const char* workspace = std::getenv(kWorkspaceVariable);
  std::ostringstream text;
  text << model << ", driver " << driver << ", cuda " << hooks.versionCUDART() << ", cudnn "
       << hooks.versionCuDNN()
       << (context.allowTF32CuBLAS() || context.allowTF32CuDNN() ? ", tf32" : ", no tf32")
       << (context.deterministicCuDNN() ? "" : ", cudnn not deterministic") << ", workspace "
       << (workspace == nullptr ? "none" : workspace);
  return text.str();
}

/// The processor's model and caches, by which BLAS libraries choose kernels and blocks.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string model = "unknown";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    model = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  return model + ", caches " + std::to_string(::sysconf(_SC_LEVEL1_DCACHE_SIZE)) + " " +
         std::to_string(::sysconf(_SC_LEVEL2_CACHE_SIZE)) + " " +
         std::to_string(::sysconf(_SC_LEVEL3_CACHE_SIZE));
}

}  // namespace

c10::Device computing_device(bool on_gpu) {
  if (!on_gpu) return c10::DeviceType::CPU;
  const auto unavailable = [](const char* why, const char* todo) {
    throw BadConfig("a trainer cannot compute on its GPU", why, todo);
  };
  if (!at::Context::hasCUDART()) {
    unavailable("this LibTorch was built without CUDA",
                "build with a LibTorch for CUDA (docs/gpu.md), or leave trainer_gpus out");
  }
  if (!at::globalContext().hasCUDA()) {
    unavailable("CUDA finds no GPU in this process",
                "see nvidia-smi and CUDA_VISIBLE_DEVICES on that machine, or leave trainer_gpus out");
  }
  return {c10::DeviceType::CUDA, 0};
}

void set_up_numerics(int threads, c10::Device device, bool exact) {
  // Read by the libraries when they first start threads. Set, not defaulted: a user's DYNAMIC would change
  // bits.
  ::setenv("MKL_DYNAMIC", "FALSE", 1);
  ::setenv("OMP_DYNAMIC", "FALSE", 1);
  at::set_num_threads(threads);
  // OpenBLAS built on pthreads has threads of its own, which LibTorch does not set.
  if (auto* set_blas = blas_function<void(int)>("openblas_set_num_threads")) set_blas(threads);
  if (at::get_num_interop_threads() != 1) {
    try {
      at::set_num_interop_threads(1);
    } catch (const std::exception& error) {
      throw BadConfig("cannot set one inter-op thread", error.what(),
                      "call set_up_numerics before the first parallel operation of the process");
    }
  }
  if (!exact) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setFlushDenormal(false);
  if (device.is_cpu()) return;
  ::setenv(kWorkspaceVariable, kWorkspace, 1);  // read when cuBLAS is first used
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

std::string numerics_fingerprint(c10::Device device) {
  std::ostringstream text;
  text << "libtorch " << TORCH_VERSION << "; " << processor() << "; " << kernel_libraries() << blas_library()
       << kThreads << at::get_num_threads();
  if (!device.is_cpu()) text << "; gpu " << gpu();
  return text.str();
}

std::optional<int> threads_in(std::string_view fingerprint) {
  const auto at = fingerprint.rfind(kThreads);  // BLAS libraries say theirs in other words
  if (at == std::string_view::npos) return std::nullopt;
  const char* begin = fingerprint.data() + at + kThreads.size();
  int threads = 0;
  const auto read = std::from_chars(begin, fingerprint.data() + fingerprint.size(), threads);
  return read.ec == std::errc() && threads > 0 ? std::optional(threads) : std::nullopt;
}

}  // namespace troupe::train
