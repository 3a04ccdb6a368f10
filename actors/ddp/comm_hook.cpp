#include "actors/ddp/comm_hook.hpp"

#include <memory>
#include <string>
#include <utility>

#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::DType;
using collectives::ProcessGroup;
using collectives::ReduceOp;

namespace {

DType dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat64:
      return DType::kFloat64;
    case torch::kFloat32:
      return DType::kFloat32;
    case torch::kFloat16:
      return DType::kFloat16;
    case torch::kBFloat16:
      return DType::kBFloat16;
    case torch::kInt8:
      return DType::kInt8;
    case torch::kInt16:
      return DType::kInt16;
    case torch::kInt32:
      return DType::kInt32;
    case torch::kInt64:
      return DType::kInt64;
    case torch::kUInt8:
      return DType::kUInt8;
    case torch::kBool:
      return DType::kBool;
    case torch::kComplexFloat:
      return DType::kComplex64;
    case torch::kComplexDouble:
      return DType::kComplex128;
    default:
      throw BadConfig("cannot reduce a tensor", std::string("its type is ") + torch::toString(type),
                      "use .to() another");
  }
}

CommHook compress(torch::ScalarType type) {
  return [type](GradBucket bucket, ProcessGroup& group) -> std::function<void()> {
    const torch::Tensor compressed = bucket.buffer.to(type).div_(group.size());
    auto work = group.all_reduce(buffer_of(compressed), ReduceOp::kSum);
    return [work = std::move(work), compressed, buffer = bucket.buffer]() mutable {
      work->wait();
      buffer.copy_(compressed);
    };
  };
}

/// What for_one_module gives.
struct OneModuleHook {
  struct State {
    std::string name;
    CommHook hook;
    std::function<bool()> is_local;
    bool taken = false;
  };
  std::function<void()> operator()(GradBucket bucket, ProcessGroup& group) const {
    return state->hook(std::move(bucket), group);
  }
  std::shared_ptr<State> state;
};

}  // namespace

CommHook for_one_module(std::string name, CommHook hook, std::function<bool()> is_local) {
  return OneModuleHook{std::make_shared<OneModuleHook::State>(
      OneModuleHook::State{std::move(name), std::move(hook), std::move(is_local)})};
}

void take_hook(const CommHook& hook) {
  const auto* one = hook.target<OneModuleHook>();
  if (one == nullptr || !std::exchange(one->state->taken, true)) return;
  throw BadConfig("cannot register the comm hook " + one->state->name,
                  "another module has it, and it keeps state from step to step",
                  "make one for each module: " + one->state->name + "(...)");
}

bool is_local(const CommHook& hook) {
  const auto* one = hook.target<OneModuleHook>();
  return one != nullptr && one->state->is_local && one->state->is_local();
}

torch::Device device_of(const ProcessGroup& group) {
  const collectives::Device device = group.facts().device;
  if (device.kind == collectives::DeviceKind::kCpu) return torch::kCPU;
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(device.index)};
}

collectives::Buffer buffer_of(const torch::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) {
    throw BadConfig("cannot reduce a tensor", "it is not dense", "use .contiguous()");
  }
  collectives::Buffer buffer;
  buffer.data = tensor.data_ptr();
  buffer.count = static_cast<std::size_t>(tensor.numel());
  buffer.dtype = dtype_of(tensor.scalar_type());
  if (tensor.is_cuda()) buffer.device = {collectives::DeviceKind::kCuda, tensor.device().index()};
  return buffer;
}

void broadcast_tensor(ProcessGroup& group, const torch::Tensor& tensor, int root) {
  try {
    group.broadcast(buffer_of(tensor), root)->wait();
  } catch (...) {
    group.await_quiet();
    throw;
  }
}

CommHook allreduce() {
  return [](GradBucket bucket, ProcessGroup& group) -> std::function<void()> {
    return [work = group.all_reduce(buffer_of(bucket.buffer), ReduceOp::kAvg)] { work->wait(); };
  };
}

CommHook fp16_compress() {
  return compress(torch::kFloat16);
}

CommHook bf16_compress() {
  return compress(torch::kBFloat16);
}

}  // namespace troupe::train
