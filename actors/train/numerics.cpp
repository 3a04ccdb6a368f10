#include "actors/train/numerics.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
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

void set_up_numerics(int threads) {
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
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setFlushDenormal(false);
}

std::string numerics_fingerprint() {
  std::ostringstream text;
  text << "libtorch " << TORCH_VERSION << "; " << processor() << "; " << kernel_libraries() << blas_library()
       << "threads " << at::get_num_threads();
  return text.str();
}

}  // namespace troupe::train
