#include "actors/train/engine/train_state.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "actors/ddp/optimizer_state.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "actors/train/job/ema.hpp"

namespace troupe::train {
namespace {

constexpr const char* kUserPrefix = "user/";

/// The names of an optimizer's parts. One with a name has it in brackets: "optimizer[generator]/...".
class Names {
 public:
  explicit Names(const TrainedBy& trained) : name_(trained.name.empty() ? "" : "[" + trained.name + "]") {}

  std::string field(const std::string& parameter, const std::string& field) const {
    return "optimizer" + name_ + "/" + parameter + "/" + field;
  }
  std::string option(const std::string& option) const { return "optimizer_options" + name_ + "/" + option; }
  std::string learning_rates() const { return "optimizer" + name_ + "/learning_rates"; }
  std::string scheduler_steps() const { return "scheduler" + name_ + "/steps"; }

 private:
  std::string name_;
};

constexpr std::array<std::pair<torch::ScalarType, checkpoint::DType>, 10> kDtypes{
    {{torch::kFloat64, checkpoint::DType::kF64},
     {torch::kFloat32, checkpoint::DType::kF32},
     {torch::kFloat16, checkpoint::DType::kF16},
     {torch::kBFloat16, checkpoint::DType::kBF16},
     {torch::kInt64, checkpoint::DType::kI64},
     {torch::kInt32, checkpoint::DType::kI32},
     {torch::kInt16, checkpoint::DType::kI16},
     {torch::kInt8, checkpoint::DType::kI8},
     {torch::kUInt8, checkpoint::DType::kU8},
     {torch::kBool, checkpoint::DType::kBool}}};

/// The tensor as a part has it: without autograd, and a complex one as pairs of real numbers. An alias.
torch::Tensor real_view(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach();
  return plain.is_complex() ? torch::view_as_real(plain.resolve_conj()) : plain;
}

checkpoint::DType dtype_of(const std::string& name, const torch::Tensor& tensor) {
  for (const auto& [type, dtype] : kDtypes) {
    if (type == tensor.scalar_type()) return dtype;
  }
  throw BadConfig("tensor " + name + " cannot be written to a checkpoint or a file",
                  std::string("its type is ") + c10::toString(tensor.scalar_type()),
                  "use a floating-point or integer type");
}

bool has_type(const StatePart& part) {
  return std::any_of(kDtypes.begin(), kDtypes.end(),
                     [&](const auto& one) { return one.second == part.dtype; });
}

/// What the part's bytes are as a tensor, without a copy; undefined for a type that no state has.
torch::Tensor tensor_of(const StatePart& part) {
  for (const auto& [type, dtype] : kDtypes) {
    if (dtype != part.dtype) continue;
    return torch::from_blob(const_cast<std::byte*>(part.bytes.data()), part.shape,
                            torch::TensorOptions().dtype(type));
  }
  return {};
}

/// The part with its bytes, until the next call.
StatePart with_bytes(const StatePart& part, const PartBytes& bytes_of) {
  StatePart whole = part;
  if (bytes_of) whole.bytes = bytes_of(part);
  return whole;
}

void add(StateView& view, const std::string& name, const torch::Tensor& tensor) {
  // Row-major bytes, whatever the strides; a tensor that is row-major already is not copied.
  // One on a device comes to the host, which is waited for.
  torch::Tensor owner = real_view(tensor).resolve_neg().contiguous().cpu();
  view.parts.push_back(tensor_as_part(name, owner));
  view.owners.push_back(std::move(owner));
}

ErrorInfo does_not_fit(const std::string& name, const std::string& why) {
  return {ErrorCode::kBadInput, "the training state does not fit this model: " + name, why,
          "resume with the model and optimizer that wrote it"};
}

std::string shape_text(checkpoint::DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = std::string(checkpoint::dtype_name(dtype)) + "[";
  for (const std::int64_t extent : shape) text += (text.back() == '[' ? "" : ",") + std::to_string(extent);
  return text + "]";
}

/// A checked state, ready to be swapped in.
struct Incoming {
  struct Optimizer {
    TrainedBy trained;
    std::vector<std::pair<torch::Tensor, std::unique_ptr<torch::optim::OptimizerParamState>>> fields;
    std::vector<OptimizerField> options;
    std::vector<double> rates;
    unsigned scheduler_steps = 0;
  };
  std::vector<std::pair<torch::Tensor, const StatePart*>>
      values;  ///< parameters and buffers, and what they get
  std::vector<Optimizer> optimizers;
  std::vector<std::pair<const UserPart*, const StatePart*>> user;
};

/// Takes the parts of an incoming state by name and says where it differs from the model.
class Check {
 public:
  Check(TrainingModel& model, std::span<const StatePart> parts, Pieces* pieces = nullptr,
        const PartBytes& bytes_of = {})
      : model_(model), parts_(parts), pieces_(pieces), bytes_of_(bytes_of) {}

