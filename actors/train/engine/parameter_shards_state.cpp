// The state of a trainer that keeps pieces of parameters: cut, installed, walked over.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/optimizer_state.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "actors/train/engine/held_shards.hpp"
#include "actors/train/engine/parameter_shards.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// All fields of an optimizer but this one have an element for each of the parameter's.
constexpr const char* kStepField = "step";
constexpr std::size_t kPlaceDigits = 12;
constexpr std::size_t kFieldsAtMost = 16;

/// What sorts the fields of a state: by optimizer, parameter and place among its fields.
std::string place_text(std::size_t optimizer, std::size_t parameters, std::size_t parameter,
                       std::size_t field) {
  std::string digits = std::to_string((optimizer * parameters + parameter) * kFieldsAtMost + field);
  return std::string(kPlaceDigits - std::min(kPlaceDigits, digits.size()), '0') + digits;
}

/// As a part has it: row-major, and a complex one as pairs of real numbers.
torch::Tensor on_host(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().resolve_neg().contiguous().cpu();
  return plain.is_complex() ? torch::view_as_real(plain.resolve_conj()) : plain;
}

collectives::Buffer bytes_of(const torch::Tensor& tensor) {
  collectives::Buffer buffer;
  buffer.data = tensor.data_ptr();
  buffer.count = tensor.nbytes();
  buffer.dtype = collectives::DType::kUInt8;
  return buffer;
}

}  // namespace

const ParameterShards::Place* ParameterShards::place_of(const torch::Tensor& parameter) const {
  const auto at = index_.find(parameter.unsafeGetTensorImpl());
  return at == index_.end() ? nullptr : &places_[at->second];
}

torch::Tensor ParameterShards::in_one_dimension(const Place& at, const torch::Tensor& whole) const {
  torch::Tensor elements = torch::empty({whole.numel()}, whole.options());
  units_[at.unit].shaped(elements, at.member).copy_(whole);
  return elements;
}

torch::Tensor ParameterShards::piece(const torch::Tensor& parameter, const torch::Tensor& whole) {
  const Place* at = place_of(parameter);
  if (at == nullptr) return whole.clone();
  const auto mine = units_[at->unit].piece(at->member, group_->leaves());
  if (mine.size == 0) return {};
  return in_one_dimension(*at, whole).narrow(0, mine.begin, mine.size).clone();
}

bool ParameterShards::set(const torch::Tensor& parameter, const torch::Tensor& value) {
  const Place* at = place_of(parameter);
  if (at == nullptr) return false;
  ShardedUnit& unit = units_[at->unit];
  const auto mine = unit.piece(at->member, group_->leaves());
  if (mine.size > 0)
    unit.kept(unit.shard(), at->member).copy_(in_one_dimension(*at, value).narrow(0, mine.begin, mine.size));
  return true;
}

void ParameterShards::cut() {
  if (cut_) return;
  const torch::NoGradGuard no_grad;
  const auto on_use = std::make_shared<const OnUse>([self = self_](const auto& uses) {
    if (self->shards != nullptr) return self->shards->use(uses);
    throw BadConfig("a sharded parameter is not there", "its trainer has ended", "use it in the job alone");
  });
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].cut(group_->leaves());
    watch_storage(units_[u].flat(), on_use, u);
  }
  cut_ = true;
  show_whole();
  for (const ReducedParameter& parameter : parameters_) cut_state(parameter.tensor);
}

void ParameterShards::cut_state(const torch::Tensor& parameter) {
  for (const TrainedBy& trained : model_.optimizers()) {
    std::vector<OptimizerField> fields = optimizer_fields(*trained.optimizer, parameter);
    if (fields.empty()) continue;
    for (OptimizerField& field : fields)
      field.tensor = field.name == kStepField ? field.tensor.clone() : piece(parameter, field.tensor);
    const bool none = std::any_of(fields.begin(), fields.end(), [](auto& f) { return !f.tensor.defined(); });
    set_param_state(*trained.optimizer, parameter,
                    none ? nullptr : make_optimizer_state(*trained.optimizer, fields).value());
  }
}

