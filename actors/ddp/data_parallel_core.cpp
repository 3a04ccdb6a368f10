#include "actors/ddp/data_parallel_core.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <cxxabi.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::train {
namespace {

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw BadConfig("cannot make a DataParallel", std::move(why), std::move(todo));
}

void check_exists(const std::string& name, bool exists, int cuda_devices) {
  if (exists) return;
  refuse(name + " does not exist",
         cuda_devices == 0 ? "there is no CUDA device here: give replicas = 2, which are on the CPU"
                           : "there are cuda:0 to cuda:" + std::to_string(cuda_devices - 1));
}

/// `device`, by one name.
torch::Device checked(torch::Device device, int cuda_devices) {
  if (device.is_cpu() && device.index() > 0)
    refuse(device.str() + " does not exist", "the CPU is one device, cpu: give replicas = 2 for two on it");
  if (device.is_cpu()) return torch::kCPU;
  if (device.is_meta()) refuse("nothing runs on meta", "give CUDA devices, or cpu");
  if (!device.is_cuda()) refuse("replicas do not run on " + device.str(), "give CUDA devices, or cpu");
  if (!device.has_index() && cuda_devices > 0)
    refuse("cuda has no index", "give one of cuda:0 to cuda:" + std::to_string(cuda_devices - 1));
  check_exists(device.str(), device.has_index() && device.index() < cuda_devices, cuda_devices);
  return device;
}

