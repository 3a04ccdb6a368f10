#include "actors/ddp/optimizer_snapshot.hpp"

#include <torch/torch.h>

#include <sstream>
#include <utility>

#include "actors/ddp/torch_compat.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

const char* kind_of(torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<optim::SGD*>(&optimizer)) return "SGD";
  if (dynamic_cast<optim::Adam*>(&optimizer)) return "Adam";
  if (dynamic_cast<optim::AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<optim::RMSprop*>(&optimizer)) return "RMSprop";
  if (dynamic_cast<optim::Adagrad*>(&optimizer)) return "Adagrad";
  throw BadConfig("cannot take the optimizer's state", "it is none of SGD, Adam, AdamW, RMSprop and Adagrad",
                  "make it anew on every rank");
}

std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

}  // namespace

std::vector<torch::Tensor*> OptimizerSnapshot::tensors() {
  std::vector<torch::Tensor*> all{&rates};
  for (OptimizerField& option : options) all.push_back(&option.tensor);
  for (auto& of_one : fields) {
    for (OptimizerField& field : of_one) all.push_back(&field.tensor);
  }
  return all;
}

std::vector<Fact> facts_of(torch::optim::Optimizer& optimizer) {
  std::vector<Fact> facts{{"optimizer", kind_of(optimizer)}};
  std::size_t index = 0;
  for (auto& group : optimizer.param_groups()) {
    facts.push_back({"parameters of a group", std::to_string(group.params().size())});
    for (const torch::Tensor& tensor : group.params())
      facts.push_back(fact_of("the optimizer's tensor", {std::to_string(index++), tensor}));
  }
  return facts;
}

OptimizerSnapshot snapshot_of(torch::optim::Optimizer& optimizer) {
  OptimizerSnapshot snapshot;
  for (const torch::Tensor& parameter : parameters_of(optimizer))
    snapshot.fields.push_back(optimizer_fields(optimizer, parameter));
  snapshot.options = optimizer_options(optimizer);
  snapshot.rates = torch::tensor(learning_rates(optimizer), torch::kFloat64);
  return snapshot;
}

void install(torch::optim::Optimizer& optimizer, const OptimizerSnapshot& snapshot) {
  const std::vector<torch::Tensor> parameters = parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    set_param_state(optimizer, parameters[i], make_optimizer_state(optimizer, snapshot.fields[i]).value());
  set_optimizer_options(optimizer, snapshot.options);
  const auto* rates = snapshot.rates.data_ptr<double>();
  set_learning_rates(optimizer, {rates, rates + snapshot.rates.numel()});
}

/// Words: of each parameter how many fields; of each field its name, dtype, dimensions and their sizes.
std::string text_of(const OptimizerSnapshot& snapshot) {
  std::ostringstream text;
  for (const auto& of_one : snapshot.fields) {
    text << of_one.size() << ' ';
    for (const OptimizerField& field : of_one) {
      text << field.name << ' ' << static_cast<int>(field.tensor.scalar_type()) << ' ' << field.tensor.dim()
           << ' ';
      for (const std::int64_t size : field.tensor.sizes()) text << size << ' ';
    }
  }
  return text.str();
}

OptimizerSnapshot snapshot_for(torch::optim::Optimizer& like, const std::string& text) {
  std::istringstream words(text);
  const auto refuse = [](std::string why) {
    throw BadInput({ErrorCode::kBadInput,
                    "cannot take an optimizer's state",
                    std::move(why),
                    "give the state of an optimizer of these parameters",
                    {},
                    {}});
  };
  OptimizerSnapshot snapshot = snapshot_of(like);
  const std::vector<torch::Tensor> parameters = parameters_of(like);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto& of_one = snapshot.fields[index];
    of_one.clear();
    std::size_t count = 0;
    for (words >> count; words && count > 0; --count) {
      OptimizerField field;
      int dtype = 0;
      std::size_t dimensions = 0;
      words >> field.name >> dtype >> dimensions;
      std::vector<std::int64_t> sizes;
      for (std::int64_t size = 0; sizes.size() < dimensions && words >> size;) sizes.push_back(size);
      if (!words) break;
      const auto type = static_cast<torch::ScalarType>(dtype);
      const bool fits = field.name == "step" ? type == torch::kInt64 && dimensions == 0
                                             : (torch::isFloatingType(type) || torch::isComplexType(type)) &&
                                                   parameters[index].sizes() == sizes;
      if (!fits) refuse("its field " + field.name + " does not fit parameter " + std::to_string(index));
      field.tensor = torch::empty(sizes, type);
      of_one.push_back(std::move(field));
    }
  }
  if (!words) refuse("its description is cut off");
  return snapshot;
}

}  // namespace troupe::train
