// State dicts of FullyShardedDataParallel: whole, of any number of ranks, or a rank's own shards.
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/fsdp_core.hpp"
#include "actors/ddp/optimizer_state.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "actors/ddp/unit_plan.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

const char* const kLayout = "layout";

std::string shape_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << torch::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return text.str();
}

/// A copy in the host's memory.
torch::Tensor on_host(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

/// Why `state` is not of these tensors; empty: it is.
std::string difference(const StateDict& state, const StateDict& here) {
  for (const auto& item : here) {
    const torch::Tensor* there = state.find(item.key());
    if (there == nullptr || !there->defined())
      return item.key() + " is " + shape_of(item.value()) + " here and is not in the state";
    if (there->sizes() != item.value().sizes() || there->scalar_type() != item.value().scalar_type())
      return item.key() + " is " + shape_of(item.value()) + " here and " + shape_of(*there) + " in the state";
  }
  for (const auto& item : state) {
    if (!here.contains(item.key()))
      return item.key() + " is " + shape_of(item.value()) + " in the state and is not here";
  }
  return {};
}

/// By the module's names: a wrapper of PyTorch's puts "module." before each.
StateDict without_prefix(const StateDict& state, const StateDict& here) {
  const std::string prefix = "module.";
  StateDict bare;
  for (const auto& item : state) {
    if (here.contains(item.key()) || item.key().rfind(prefix, 0) != 0) return state;
    bare.insert(item.key().substr(prefix.size()), item.value());
  }
  return bare;
}

/// Throws on every rank what the root found.
void refuse_together(collectives::ProcessGroup& group, const char* what, const std::string& why, int root,
                     const char* todo) {
  const std::string told = broadcast_text(group, why, root);
  if (!told.empty()) throw BadConfig(what, told, todo);
}

void check_root(int root, const collectives::ProcessGroup& group) {
  if (root >= 0 && root < group.size()) return;
  throw BadConfig("there is no rank " + std::to_string(root),
                  "the group has " + std::to_string(group.size()) + " ranks", "give one of them as root");
}

std::string key_of_root(const std::string& name) {
  return name.empty() ? "(root)" : name;
}

/// A field of an optimizer's state, as the root tells of it.
struct ToldField {
  std::string name;
  torch::ScalarType dtype = torch::kFloat;
  bool is_counter = false;
  std::int64_t count = 0;
};

/// The fields of one unit, as `state` has them for each of its parameters. Throws BadConfig.
std::vector<ToldField> fields_of(const FlatUnit& unit, const StateDict& state) {
  const auto refuse = [](std::string why) {
    throw BadConfig("cannot load the optimizer's state", std::move(why),
                    "load what full_optimizer_state_dict() gave for this module and kind of optimizer");
  };
  std::vector<ToldField> fields;
  for (std::size_t m = 0; m < unit.members().size(); ++m) {
    const auto& [name, parameter] = unit.members()[m];
    std::size_t found = 0;
    for (const auto& item : state) {
      const std::string& key = item.key();
      if (key.rfind(name + '.', 0) != 0 || key.find('.', name.size() + 1) != std::string::npos) continue;
      const torch::Tensor& value = item.value();
      if (!value.defined()) refuse(key + " is undefined");
      ToldField field{key.substr(name.size() + 1), value.scalar_type(),
                      value.dim() == 0 && value.scalar_type() == torch::kInt64, 0};
      if (field.is_counter) field.count = value.item<std::int64_t>();
      if (!field.is_counter && value.sizes() != parameter.sizes())
        refuse(key + " is " + shape_of(value) + ", and the parameter " + shape_of(parameter));
      const auto known =
          std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == field.name; });
      if (m == 0) {
        fields.push_back(field);
      } else if (known == fields.end()) {
        refuse(key + " is there, and nothing like it for " + unit.members().front().name +
               " in the same unit");
      } else if (known->is_counter != field.is_counter || known->count != field.count ||
                 known->dtype != field.dtype) {
        refuse(key + " differs from that of " + unit.members().front().name + " in the same unit");
      }
      ++found;
    }
    if (found != fields.size())
      refuse(name + " has " + std::to_string(found) + " fields and " + unit.members().front().name +
             " in the same unit " + std::to_string(fields.size()));
  }
  return fields;
}

}  // namespace