/// Puts the numbers of the CPU's generator back: reset() of a clone draws some.
class KeepRandom {
 public:
  KeepRandom() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandom() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandom(const KeepRandom&) = delete;
  KeepRandom& operator=(const KeepRandom&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

/// `replica` has the values of `parameter`, and its gradient is added to that of `parameter`.
void stand_for(const torch::Tensor& parameter, torch::Tensor replica) {
  namespace impl = torch::autograd::impl;
  replica.set_requires_grad(parameter.requires_grad());
  const bool here = parameter.device() == replica.device();
  // In one memory, or a copy that autograd knows of.
  const torch::Tensor values = here ? parameter.view_as(parameter) : parameter.to(replica.device());
  replica.set_data(values.detach());
  if (values.requires_grad()) impl::set_gradient_edge(replica, impl::gradient_edge(values));
}

/// "the forward of replica 2 failed on cpu with 1 of 7 samples".
std::string failure_of(std::size_t replica, torch::Device device, const std::vector<Chunk>& chunks) {
  std::int64_t samples = 0;
  for (const Chunk& chunk : chunks) samples += chunk.size;
  std::string text = "the forward of replica " + std::to_string(replica) + " failed on " + device.str();
  if (samples > 0)
    text += " with " + std::to_string(chunks[replica].size) + " of " + std::to_string(samples) + " samples";
  return text;
}

std::string name_of(const std::type_info& type) {
  int status = 0;
  char* name = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  const std::string text = name != nullptr ? name : type.name();
  std::free(name);
  return text;
}

/// Throws TaskFailed, in which `thrown` is nested.
[[noreturn]] void fail(const std::exception_ptr& thrown, const std::string& what, torch::Device device) {
  const auto failed = [&](const std::string& why, const std::string& type) {
    const bool is_norm = why.find("more than 1 value per channel") != std::string::npos;
    const char* todo = is_norm
                           ? "BatchNorm needs two samples on every device: leave out the small last batch of "
                             "an epoch, or give fewer devices"
                           : "";
    return TaskFailed(ErrorInfo{.code = ErrorCode::kTaskFailed,
                                .what = what,
                                .why = why,
                                .todo = todo,
                                .type = type,
                                .origin = device.str()});
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    std::throw_with_nested(failed(error.what_without_backtrace(), name_of(typeid(error))));
  } catch (const std::exception& error) {
    std::throw_with_nested(failed(error.what(), name_of(typeid(error))));
  } catch (...) {
    const std::string type = name_of(*abi::__cxa_current_exception_type());
    std::throw_with_nested(failed("it threw " + type + ", which is no std::exception", type));
  }
}

}  // namespace

int cuda_devices() {
  return static_cast<int>(torch::cuda::device_count());
}

std::vector<torch::Device> devices_of(const DataParallelOptions& options, int cuda_devices) {
  const int ways = (options.device_ids.empty() ? 0 : 1) + (options.devices.empty() ? 0 : 1) +
                   (options.replicas == 0 ? 0 : 1);
  if (ways > 1) refuse("device_ids, devices and replicas exclude each other", "give one of them");
  if (options.replicas < 0)
    refuse("replicas is " + std::to_string(options.replicas), "give at least 1, or device_ids");
  std::vector<torch::Device> devices = options.devices;
  for (int i = 0; i < options.replicas; ++i) devices.emplace_back(torch::kCPU);
  for (const int id : options.device_ids) {
    check_exists("cuda:" + std::to_string(id), id >= 0 && id < cuda_devices, cuda_devices);
    devices.emplace_back(torch::kCUDA, static_cast<torch::DeviceIndex>(id));
  }
  if (ways == 0) {
    for (int i = 0; i < cuda_devices; ++i)
      devices.emplace_back(torch::kCUDA, static_cast<torch::DeviceIndex>(i));
    if (devices.empty()) refuse("there is no CUDA device here", "give replicas = 2, which are on the CPU");
  }
  for (torch::Device& device : devices) {
    device = checked(device, cuda_devices);
    if (device.type() != devices.front().type())
      refuse("devices are of two kinds, " + devices.front().str() + " and " + device.str(), "give one kind");
  }
  if (options.output_device) checked(*options.output_device, cuda_devices);
  if (!options.chunk_sizes.empty() && options.chunk_sizes.size() != devices.size()) {
    refuse("there are " + std::to_string(options.chunk_sizes.size()) + " chunk_sizes for " +
               std::to_string(devices.size()) + " devices",
           "give one a device");
  }
  for (const std::int64_t size : options.chunk_sizes) {
    if (size < 1) refuse("a chunk has " + std::to_string(size) + " samples", "give at least 1");
  }
  return devices;
}

void check_module(const torch::nn::Module* module) {
  if (module == nullptr) refuse("the module is null", "make one");
}

void check_on(const torch::nn::Module& module, torch::Device device) {
  const auto check = [&](const char* kind, const auto& item) {
    if (!item.value().defined() || item.value().device() == device) return;
    const bool has_values = !item.value().is_meta();
    throw BadConfig(
        std::string("cannot run the module: ") + kind + " " + item.key() + " is on " +
            item.value().device().str(),
        has_values ? "the first device is " + device.str() : "it has no values there",
        (has_values ? "call to(" + device.str() + ") of the module" : "make the module on " + device.str()));
  };
  for (const auto& item : module.named_parameters()) check("parameter", item);
  for (const auto& item : module.named_buffers()) check("buffer", item);
}

void refuse_replica(const torch::nn::Module& module, const std::string& why) {
  throw BadConfig("cannot replicate " + module.name(), why,
                  "derive it and its children from torch::nn::Cloneable, and register everything in reset()");
}

std::shared_ptr<torch::nn::Module> replica_of(const torch::nn::Module& module, torch::Device device) {
  // Tensors that are made in inference mode cannot stand for a parameter.
  const bool tracks = torch::GradMode::is_enabled();
  const c10::InferenceMode no_inference(false);
  const torch::AutoGradMode grad(tracks);
  std::shared_ptr<torch::nn::Module> replica;
  {
    const KeepRandom keep;
    try {
      replica = module.clone(device);
    } catch (const c10::Error& error) {
      refuse_replica(module, error.what_without_backtrace());
    }
  }
  const auto originals = module.named_parameters();
  auto copies = replica->named_parameters();
  for (const auto& item : originals) {
    torch::Tensor* copy = copies.find(item.key());
    if (copy == nullptr) refuse_replica(module, "its clone has no parameter " + item.key());
    if (item.value().defined() && !item.value().is_inference()) stand_for(item.value(), *copy);
  }
  return replica;
}

void on_each_device(const std::vector<torch::Device>& devices, const std::vector<Chunk>& chunks,
                    const std::function<void(std::size_t)>& body) {
  const std::size_t count = chunks.size();
  std::vector<std::exception_ptr> thrown(count);
  const auto run = [&](std::size_t i) {
    try {
      const c10::DeviceGuard guard(devices[i]);
      body(i);
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  const at::ThreadLocalState state;
  threads.reserve(count);
  for (std::size_t i = 1; i < count; ++i) {
    try {
      threads.push_back(start_quiet_thread([&run, &state, i] {
        const at::ThreadLocalStateGuard guard(state);
        run(i);
      }));
    } catch (const Error&) {  // no thread to be had; those there are have to end
      thrown[i] = std::current_exception();
    }
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < count; ++i) {
    if (thrown[i]) fail(thrown[i], failure_of(i, devices[i], chunks), devices[i]);
  }
}

void load_module(torch::nn::Module& module, torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive inner;
  // A module that has a child of this name is meant by it.
  if (!module.named_children().contains("module") && archive.try_read("module", inner)) {
    module.load(inner);
  } else {
    module.load(archive);
  }
}

std::vector<Chunk> chunks_of(std::int64_t samples, std::size_t devices,
                             const std::vector<std::int64_t>& chunk_sizes) {
  std::vector<Chunk> chunks;
  std::int64_t begin = 0;
  if (!chunk_sizes.empty()) {
    for (const std::int64_t size : chunk_sizes) {
      chunks.push_back({begin, size});
      begin += size;
    }
    if (begin == samples) return chunks;
    throw BadInput({ErrorCode::kBadInput,
                    "a batch of " + std::to_string(samples) + " samples cannot be cut up",
                    "the chunk_sizes sum up to " + std::to_string(begin),
                    "give batches of that many, or leave chunk_sizes out"});
  }
  const auto n = static_cast<std::int64_t>(devices);
  const std::int64_t size = std::max<std::int64_t>((samples + n - 1) / n, 1);
  do {
    chunks.push_back({begin, std::min(size, samples - begin)});
    begin += size;
  } while (begin < samples);
  return chunks;
}

std::int64_t samples_of(const torch::Tensor& tensor, std::int64_t dim, std::optional<std::int64_t> known) {
  const auto refuse_batch = [&](const std::string& why, const char* todo) {
    throw BadInput({ErrorCode::kBadInput, "a batch cannot be cut up over devices", why, todo});
  };
  const std::string shape = "a tensor of shape " + c10::str(tensor.sizes());
  if (dim < -tensor.dim() || dim >= tensor.dim())
    refuse_batch(shape + " has no dimension " + std::to_string(dim), "give what is no batch as a number");
  const std::int64_t samples = tensor.size(dim);
  if (known && *known != samples) {
    refuse_batch(shape + " has " + std::to_string(samples) + " samples in dimension " + std::to_string(dim) +
                     ", and one before it " + std::to_string(*known),
                 "give every tensor as many");
  }
  return samples;
}

torch::Tensor gather_tensors(const std::vector<torch::Tensor>& parts, std::int64_t dim,
                             torch::Device device) {
  std::vector<torch::Tensor> there;
  for (const torch::Tensor& part : parts) {
    if (part.defined() != parts.front().defined() || (part.defined() && part.dim() != parts.front().dim()))
      refuse_to_gather("a tensor has other dimensions on some than on the first");
    if (part.defined()) there.push_back(part.to(device));
  }
  if (there.empty()) return {};
  return there.front().dim() == 0 ? torch::stack(there) : torch::cat(there, dim);
}

void refuse_to_gather(const std::string& why) {
  throw BadInput({ErrorCode::kBadInput, "cannot put together what the replicas returned", why,
                  "return containers of one shape on every device"});
}

}  // namespace troupe::train