  /// What optimizers keep for parameters, and nothing else.
  Result<Incoming> run_fields() {
    if (auto fits = take_names(); !fits) return fits.error();
    for (const TrainedBy& trained : model_.optimizers()) {
      incoming_.optimizers.push_back({trained, {}, {}, {}, 0});
      for (const NamedTensor& parameter : model_.parameters()) {
        if (auto fits = optimizer_state(incoming_.optimizers.back(), parameter); !fits) return fits.error();
      }
    }
    if (!left_.empty()) return does_not_fit(std::string(left_.begin()->first), "this model has no such part");
    return std::move(incoming_);
  }

  Result<Incoming> run() {
    if (auto fits = take_names(); !fits) return fits.error();
    for (const auto& group : {model_.parameters(), model_.buffers()}) {
      for (const NamedTensor& item : group) {
        const auto found = value(item.name, item.tensor);
        if (!found) return found.error();
        incoming_.values.emplace_back(item.tensor, *found);
      }
    }
    for (const TrainedBy& trained : model_.optimizers()) {
      if (auto fits = optimizer(trained); !fits) return fits.error();
    }
    for (const UserPart& part : model_.setup().state.parts()) {
      const auto found = value(kUserPrefix + part.name, part.any_size ? torch::Tensor() : part.read());
      if (!found) return found.error();
      incoming_.user.emplace_back(&part, *found);
    }
    if (!left_.empty()) return does_not_fit(std::string(left_.begin()->first), "this model has no such part");
    return std::move(incoming_);
  }

 private:
  Result<void> take_names() {
    for (const StatePart& part : parts_) {
      if (!left_.emplace(part.name, &part).second) return does_not_fit(part.name, "the state has it twice");
      if (!holds_together(part)) return does_not_fit(part.name, "its bytes are not what its shape needs");
    }
    return {};
  }

  /// The part called `name`, which is then no longer left over, or null.
  const StatePart* take(const std::string& name) {
    const auto found = left_.find(name);
    if (found == left_.end()) return nullptr;
    const StatePart* part = found->second;
    left_.erase(found);
    return part;
  }

  static bool holds_together(const StatePart& part) {
    std::size_t size = checkpoint::dtype_bytes(part.dtype);
    for (const std::int64_t extent : part.shape) size *= static_cast<std::size_t>(extent);
    return size == part.bytes.size() && has_type(part);
  }

  /// The part called `name`, which must be like `current`; bytes of any length where that is undefined.
  Result<const StatePart*> value(const std::string& name, const torch::Tensor& current) {
    const StatePart* found = take(name);
    if (!found) return does_not_fit(name, "the state has no such part");
    if (!current.defined()) return found;
    const torch::Tensor plain = real_view(current);
    const std::vector<std::int64_t> shape = plain.sizes().vec();
    const checkpoint::DType dtype = dtype_of(name, plain);
    if (found->shape != shape || found->dtype != dtype) {
      return does_not_fit(name, "the state has " + shape_text(found->dtype, found->shape) + ", the model " +
                                    shape_text(dtype, shape));
    }
    return found;
  }

  Result<void> optimizer(const TrainedBy& trained) {
    incoming_.optimizers.push_back({trained, {}, {}, {}, 0});
    Incoming::Optimizer& to = incoming_.optimizers.back();
    for (const NamedTensor& parameter : model_.parameters()) {
      if (auto fits = optimizer_state(to, parameter); !fits) return fits;
    }
    if (auto fits = options(to); !fits) return fits;
    if (auto fits = rates(to); !fits) return fits;
    return scheduler(to);
  }

