#include "actors/train/train_state.hpp"

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "actors/train/optimizer_state.hpp"
#include "actors/train/torch_compat.hpp"

namespace troupe::train {
namespace {

constexpr const char* kLearningRates = "optimizer/learning_rates";
constexpr const char* kSchedulerSteps = "scheduler/steps";

constexpr std::array<std::pair<torch::ScalarType, const char*>, 10> kDtypes{{{torch::kFloat64, "F64"},
                                                                             {torch::kFloat32, "F32"},
                                                                             {torch::kFloat16, "F16"},
                                                                             {torch::kBFloat16, "BF16"},
                                                                             {torch::kInt64, "I64"},
                                                                             {torch::kInt32, "I32"},
                                                                             {torch::kInt16, "I16"},
                                                                             {torch::kInt8, "I8"},
                                                                             {torch::kUInt8, "U8"},
                                                                             {torch::kBool, "BOOL"}}};

std::string dtype_name(const std::string& name, const torch::Tensor& tensor) {
  for (const auto& [type, text] : kDtypes) {
    if (type == tensor.scalar_type()) return text;
  }
  throw BadConfig("tensor " + name + " cannot be part of a training state",
                  std::string("its type is ") + c10::toString(tensor.scalar_type()),
                  "use a real floating-point or integer type");
}

torch::ScalarType scalar_type(const std::string& dtype) {
  for (const auto& [type, text] : kDtypes) {
    if (dtype == text) return type;
  }
  return torch::ScalarType::Undefined;
}

std::string field_name(const std::string& parameter, const std::string& field) {
  return "optimizer/" + parameter + "/" + field;
}

void add(StateView& view, std::string name, const torch::Tensor& tensor) {
  // Row-major bytes, whatever the strides; a tensor that is row-major already is not copied.
  torch::Tensor owner = tensor.detach().contiguous();
  StateTensor state{std::move(name), {}, owner.sizes().vec(), {}};
  state.dtype = dtype_name(state.name, owner);
  state.bytes = {static_cast<const std::byte*>(owner.data_ptr()), owner.nbytes()};
  view.tensors.push_back(std::move(state));
  view.owners.push_back(std::move(owner));
}

ErrorInfo does_not_fit(const std::string& name, const std::string& why) {
  return {ErrorCode::kBadInput, "the training state does not fit this model: " + name, why,
          "resume with the model and optimizer that wrote it"};
}

std::string shape_text(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  std::string text = dtype + "[";
  for (const std::int64_t extent : shape) text += (text.back() == '[' ? "" : ",") + std::to_string(extent);
  return text + "]";
}

torch::Tensor copy_of(const StateTensor& state) {
  torch::Tensor tensor = torch::empty(state.shape, torch::TensorOptions().dtype(scalar_type(state.dtype)));
  if (!state.bytes.empty()) std::memcpy(tensor.data_ptr(), state.bytes.data(), state.bytes.size());
  return tensor;
}

/// A checked state, in spare memory, ready to be swapped in.
struct Incoming {
  std::vector<std::pair<torch::Tensor, const StateTensor*>> values;  ///< parameters and buffers
  std::vector<std::pair<torch::Tensor, std::unique_ptr<torch::optim::OptimizerParamState>>> optimizer;
  std::vector<double> rates;
  unsigned scheduler_steps = 0;
};

/// Takes the tensors of an incoming state by name and says where it differs from the model.
class Check {
 public:
  Check(TrainingModel& model, std::span<const StateTensor> tensors) : model_(model), tensors_(tensors) {}

  Result<Incoming> run() {
    for (const StateTensor& tensor : tensors_) {
      if (!left_.emplace(tensor.name, &tensor).second)
        return does_not_fit(tensor.name, "the state has it twice");
    }
    for (const auto& group : {model_.parameters(), model_.buffers()}) {
      for (const NamedTensor& item : group) {
        if (auto fits = value(item); !fits) return fits.error();
      }
    }
    for (const NamedTensor& parameter : model_.parameters()) {
      if (auto fits = optimizer_state(parameter); !fits) return fits.error();
    }
    if (auto fits = rates(); !fits) return fits.error();
    if (auto fits = scheduler(); !fits) return fits.error();
    if (!left_.empty())
      return does_not_fit(std::string(left_.begin()->first), "this model has no such tensor");
    return std::move(incoming_);
  }

 private:
  /// The tensor called `name`, which is then no longer left over, or null.
  const StateTensor* take(const std::string& name) {
    const auto found = left_.find(name);
    if (found == left_.end()) return nullptr;
    const StateTensor* tensor = found->second;
    left_.erase(found);
    return tensor;
  }

  static bool holds_together(const StateTensor& tensor) {
    std::size_t size = state_dtype_size_bytes(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) size *= static_cast<std::size_t>(extent);
    return size == tensor.bytes.size() && state_dtype_size_bytes(tensor.dtype) != 0;
  }