StateDict FsdpCore::full_state_dict(int root) {
  check_idle("full_state_dict()");
  check_root(root, *group_);
  const torch::NoGradGuard no_grad;
  const bool is_root = group_->rank() == root;
  std::map<const void*, torch::Tensor> found;
  for (const FlatUnit& unit : units_) {
    const torch::Tensor all = unit.gathered(unit.shard(), root);
    for (std::size_t m = 0; is_root && m < unit.members().size(); ++m)
      found[unit.members()[m].tensor.unsafeGetTensorImpl()] = on_host(unit.part(all, m));
  }
  StateDict state;
  if (!is_root) return state;
  for (const auto& item : module_->named_parameters()) {
    const auto sharded = found.find(item.value().unsafeGetTensorImpl());
    state.insert(item.key(), sharded != found.end() ? sharded->second : on_host(item.value()));
  }
  for (const auto& item : module_->named_buffers()) {
    if (item.value().defined()) state.insert(item.key(), on_host(item.value()));
  }
  return state;
}

void FsdpCore::load_full_state_dict(const StateDict& given, int root) {
  check_idle("load_full_state_dict()");
  check_root(root, *group_);
  const torch::NoGradGuard no_grad;
  const bool is_root = group_->rank() == root;
  StateDict here = module_->named_parameters();
  for (const auto& item : module_->named_buffers()) {
    if (item.value().defined()) here.insert(item.key(), item.value());
  }
  const StateDict state = without_prefix(given, here);
  refuse_together(host_, "cannot load the state", is_root ? difference(state, here) : "", root,
                  "load the state of the same module");
  for (FlatUnit& unit : units_) {
    unit.free();
    torch::Tensor all;
    if (is_root) {
      all = unit.zeros(unit.shard().scalar_type());
      for (std::size_t m = 0; m < unit.members().size(); ++m)
        unit.part(all, m).copy_(state[unit.members()[m].name]);
    }
    unit.shard().copy_(unit.scattered(all, root, unit.shard().scalar_type()));
  }
  std::vector<torch::Tensor> whole;
  for (const NamedTensor& one : kept_whole_) {
    if (is_root) one.tensor.detach().copy_(state[one.name]);
    whole.push_back(one.tensor);
  }
  broadcast_tensors(*group_, whole, root);
}

FlatUnit* FsdpCore::unit_of(const torch::Tensor& shard) {
  const auto found = std::find_if(units_.begin(), units_.end(),
                                  [&](const auto& unit) { return unit.shard().is_same(shard); });
  return found == units_.end() ? nullptr : &*found;
}

/// The units whose shards the optimizer steps, in its order.
std::vector<FlatUnit*> FsdpCore::units_of(torch::optim::Optimizer& optimizer, const char* call) {
  check_idle(call);
  if (!steps_elementwise(optimizer)) {  // nothing is known of what it keeps
    throw BadConfig(std::string("cannot run ") + call,
                    "the optimizer is none of SGD, Adam, AdamW, RMSprop and Adagrad",
                    "use one of these, or make it anew where the job goes on");
  }
  std::vector<FlatUnit*> units;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      units.push_back(unit_of(parameter));
      if (units.back() != nullptr) continue;
      throw BadConfig(std::string("cannot run ") + call,
                      "the optimizer has a tensor that is no shard of this wrapper",
                      "make it after wrapping, over fsdp.parameters()");
    }
  }
  return units;
}

StateDict FsdpCore::full_optimizer_state_dict(torch::optim::Optimizer& optimizer, int root) {
  const std::vector<FlatUnit*> units = units_of(optimizer, "full_optimizer_state_dict()");
  check_root(root, *group_);
  const torch::NoGradGuard no_grad;
  StateDict state;
  for (const FlatUnit* unit : units) {
    for (const OptimizerField& field : optimizer_fields(optimizer, unit->shard())) {
      const bool is_counter = field.tensor.dim() == 0;
      const torch::Tensor all = is_counter ? torch::Tensor() : unit->gathered(field.tensor, root);
      for (std::size_t m = 0; group_->rank() == root && m < unit->members().size(); ++m) {
        state.insert(unit->members()[m].name + '.' + field.name,
                     on_host(is_counter ? field.tensor : unit->part(all, m)));
      }
    }
  }
  return state;
}