void ParameterShards::install(std::span<const StatePart> parts, const PartBytes& bytes_of) {
  if (is_used()) {
    cut();
    quiet_ = true;  // shapes and types alone are looked at
    const std::shared_ptr<void> loud(nullptr, [this](void*) { quiet_ = false; });
    return state_.install(parts, this, bytes_of).value();
  }
  if (std::exchange(cut_, false)) {
    quiet_ = true;
    for (ShardedUnit& unit : units_) unit.mend();
    quiet_ = false;
    for (const ReducedParameter& parameter : parameters_) {
      for (const TrainedBy& trained : model_.optimizers())
        set_param_state(*trained.optimizer, parameter.tensor, nullptr);
    }
  }
  state_.install(parts, nullptr, bytes_of).value();
}

/// What this rank has the first element of, of each field: its type, and a count as it is.
std::vector<std::byte> ParameterShards::fields_told() const {
  std::vector<torch::Tensor> owners;
  std::vector<StatePart> parts;
  const auto& optimizers = model_.optimizers();
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto mine = units_[places_[i].unit].piece(places_[i].member, group_->leaves());
      if (mine.begin != 0 || mine.size == 0) continue;
      const auto fields = optimizer_fields(*optimizers[o].optimizer, parameters_[i].tensor);
      TROUPE_ASSERT(fields.size() < kFieldsAtMost, "an optimizer keeps few fields");
      for (std::size_t f = 0; f < fields.size(); ++f) {
        owners.push_back(fields[f].name == kStepField
                             ? fields[f].tensor.contiguous().cpu()
                             : torch::empty({0}, torch::TensorOptions(fields[f].tensor.scalar_type())));
        parts.push_back(
            tensor_as_part(place_text(o, parameters_.size(), i, f) + fields[f].name, owners.back()));
      }
    }
  }
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
}

class ParameterShards::Walk final : public StateWalk {
 public:
  Walk(ParameterShards& of, int root) : of_(of), root_(root) {
    read_fields();
    of_.state_.each_part([this](const std::string& name, const torch::Tensor& tensor) { add(name, tensor); },
                         [this](const TrainedBy& trained) { add_fields(trained); });
  }
  const std::vector<StatePart>& parts() const override { return parts_; }
  std::span<const std::byte> bytes(std::size_t part) override {
    const Source& from = sources_[part];
    if (!from.is_cut) return {static_cast<const std::byte*>(from.tensor.data_ptr()), from.tensor.nbytes()};
    return gathered(from, parts_[part].bytes.size());
  }
  /// What `rank` gives of it (ShardedState::held).
  std::vector<HeldPart> held(int rank) const {
    std::vector<HeldPart> all;
    each_held(rank, [&](std::size_t, HeldPart one) { all.push_back(std::move(one)); });
    return all;
  }
  /// What this rank gives, in one dimension.
  StateView mine() const {
    StateView view;
    each_held(of_.group_->rank(), [&](std::size_t part, const HeldPart& held) {
      const torch::Tensor& owner =
          view.owners.emplace_back(sources_[part].tensor.contiguous().cpu().view({-1}));
      StatePart elements = elements_of(held);
      elements.bytes = {static_cast<const std::byte*>(owner.data_ptr()), elements.bytes.size()};
      view.parts.push_back(std::move(elements));
    });
    return view;
  }

 private:
  /// Of a part: all of it, or what this rank has of a parameter's elements.
  struct Source {
    bool is_cut = false;
    torch::Tensor tensor;
    Place at{};
  };
  struct Field {
    std::string name;
    checkpoint::DType dtype = checkpoint::DType::kF32;
    torch::Tensor value;  ///< of a count
  };

