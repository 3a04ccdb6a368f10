#include "actors/ddp/optimizer_state.hpp"

#include <torch/optim.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "actors/ddp/torch_compat.hpp"

namespace troupe::train {
namespace {

// The fields of each kind of state, in the order in which they are hashed. A field is a tensor or a counter;
// `required` says whether a state can be without it.
template <class Visit>
void visit_fields(torch::optim::SGDParamState& state, Visit&& visit) {
  visit("momentum_buffer", state.momentum_buffer(), true);
}
template <class State, class Visit>
void visit_adam_fields(State& state, Visit&& visit) {
  visit("step", state.step(), true);
  visit("exp_avg", state.exp_avg(), true);
  visit("exp_avg_sq", state.exp_avg_sq(), true);
  visit("max_exp_avg_sq", state.max_exp_avg_sq(), false);
}
template <class Visit>
void visit_fields(torch::optim::AdamParamState& state, Visit&& visit) {
  visit_adam_fields(state, visit);
}
template <class Visit>
void visit_fields(torch::optim::AdamWParamState& state, Visit&& visit) {
  visit_adam_fields(state, visit);
}
template <class Visit>
void visit_fields(torch::optim::RMSpropParamState& state, Visit&& visit) {
  visit("step", state.step(), true);
  visit("square_avg", state.square_avg(), true);
  visit("momentum_buffer", state.momentum_buffer(), false);
  visit("grad_avg", state.grad_avg(), false);
}
template <class Visit>
void visit_fields(torch::optim::AdagradParamState& state, Visit&& visit) {
  visit("step", state.step(), true);
  visit("sum", state.sum(), true);
}

// The options of each kind, but for the learning rate: one number, or the two of a tuple.
template <class Visit>
void visit_options(torch::optim::SGDOptions& options, Visit&& visit) {
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
template <class Options, class Visit>
void visit_adam_options(Options& options, Visit&& visit) {
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <class Visit>
void visit_options(torch::optim::AdamOptions& options, Visit&& visit) {
  visit_adam_options(options, visit);
}
template <class Visit>
void visit_options(torch::optim::AdamWOptions& options, Visit&& visit) {
  visit_adam_options(options, visit);
}
template <class Visit>
void visit_options(torch::optim::RMSpropOptions& options, Visit&& visit) {
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}
template <class Visit>
void visit_options(torch::optim::AdagradOptions& options, Visit&& visit) {
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

struct CollectFields {
  std::vector<OptimizerField>& fields;
  void operator()(const char* name, const torch::Tensor& tensor, bool) const {
    if (tensor.defined()) fields.push_back({name, tensor});
  }
  void operator()(const char* name, std::int64_t counter, bool) const {
    fields.push_back({name, torch::tensor(counter, torch::kInt64)});
  }
};

/// Moves fields into a state; what is left over or missing is an error.
struct FillFields {
  std::vector<OptimizerField>& fields;
  std::string& missing;

  bool take(const char* name, torch::Tensor& tensor, bool required) const {
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == name; });
    if (found == fields.end()) {
      if (required) missing = name;
      return false;
    }
    tensor = std::move(found->tensor);
    fields.erase(found);
    return true;
  }
  void operator()(const char* name, torch::Tensor& tensor, bool required) const {
    take(name, tensor, required);
  }
  void operator()(const char* name, std::int64_t& counter, bool required) const {
    torch::Tensor tensor;
    if (!take(name, tensor, required)) return;
    if (tensor.scalar_type() != torch::kInt64 || tensor.numel() != 1) {
      missing = name;
      return;
    }
    counter = tensor.item<std::int64_t>();
  }
};

using Betas = std::tuple<double, double>;

std::vector<double> numbers_of(const Betas& betas) {
  return {std::get<0>(betas), std::get<1>(betas)};
}
std::vector<double> numbers_of(double value) {
  return {value};
}
void set_numbers(Betas& betas, const double* numbers) {
  betas = {numbers[0], numbers[1]};
}
void set_numbers(double& value, const double* numbers) {
  value = *numbers;
}
void set_numbers(bool& value, const double* numbers) {
  value = *numbers != 0;
}

/// Of an optimizer of the job's own: it has what the job declares in state(), and nothing here.
struct UnknownState : torch::optim::OptimizerParamState {};
template <class Visit>
void visit_fields(UnknownState& /*state*/, Visit&& /*visit*/) {}
template <class Visit>
void visit_options(torch::optim::OptimizerOptions& /*options*/, Visit&& /*visit*/) {}

template <class State, class Options>
struct Kind {
  using type = State;
  using options = Options;
};

/// Calls `visit` with the kind of the optimizer's state.
template <class Visit>
auto with_kind(torch::optim::Optimizer& optimizer, Visit&& visit) {
  namespace optim = torch::optim;
  if (dynamic_cast<optim::SGD*>(&optimizer)) return visit(Kind<optim::SGDParamState, optim::SGDOptions>{});
  if (dynamic_cast<optim::Adam*>(&optimizer)) return visit(Kind<optim::AdamParamState, optim::AdamOptions>{});
  if (dynamic_cast<optim::AdamW*>(&optimizer))
    return visit(Kind<optim::AdamWParamState, optim::AdamWOptions>{});
  if (dynamic_cast<optim::RMSprop*>(&optimizer))
    return visit(Kind<optim::RMSpropParamState, optim::RMSpropOptions>{});
  if (dynamic_cast<optim::Adagrad*>(&optimizer))
    return visit(Kind<optim::AdagradParamState, optim::AdagradOptions>{});
  return visit(Kind<UnknownState, torch::optim::OptimizerOptions>{});
}

ErrorInfo bad_field(const std::string& name, const char* why) {
  return {ErrorCode::kBadInput,
          "the optimizer's state does not fit: field " + name + " " + why,
          {},
          "resume with the optimizer that wrote the state"};
}

}  // namespace

bool steps_elementwise(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  const std::type_info& is = typeid(optimizer);
  return is == typeid(optim::SGD) || is == typeid(optim::Adam) || is == typeid(optim::AdamW) ||
         is == typeid(optim::RMSprop) || is == typeid(optim::Adagrad);
}

std::vector<OptimizerField> optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& param) {
  return with_kind(optimizer, [&](auto kind) {
    std::vector<OptimizerField> fields;
    auto* state = find_param_state(optimizer, param);
    if (state) visit_fields(static_cast<typename decltype(kind)::type&>(*state), CollectFields{fields});
    return fields;
  });
}

Result<std::unique_ptr<torch::optim::OptimizerParamState>> make_optimizer_state(
    torch::optim::Optimizer& optimizer, const std::vector<OptimizerField>& fields) {
  using Made = Result<std::unique_ptr<torch::optim::OptimizerParamState>>;
  if (fields.empty()) return std::unique_ptr<torch::optim::OptimizerParamState>();
  return with_kind(optimizer, [&](auto kind) -> Made {
    auto state = std::make_unique<typename decltype(kind)::type>();
    std::vector<OptimizerField> left = fields;
    std::string missing;
    visit_fields(*state, FillFields{left, missing});
    if (!missing.empty()) return bad_field(missing, "is missing or no counter");
    if (!left.empty()) return bad_field(left.front().name, "is not one of this optimizer's");
    return std::unique_ptr<torch::optim::OptimizerParamState>(std::move(state));
  });
}

std::vector<OptimizerField> optimizer_options(torch::optim::Optimizer& optimizer) {
  return with_kind(optimizer, [&](auto kind) {
    using Options = typename decltype(kind)::options;
    std::vector<OptimizerField> fields;
    std::map<std::string, std::vector<double>> rows;
    std::vector<std::string> order;
    for (auto& group : optimizer.param_groups()) {
      visit_options(static_cast<Options&>(group.options()), [&](const char* name, const auto& value) {
        if (!rows.contains(name)) order.emplace_back(name);
        for (const double number : numbers_of(value)) rows[name].push_back(number);
      });
    }
    const auto groups = static_cast<std::int64_t>(optimizer.param_groups().size());
    for (const std::string& name : order)
      fields.push_back({name, torch::tensor(rows[name], torch::kFloat64).reshape({groups, -1})});
    return fields;
  });
}

void set_optimizer_options(torch::optim::Optimizer& optimizer, const std::vector<OptimizerField>& options) {
  with_kind(optimizer, [&](auto kind) {
    using Options = typename decltype(kind)::options;
    std::int64_t row = 0;
    for (auto& group : optimizer.param_groups()) {
      auto next = options.begin();
      visit_options(static_cast<Options&>(group.options()), [&](const char*, auto& value) {
        set_numbers(value, (next++)->tensor[row].data_ptr<double>());
      });
      ++row;
    }
  });
}

std::vector<double> learning_rates(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates.at(i));
}

}  // namespace troupe::train