  Result<void> value(const NamedTensor& item) {
    const StateTensor* found = take(item.name);
    if (!found) return does_not_fit(item.name, "the state has no such tensor");
    const std::vector<std::int64_t> shape = item.tensor.sizes().vec();
    const std::string dtype = dtype_name(item.name, item.tensor);
    if (found->shape != shape || found->dtype != dtype) {
      return does_not_fit(item.name, "the state has " + shape_text(found->dtype, found->shape) +
                                         ", the model " + shape_text(dtype, shape));
    }
    if (!holds_together(*found)) return does_not_fit(item.name, "its bytes are not what its shape needs");
    incoming_.values.emplace_back(item.tensor, found);
    return {};
  }

  Result<void> optimizer_state(const NamedTensor& parameter) {
    const std::string prefix = field_name(parameter.name, "");
    std::vector<OptimizerField> fields;
    for (auto at = left_.lower_bound(prefix); at != left_.end() && at->first.starts_with(prefix);
         at = left_.erase(at)) {
      const StateTensor& field = *at->second;
      const bool scalar = field.shape.empty();
      const bool like_parameter = field.shape == parameter.tensor.sizes().vec() &&
                                  field.dtype == dtype_name(parameter.name, parameter.tensor);
      if (!scalar && !like_parameter) {
        return does_not_fit(field.name, "its shape and type are not the parameter's");
      }
      if (!holds_together(field)) return does_not_fit(field.name, "its bytes are not what its shape needs");
      fields.push_back({field.name.substr(prefix.size()), copy_of(field)});
    }
    auto state = make_optimizer_state(model_.optimizer(), fields);
    if (!state) return does_not_fit(prefix, state.error().message());
    incoming_.optimizer.emplace_back(parameter.tensor, *std::move(state));
    return {};
  }

  Result<void> rates() {
    const std::size_t groups = model_.optimizer().param_groups().size();
    const StateTensor* found = take(kLearningRates);
    if (!found || found->dtype != "F64" || found->bytes.size() != groups * sizeof(double)) {
      return does_not_fit(kLearningRates, "the state has not one learning rate for each parameter group");
    }
    incoming_.rates.resize(groups);
    std::memcpy(incoming_.rates.data(), found->bytes.data(), found->bytes.size());
    return {};
  }

  Result<void> scheduler() {
    if (!model_.scheduler()) return {};
    const StateTensor* found = take(kSchedulerSteps);
    std::int64_t steps = -1;
    if (found && found->dtype == "I64" && found->bytes.size() == sizeof steps) {
      std::memcpy(&steps, found->bytes.data(), sizeof steps);
    }
    if (steps < 0) return does_not_fit(kSchedulerSteps, "the state has no count of scheduler steps");
    incoming_.scheduler_steps = static_cast<unsigned>(steps);
    return {};
  }

  TrainingModel& model_;
  std::span<const StateTensor> tensors_;
  std::map<std::string_view, const StateTensor*> left_;
  Incoming incoming_;
};

}  // namespace

StateView TrainState::view() const {
  StateView view;
  const std::vector<NamedTensor> parameters = model_.parameters();
  for (const NamedTensor& item : parameters) add(view, item.name, item.tensor);
  for (const NamedTensor& item : model_.buffers()) add(view, item.name, item.tensor);
  for (const NamedTensor& item : parameters) {
    for (const OptimizerField& field : optimizer_fields(model_.optimizer(), item.tensor)) {
      add(view, field_name(item.name, field.name), field.tensor);
    }
  }
  add(view, kLearningRates, torch::tensor(learning_rates(model_.optimizer()), torch::kFloat64));
  if (auto* scheduler = model_.scheduler()) {
    add(view, kSchedulerSteps,
        torch::tensor(static_cast<std::int64_t>(scheduler_steps(*scheduler)), torch::kInt64));
  }
  return view;
}

Result<void> TrainState::install(std::span<const StateTensor> tensors) {
  Result<Incoming> checked = Check(model_, tensors).run();
  if (!checked) return checked.error();
  Incoming& incoming = *checked;
  const torch::NoGradGuard no_grad;
  for (auto& [tensor, state] : incoming.values) tensor.copy_(copy_of(*state));
  for (auto& [parameter, state] : incoming.optimizer) {
    set_param_state(model_.optimizer(), parameter, std::move(state));
  }
  set_learning_rates(model_.optimizer(), incoming.rates);
  if (auto* scheduler = model_.scheduler()) scheduler_steps(*scheduler) = incoming.scheduler_steps;
  return {};
}

Result<void> TrainState::install(std::span<const std::byte> serialised) {
  const Result<std::vector<StateTensor>> tensors = decode_state(serialised);
  if (!tensors) return tensors.error();
  return install(*tensors);
}

}  // namespace troupe::train