  /// `each(part, what the rank gives of it)`.
  template <class Each>
  void each_held(int rank, Each each) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Source& from = sources_[i];
      if (!from.is_cut) {
        if (rank == 0) each(i, HeldPart{parts_[i]});
        continue;
      }
      const ShardedUnit& unit = of_.units_[from.at.unit];
      const auto piece = unit.piece(from.at.member, of_.leaves()[static_cast<std::size_t>(rank)]);
      if (piece.size == 0) continue;
      StatePart part = parts_[i];
      const std::size_t bytes = static_cast<std::size_t>(piece.size) * checkpoint::dtype_bytes(part.dtype);
      part.bytes = {static_cast<const std::byte*>(nullptr), bytes};
      each(i, HeldPart{std::move(part), piece.begin, unit.strides(from.at.member)});
    }
  }

  void read_fields() {
    const auto group = of_.group_;
    const std::vector<std::byte> mine = of_.fields_told();
    const auto size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group->size()));
    of_.exchange(group->all_gather(std::span(&size, 1), std::span(sizes)));
    for (int rank = 0; rank < group->size(); ++rank) {
      std::vector<std::byte> told(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
      if (rank == group->rank()) told = mine;
      collectives::Buffer buffer;
      buffer.data = told.data();
      buffer.count = told.size();
      buffer.dtype = collectives::DType::kUInt8;
      of_.exchange(group->broadcast(buffer, rank));
      const auto fields = checkpoint::read_safetensors("the fields of a shard", told).value();
      for (const StatePart& one : fields.tensors) {
        const bool is_count = one.shape.empty();
        fields_[one.name.substr(0, kPlaceDigits)] = {
            one.name.substr(kPlaceDigits), one.dtype,
            is_count ? part_as_tensor(one).clone() : torch::Tensor()};
      }
    }
  }

  void add(const std::string& name, const torch::Tensor& tensor) {
    const Place* at = of_.place_of(tensor);
    if (at == nullptr) {
      Source source{false, on_host(tensor)};
      parts_.push_back(without_bytes(tensor_as_part(name, source.tensor)));
      sources_.push_back(std::move(source));
      return;
    }
    ShardedUnit& unit = of_.units_[at->unit];
    add_cut(name, *at, unit.kept(unit.shard(), at->member), type_of(unit.shard()));
  }

  void add_fields(const TrainedBy& trained) {
    const auto& optimizers = of_.model_.optimizers();
    const auto o = static_cast<std::size_t>(
        std::find_if(optimizers.begin(), optimizers.end(),
                     [&](const TrainedBy& one) { return one.optimizer == trained.optimizer; }) -
        optimizers.begin());
    for (const NamedTensor& parameter : of_.model_.parameters()) {
      const auto mine = optimizer_fields(*trained.optimizer, parameter.tensor);
      const auto known = of_.index_.find(parameter.tensor.unsafeGetTensorImpl());
      if (known == of_.index_.end()) {  // it is not trained: all trainers have what there is
        for (const OptimizerField& field : mine)
          add(TrainState::field_name(trained, parameter.name, field.name), field.tensor);
        continue;
      }
      const std::size_t i = known->second;
      for (std::size_t f = 0; f < kFieldsAtMost; ++f) {
        const auto found = fields_.find(place_text(o, of_.parameters_.size(), i, f));
        if (found == fields_.end()) break;
        const Field& field = found->second;
        const std::string name = TrainState::field_name(trained, of_.parameters_[i].name, field.name);
        if (field.value.defined()) {
          parts_.push_back(without_bytes(tensor_as_part(name, field.value)));
          sources_.push_back({false, field.value});
          continue;
        }
        const auto held =
            std::find_if(mine.begin(), mine.end(), [&](const auto& one) { return one.name == field.name; });
        add_cut(name, of_.places_[i],
                held == mine.end() ? torch::empty({0}, of_.units_[of_.places_[i].unit].flat().options())
                                   : held->tensor,
                field.dtype);
      }
    }
  }

  void add_cut(const std::string& name, const Place& at, torch::Tensor held, checkpoint::DType dtype) {
    StatePart part{name, dtype, of_.units_[at.unit].sizes(at.member), {}};
    std::size_t bytes = checkpoint::dtype_bytes(dtype);
    for (const std::int64_t extent : part.shape) bytes *= static_cast<std::size_t>(extent);
    part.bytes = {static_cast<const std::byte*>(nullptr), bytes};
    parts_.push_back(std::move(part));
    sources_.push_back({true, std::move(held), at});
  }

  static checkpoint::DType type_of(const torch::Tensor& tensor) {
    return tensor_as_part("", torch::empty({0}, torch::TensorOptions(tensor.scalar_type()))).dtype;
  }
  static StatePart without_bytes(StatePart part) {
    part.bytes = {static_cast<const std::byte*>(nullptr), part.bytes.size()};
    return part;
  }

  std::span<const std::byte> gathered(const Source& from, std::size_t bytes) {
    const torch::NoGradGuard no_grad;
    auto& group = *of_.group_;
    const ShardedUnit& unit = of_.units_[from.at.unit];
    const bool is_mine = root_ < 0 || group.rank() == root_;
    const torch::Tensor mine = from.tensor.cpu();
    std::vector<std::size_t> counts;
    std::size_t elements = 0;
    for (const auto& interval : of_.leaves()) {
      counts.push_back(static_cast<std::size_t>(unit.piece(from.at.member, interval).size));
      elements += counts.back();
    }
    const std::size_t size = elements == 0 ? 0 : bytes / elements;
    for (std::size_t& count : counts) count *= size;
    if (is_mine) memory_ = torch::empty({static_cast<std::int64_t>(elements)}, mine.options());
    if (root_ < 0) {
      of_.exchange(group.all_gather(bytes_of(mine), bytes_of(memory_), counts));
    } else if (!is_mine) {
      if (mine.numel() > 0) of_.exchange(group.send(bytes_of(mine), root_));
      return {};
    } else {
      auto* at = static_cast<std::byte*>(memory_.data_ptr());
      for (int rank = 0; rank < group.size(); ++rank) {
        const std::size_t count = counts[static_cast<std::size_t>(rank)];
        collectives::Buffer into;
        into.data = at;
        into.count = count;
        into.dtype = collectives::DType::kUInt8;
        at += count;
        if (count == 0) continue;
        if (rank == root_) {
          std::memcpy(into.data, mine.data_ptr(), count);
        } else {
          of_.exchange(group.recv(into, rank));
        }
      }
    }
    memory_ = unit.shaped(memory_, from.at.member).contiguous();  // as it is, if its elements lie in order
    return {static_cast<const std::byte*>(memory_.data_ptr()), bytes};
  }

  ParameterShards& of_;
  const int root_;
  std::map<std::string, Field> fields_;  ///< by place
  std::vector<StatePart> parts_;
  std::vector<Source> sources_;
  torch::Tensor memory_;  ///< of the part that was asked for last
};

