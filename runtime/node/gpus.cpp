#include "runtime/node/gpus.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "runtime/core/log.hpp"

namespace troupe {
namespace {

// CUDA's driver API: the part of cuda.h that is used here. Its ABI is stable.
using CuResult = int;  // 0 is success
using CuDevice = int;
constexpr CuResult kNotInit = 3;     // CUDA_ERROR_NOT_INITIALIZED: what cuInit without a device leaves behind
constexpr CuResult kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
struct CuUuid {
  std::array<unsigned char, 16> bytes;
};

ErrorInfo no_gpus(const std::string& why) {
  return {ErrorCode::kUnavailable, "cannot list this machine's GPUs", why,
          "see that nvidia-smi works, or start the node with --gpus 0 (gpus_per_node = 0)"};
}

/// "GPU-" and the id as NVIDIA's tools write it: 8-4-4-4-12 digits.
std::string name_of(const CuUuid& uuid, bool is_instance) {
  std::string name = is_instance ? "MIG" : "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    constexpr std::string_view kDigits = "0123456789abcdef";
    name += kDigits[uuid.bytes[i] >> 4U];
    name += kDigits[uuid.bytes[i] & 15U];
  }
  return name;
}

class Driver {
 public:
  explicit Driver(void* library) : library_(library) {}

  /// 0, or CUDA's error; below 0: the driver has no such function.
  template <class... Args>
  CuResult call(const char* name, Args... args) const {
    auto* function = reinterpret_cast<CuResult (*)(Args...)>(::dlsym(library_, name));
    return function == nullptr ? -1 : function(args...);
  }
  bool has(const char* name) const { return ::dlsym(library_, name) != nullptr; }

 private:
  void* library_;
};

ErrorInfo failed(const char* name, CuResult code) {
  if (code < 0) return no_gpus(std::string("CUDA's driver has no ") + name);
  return no_gpus(std::string(name) + " gave CUDA's error " + std::to_string(code));
}

Result<std::string> name_of(const Driver& driver, int index) {
  CuDevice device = 0;
  CuUuid uuid{};
  std::array<char, 256> model{};
  const char* get_uuid = driver.has("cuDeviceGetUuid_v2") ? "cuDeviceGetUuid_v2" : "cuDeviceGetUuid";
  if (const auto code = driver.call("cuDeviceGet", &device, index)) return failed("cuDeviceGet", code);
  if (const auto code = driver.call(get_uuid, &uuid, device)) return failed(get_uuid, code);
  if (const auto code =
          driver.call("cuDeviceGetName", model.data(), static_cast<int>(model.size() - 1), device))
    return failed("cuDeviceGetName", code);
  return name_of(uuid, std::string_view(model.data()).find(" MIG ") != std::string_view::npos);
}

/// A name in CUDA_VISIBLE_DEVICES that is no device's hides those after it, in silence.
void warn_of_hidden(std::size_t found) {
  const char* visible = std::getenv(kVisibleDevicesVariable);
  if (visible == nullptr || *visible == '\0' || *visible == '-') return;
  const std::string_view list = visible;
  const auto named = static_cast<std::size_t>(std::count(list.begin(), list.end(), ',')) + 1;
  if (named <= found) return;
  log(LogLevel::kWarning, std::string(kVisibleDevicesVariable) + "=" + visible + " names " +
                              std::to_string(named) + " GPUs, of which CUDA finds " + std::to_string(found) +
                              ": one that does not exist hides those after it");
}

Result<int> number_in(const char* variable, const char* text) {
  int value = 0;
  const char* end = text + std::string_view(text).size();
  const auto read = std::from_chars(text, end, value);
  if (read.ec == std::errc() && read.ptr == end && value >= 0 && value <= 1024) return value;
  return ErrorInfo{ErrorCode::kBadConfig, "cannot start a node",
                   std::string(variable) + " is '" + text + "', which is not 0 to 1,024",
                   "set a number, or nothing"};
}

}  // namespace

Result<std::vector<std::string>> find_gpus(const char* library_name) {
  void* library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // for good: a driver cannot be unloaded
  if (library == nullptr) return std::vector<std::string>();
  const Driver driver(library);
  int count = 0;
  if (const auto code = driver.call("cuInit", 0U); code != 0 && code != kNoDevice)
    return failed("cuInit", code);
  if (const auto code = driver.call("cuDeviceGetCount", &count);
      code != 0 && code != kNoDevice && code != kNotInit)
    return failed("cuDeviceGetCount", code);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    auto name = name_of(driver, i);
    if (!name) return name.error();
    names.push_back(*std::move(name));
  }
  warn_of_hidden(names.size());
  return names;
}

Result<std::vector<std::string>> offered_gpus(const wire::NodeConfig& config,
                                              const std::vector<std::string>& found) {
  const auto parts = static_cast<std::size_t>(std::max(1, config.gpu_parts));
  const auto part = static_cast<std::size_t>(std::max(0, config.gpu_part));
  std::vector<std::string> offered;
  for (std::size_t i = part; i < found.size(); i += parts) offered.push_back(found[i]);
  if (config.gpus < 0) return offered;
  const auto wanted = static_cast<std::size_t>(config.gpus);
  if (wanted > offered.size()) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot start node " + config.name,
                     "it is to have " + std::to_string(wanted) + " GPUs, and there are " +
                         std::to_string(offered.size()) + " for it",
                     "see nvidia-smi and CUDA_VISIBLE_DEVICES; ask for fewer (--gpus, gpus_per_node)"};
  }
  offered.resize(wanted);
  return offered;
}

Result<std::vector<std::string>> gpus_of_node(const wire::NodeConfig& config) {
  if (config.gateway || config.gpus == 0) return std::vector<std::string>();
  if (const char* pretended = std::getenv(kPretendedGpusVariable)) {
    const auto count = number_in(kPretendedGpusVariable, pretended);
    if (!count) return count.error();
    std::vector<std::string> names;
    for (int i = 0; i < *count; ++i) names.push_back(std::to_string(i));
    wire::NodeConfig alone = config;
    alone.gpu_part = 0;
    alone.gpu_parts = 1;
    return offered_gpus(alone, names);
  }
  const auto found = find_gpus();
  if (!found && config.gpus < 0) {
    log(LogLevel::kWarning, "this node offers no GPU: " + found.error().message());
    return std::vector<std::string>();
  }
  if (!found) return found.error();
  return offered_gpus(config, *found);
}

}  // namespace troupe