void FsdpCore::load_full_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state,
                                              int root) {
  const std::vector<FlatUnit*> units = units_of(optimizer, "load_full_optimizer_state_dict()");
  check_root(root, *group_);
  const torch::NoGradGuard no_grad;
  const bool is_root = group_->rank() == root;
  // Words: of each unit how many fields; of each its name, dtype, whether it is a counter, and the count.
  std::ostringstream told;
  std::string why;
  try {
    for (std::size_t u = 0; is_root && u < units.size(); ++u) {
      const std::vector<ToldField> fields = fields_of(*units[u], state);
      told << fields.size() << ' ';
      for (const ToldField& field : fields)
        told << field.name << ' ' << static_cast<int>(field.dtype) << ' ' << field.is_counter << ' '
             << field.count << ' ';
    }
  } catch (const BadConfig& error) {
    why = error.info().why;
  }
  refuse_together(host_, "cannot load the optimizer's state", why, root,
                  "load what full_optimizer_state_dict() gave for this module and kind of optimizer");
  std::istringstream words(broadcast_text(host_, told.str(), root));
  for (FlatUnit* unit : units) {
    std::vector<OptimizerField> fields;
    std::size_t count = 0;
    for (words >> count; words && count > 0; --count) {
      ToldField field;
      int dtype = 0;
      words >> field.name >> dtype >> field.is_counter >> field.count;
      field.dtype = static_cast<torch::ScalarType>(dtype);
      if (field.is_counter) {
        fields.push_back({field.name, torch::tensor(field.count, torch::kInt64)});
        continue;
      }
      torch::Tensor all;
      if (is_root) {
        all = unit->zeros(field.dtype);
        for (std::size_t m = 0; m < unit->members().size(); ++m)
          unit->part(all, m).copy_(state[unit->members()[m].name + '.' + field.name]);
      }
      fields.push_back({field.name, unit->scattered(all, root, field.dtype)});
    }
    auto made = make_optimizer_state(optimizer, fields);  // the same answer on every rank
    if (!made.ok())
      throw BadConfig("cannot load the optimizer's state", made.error().what,
                      "load it into an optimizer of the same kind");
    set_param_state(optimizer, unit->shard(), std::move(made).value());
  }
}

std::string FsdpCore::layout() const {
  std::string text =
      "rank " + std::to_string(group_->rank()) + " of " + std::to_string(group_->size()) + '\n';
  for (const FlatUnit& unit : units_) text += text_of_unit(unit.name()) + " has\n" + unit.layout();
  for (const NamedTensor& one : kept_whole_) text += one.name + ' ' + shape_of(one.tensor) + '\n';
  return text;
}

StateDict FsdpCore::local_state_dict() {
  check_idle("local_state_dict()");
  const torch::NoGradGuard no_grad;
  StateDict state;
  const std::string text = layout();
  torch::Tensor bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  state.insert(kLayout, bytes);
  for (const FlatUnit& unit : units_)
    state.insert(key_of_root(unit.name()) + " shard", on_host(unit.shard()));
  for (const NamedTensor& one : kept_whole_) state.insert(one.name + " whole", on_host(one.tensor));
  return state;
}

void FsdpCore::load_local_state_dict(const StateDict& state) {
  check_idle("load_local_state_dict()");
  const torch::NoGradGuard no_grad;
  const auto refuse = [](std::string why) {
    throw BadConfig("cannot load the shards", std::move(why),
                    "load what local_state_dict() gave on this rank for the same module, units and number of "
                    "ranks; full_state_dict() goes anywhere");
  };
  const torch::Tensor* bytes = state.find(kLayout);
  if (bytes == nullptr || bytes->scalar_type() != torch::kUInt8) refuse("the state has no layout");
  const torch::Tensor dense = bytes->contiguous();
  const std::string theirs(reinterpret_cast<const char*>(dense.data_ptr<std::uint8_t>()),
                           static_cast<std::size_t>(dense.numel()));
  std::istringstream there(theirs), here(layout());
  for (std::string its, mine; theirs != here.str();) {
    if (!std::getline(there, its)) its = "nothing more";
    if (!std::getline(here, mine)) mine = "nothing more";
    if (its != mine || (!there && !here))
      refuse("the state has '" + its + "' where this wrapper has '" + mine + "'");
  }
  StateDict expected = local_state_dict();
  if (const std::string why = difference(state, expected); !why.empty()) refuse(why);
  for (FlatUnit& unit : units_) {
    unit.free();
    unit.shard().copy_(state[key_of_root(unit.name()) + " shard"]);
  }
  for (const NamedTensor& one : kept_whole_) one.tensor.detach().copy_(state[one.name + " whole"]);
}

}  // namespace troupe::train