  Result<void> optimizer_state(Incoming::Optimizer& to, const NamedTensor& parameter) {
    const std::string prefix = Names(to.trained).field(parameter.name, "");
    const torch::Tensor plain = real_view(parameter.tensor);
    std::vector<OptimizerField> fields;
    bool is_elsewhere = false;
    for (auto at = left_.lower_bound(prefix); at != left_.end() && at->first.starts_with(prefix);
         at = left_.erase(at)) {
      const StatePart& field = *at->second;
      const bool scalar = field.shape.empty();
      const bool like_parameter =
          field.shape == plain.sizes().vec() && field.dtype == dtype_of(parameter.name, plain);
      if (!scalar && !like_parameter) {
        return does_not_fit(field.name, "its shape and type are not the parameter's");
      }
      const std::string name = field.name.substr(prefix.size());
      const bool in_pieces = pieces_ != nullptr && name != "step";
      const torch::Tensor whole = tensor_of(with_bytes(field, bytes_of_));
      torch::Tensor own = in_pieces ? pieces_->piece(parameter.tensor, whole) : whole.clone();
      is_elsewhere = is_elsewhere || !own.defined();
      if (is_elsewhere) continue;
      if (like_parameter) own = own.to(parameter.tensor.device());
      if (like_parameter && parameter.tensor.is_complex()) own = torch::view_as_complex(own);
      fields.push_back({name, std::move(own)});
    }
    if (is_elsewhere) fields.clear();
    auto state = make_optimizer_state(*to.trained.optimizer, fields);
    if (!state) return does_not_fit(prefix, state.error().message());
    to.fields.emplace_back(parameter.tensor, *std::move(state));
    return {};
  }

  Result<void> options(Incoming::Optimizer& to) {
    for (const OptimizerField& option : optimizer_options(*to.trained.optimizer)) {
      const auto found = value(Names(to.trained).option(option.name), option.tensor);
      if (!found) return found.error();
      to.options.push_back({option.name, tensor_of(with_bytes(**found, bytes_of_)).clone()});
    }
    return {};
  }

  Result<void> rates(Incoming::Optimizer& to) {
    const std::size_t groups = to.trained.optimizer->param_groups().size();
    const std::string name = Names(to.trained).learning_rates();
    const StatePart* found = take(name);
    if (!found || found->dtype != checkpoint::DType::kF64 || found->bytes.size() != groups * sizeof(double)) {
      return does_not_fit(name, "the state has not one learning rate for each parameter group");
    }
    to.rates.resize(groups);
    std::memcpy(to.rates.data(), with_bytes(*found, bytes_of_).bytes.data(), found->bytes.size());
    return {};
  }

  Result<void> scheduler(Incoming::Optimizer& to) {
    if (to.trained.scheduler == nullptr) return {};
    const std::string name = Names(to.trained).scheduler_steps();
    const StatePart* found = take(name);
    std::int64_t steps = -1;
    if (found && found->dtype == checkpoint::DType::kI64 && found->bytes.size() == sizeof steps) {
      std::memcpy(&steps, with_bytes(*found, bytes_of_).bytes.data(), sizeof steps);
    }
    if (steps < 0) return does_not_fit(name, "the state has no count of scheduler steps");
    to.scheduler_steps = static_cast<unsigned>(steps);
    return {};
  }

  TrainingModel& model_;
  std::span<const StatePart> parts_;
  Pieces* pieces_;
  const PartBytes& bytes_of_;
  std::map<std::string_view, const StatePart*> left_;
  Incoming incoming_;
};

}  // namespace

torch::Tensor part_as_tensor(const StatePart& part) {
  return tensor_of(part);
}

StatePart tensor_as_part(const std::string& name, const torch::Tensor& tensor) {
  return {name,
          dtype_of(name, tensor),
          tensor.sizes().vec(),
          {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}};
}

void TrainState::each_part(const Part& part) const {
  each_part(part, [&](const TrainedBy& trained) {
    each_field(
        trained, [](std::size_t) { return true; }, part);
  });
}

std::string TrainState::field_name(const TrainedBy& trained, const std::string& parameter,
                                   const std::string& field) {
  return Names(trained).field(parameter, field);
}

void TrainState::each_part(const Part& part, const std::function<void(const TrainedBy&)>& fields) const {
  for (const NamedTensor& item : model_.parameters()) part(item.name, item.tensor);
  for (const NamedTensor& item : model_.buffers()) part(item.name, item.tensor);
  for (const TrainedBy& trained : model_.optimizers()) {
    const Names names(trained);
    fields(trained);
    for (const OptimizerField& option : optimizer_options(*trained.optimizer))
      part(names.option(option.name), option.tensor);
    part(names.learning_rates(), torch::tensor(learning_rates(*trained.optimizer), torch::kFloat64));
    if (trained.scheduler == nullptr) continue;
    part(names.scheduler_steps(),
         torch::tensor(static_cast<std::int64_t>(scheduler_steps(*trained.scheduler)), torch::kInt64));
  }
  for (const UserPart& one : model_.setup().state.parts()) part(kUserPrefix + one.name, one.read());
}

void TrainState::each_field(const TrainedBy& trained, const std::function<bool(std::size_t)>& wanted,
                            const Part& part) const {
  const std::vector<NamedTensor> parameters = model_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!wanted(i)) continue;
    for (const OptimizerField& field : train::optimizer_fields(*trained.optimizer, parameters[i].tensor))
      part(Names(trained).field(parameters[i].name, field.name), field.tensor);
  }
}