std::unique_ptr<StateWalk> ParameterShards::walk(int root) {
  cut();
  return std::make_unique<Walk>(*this, root);
}

ShardedState ParameterShards::shards(std::function<std::unique_ptr<StateCopy>(StateView)> copy) {
  cut();
  const auto walk = std::make_shared<Walk>(*this, -1);
  ShardedState state{walk->parts(), {}, static_cast<std::size_t>(group_->rank()), {}};
  for (int rank = 0; rank < group_->size(); ++rank) state.held.push_back(walk->held(rank));
  state.copy_mine = [walk, copy = std::move(copy)] { return copy(walk->mine()); };
  return state;
}

std::vector<HeldPart> ParameterShards::held() {
  cut();
  const std::size_t weights = model_.parameters().size() + model_.buffers().size();
  std::vector<HeldPart> all;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    const auto owner = std::make_shared<torch::Tensor>(on_host(tensor));
    all.push_back({tensor_as_part(name, *owner), 0, {}, all.size() < weights, true, owner});
  };
  const auto add_cut = [&](const std::string& name, const Place& at, const torch::Tensor& mine) {
    const ShardedUnit& unit = units_[at.unit];
    const auto owner = std::make_shared<torch::Tensor>(mine.detach().contiguous().cpu());
    StatePart part = tensor_as_part(name, *owner);
    part.shape = unit.sizes(at.member);
    all.push_back({std::move(part), unit.piece(at.member, group_->leaves()).begin, unit.strides(at.member),
                   all.size() < weights, false, owner});
  };
  state_.each_part(
      [&](const std::string& name, const torch::Tensor& tensor) {
        const Place* at = place_of(tensor);
        if (at == nullptr) return add(name, tensor);
        add_cut(name, *at, units_[at->unit].kept(units_[at->unit].shard(), at->member));
      },
      [&](const TrainedBy& trained) {
        for (const NamedTensor& parameter : model_.parameters()) {
          const Place* at = place_of(parameter.tensor);
          for (const OptimizerField& field : optimizer_fields(*trained.optimizer, parameter.tensor)) {
            const std::string name = TrainState::field_name(trained, parameter.name, field.name);
            if (at == nullptr || field.name == kStepField) {
              add(name, field.tensor);
              all.back().is_shared = at == nullptr;
            } else {
              add_cut(name, *at, field.tensor);
            }
          }
        }
      });
  return all;
}

StateView ParameterShards::common() const {
  StateView view;
  for (const auto& tensors : {model_.parameters(), model_.buffers()}) {
    for (const NamedTensor& one : tensors) {
      if (place_of(one.tensor) != nullptr) continue;
      view.owners.push_back(one.tensor.detach().contiguous().cpu());
      view.parts.push_back(tensor_as_part(one.name, view.owners.back()));
    }
  }
  return view;
}

}  // namespace troupe::train