StateView TrainState::view() const {
  StateView view;
  each_part([&](const std::string& name, const torch::Tensor& tensor) { add(view, name, tensor); });
  return view;
}

StateView TrainState::weights() const {
  StateView view;
  for (const auto& items : {model_.parameters(), model_.buffers()}) {
    for (const NamedTensor& item : items) add(view, item.name, item.tensor);
  }
  for (const UserPart& one : model_.setup().state.parts()) {
    const std::string name = kUserPrefix + one.name;
    if (name == kAveragedSteps || name.starts_with(kAveragedPrefix)) add(view, name, one.read());
  }
  return view;
}

PieceHashes TrainState::prove(int piece) const {
  PieceWalk walk(piece);
  each_part([&](const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor plain = real_view(tensor);
    torch::Tensor host;
    walk.part(name, plain.nbytes(), [&](std::size_t begin, std::size_t end) {
      const torch::Tensor bytes = plain.contiguous().view({-1}).view(torch::kUInt8);
      host = bytes.slice(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)).cpu();
      return std::span(static_cast<const std::byte*>(host.data_ptr()), host.nbytes());
    });
  });
  return walk.finish();
}

StateView TrainState::optimizer_fields(const std::function<bool(std::size_t)>& wanted) const {
  StateView view;
  for (const TrainedBy& trained : model_.optimizers()) {
    each_field(trained, wanted,
               [&](const std::string& name, const torch::Tensor& tensor) { add(view, name, tensor); });
  }
  return view;
}

Result<void> TrainState::add_optimizer_fields(std::span<const StatePart> parts) {
  Result<Incoming> checked = Check(model_, parts).run_fields();
  if (!checked) return checked.error();
  for (auto& [trained, fields, options, rates, steps] : checked->optimizers) {
    for (auto& [parameter, state] : fields) {
      if (state != nullptr) set_param_state(*trained.optimizer, parameter, std::move(state));
    }
  }
  return {};
}

void TrainState::step_schedulers(std::span<const StatePart> like) {
  for (const TrainedBy& trained : model_.optimizers()) {
    if (trained.scheduler == nullptr) continue;
    const auto part = std::find_if(like.begin(), like.end(), [&](const StatePart& one) {
      return one.name == Names(trained).scheduler_steps();
    });
    std::int64_t steps = 0;
    if (part != like.end() && part->bytes.size() == sizeof steps)
      std::memcpy(&steps, part->bytes.data(), sizeof steps);
    while (static_cast<std::int64_t>(scheduler_steps(*trained.scheduler)) < steps) trained.scheduler->step();
  }
}

Result<void> TrainState::install(std::span<const StatePart> parts, Pieces* pieces,
                                 const PartBytes& bytes_of) {
  Result<Incoming> checked = Check(model_, parts, pieces, bytes_of).run();
  if (!checked) return checked.error();
  Incoming& incoming = *checked;
  const torch::NoGradGuard no_grad;
  for (auto& [tensor, part] : incoming.values) {
    const torch::Tensor value = tensor_of(with_bytes(*part, bytes_of));
    if (pieces == nullptr || !pieces->set(tensor, value)) real_view(tensor).copy_(value);
  }
  for (auto& [trained, fields, options, rates, steps] : incoming.optimizers) {
    for (auto& [parameter, state] : fields) set_param_state(*trained.optimizer, parameter, std::move(state));
    set_optimizer_options(*trained.optimizer, options);
    set_learning_rates(*trained.optimizer, rates);
    if (trained.scheduler != nullptr) scheduler_steps(*trained.scheduler) = steps;
  }
  for (auto& [user, part] : incoming.user) user->write(tensor_of(with_bytes(*part, bytes_of)));
  return {};
}

}  // namespace troupe::train
