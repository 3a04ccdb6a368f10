/// A space: fields of a struct of yours, and what each is drawn from.
///
///   tune::Space<Digits> space{
///       {&Digits::lr, tune::log_uniform(1e-4, 1e-1)},
///       {&Digits::kind, tune::choice({"sgd", "adam"})},
///       {&Digits::momentum, tune::uniform(0, 0.99), [](const Digits& job) { return job.kind == "sgd"; }}, //
///       if so
///       {&Digits::decay, [](const Digits& job) { return job.lr / 100; }},                    // a function
///       of others {tune::field(&Digits::schedule, &Schedule::warmup), tune::integer(0, 500)},
///       {tune::field<&train::TrainOptions::micro_batch>(), tune::choice({16, 32})}};         // an option
///
/// A field that is not the struct's or TrainOptions', or that its domain does not fit, does not compile.
/// Fields are set in the order of the list: functions and conditions see the struct with those before them.
/// Not thread-safe while it is made, and constant afterwards.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/tune/domain.hpp"
#include "runtime/config/field.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
struct TrainOptions;
}

namespace troupe::tune {

using troupe::field;
using troupe::Field;
using troupe::name_of;
using troupe::name_of_field;

namespace detail {

using config::field_in;

template <class At, class Job>
concept FieldIn = requires(At at) {
  field_in<Job>(at);
};

/// What a field of a space is: of a Job, or an option of how it trains.
template <class Job, class At>
struct Place {};
template <class Job, FieldIn<Job> At>
struct Place<Job, At> {
  using Type = std::remove_reference_t<decltype(field_in<Job>(std::declval<At>()).in(std::declval<Job&>()))>;
  static constexpr bool kIsOption = false;
};
template <class Job, class F>
struct Place<Job, Field<train::TrainOptions, F>> {
  using Type = F;
  static constexpr bool kIsOption = true;
};
template <class At, class Job>
concept HasPlace = requires {
  typename Place<Job, At>::Type;
};
template <class Job, class At>
using FieldType = typename Place<Job, At>::Type;

template <class F, class Of>
inline constexpr bool kFits = false;
template <class F>
inline constexpr bool kFits<F, Real> = std::floating_point<F>;
template <class F>
inline constexpr bool kFits<F, Whole> = std::integral<F> && !std::same_as<F, bool>;
template <class F, class T>
inline constexpr bool kFits<F, Among<T>> = Holds<F, T>;

}  // namespace detail

/// A domain whose values fit the field `At` of a Job, or of TrainOptions.
template <class Of, class Job, class At>
concept Fits = detail::HasPlace<At, Job> && detail::kFits<detail::FieldType<Job, At>, Of>;
/// A function of a Job whose result fits that field.
template <class Of, class Job, class At>
concept Computes = detail::HasPlace<At, Job> && std::invocable<Of, const Job&> &&
    std::convertible_to<std::invoke_result_t<Of, const Job&>, detail::FieldType<Job, At>>;

/// One line of a space.
template <class Job>
class Dimension {
 public:
  using Condition = std::function<bool(const Job&)>;

  /// `when` is false: the trial keeps what the job has, and its config has no such setting. Throws BadConfig
  /// for values that the field's type cannot hold.
  template <class At, Fits<Job, At> Of>
  Dimension(At at, Of of, Condition when = {}) : when_(std::move(when)) {
    bind(std::move(at));
    parameter_.domain = std::move(of.domain);
    parameter_.conditional = when_ != nullptr;
    using F = detail::FieldType<Job, At>;
    if constexpr (std::is_arithmetic_v<F> && !std::same_as<F, bool>) {
      using Limits = std::numeric_limits<F>;
      check_holds(parameter_, static_cast<double>(Limits::lowest()), static_cast<double>(Limits::max()));
    }
  }
  /// Computed from the job with all fields before it set.
  template <class At, Computes<Job, At> Of>
  Dimension(At at, Of compute) {
    bind(std::move(at));
    compute_ = [compute = std::move(compute)](const Job& job) {
      return detail::to_value(static_cast<detail::FieldType<Job, At>>(compute(job)));
    };
  }

 private:
  template <class>
  friend class Space;

  template <class At>
  void bind(At at) {
    using F = detail::FieldType<Job, At>;
    is_option_ = detail::Place<Job, At>::kIsOption;
    if constexpr (detail::Place<Job, At>::kIsOption) {
      parameter_.name = std::move(at.name);
      in_ = [in = std::move(at.in)](Job&, train::TrainOptions* options) {
        return static_cast<void*>(options != nullptr ? &in(*options) : nullptr);
      };
    } else {
      auto field = detail::field_in<Job>(std::move(at));
      parameter_.name = std::move(field.name);
      in_ = [in = std::move(field.in)](Job& job, train::TrainOptions*) {
        return static_cast<void*>(&in(job));
      };
    }
    get_ = [in = in_](Job& job, train::TrainOptions* options) {
      return detail::to_value(*static_cast<F*>(in(job, options)));
    };
    set_ = [in = in_](Job& job, train::TrainOptions* options, const Value& value) -> std::optional<Value> {
      F field{};
      if (!detail::from_value(value, field)) return std::nullopt;
      if (void* place = in(job, options)) *static_cast<F*>(place) = field;
      return detail::to_value(field);
    };
  }

  Parameter parameter_;
  bool is_option_ = false;  ///< of TrainOptions
  Condition when_;
  std::function<void*(Job&, train::TrainOptions*)> in_;  ///< null: an option, and there are none to set
  std::function<Value(Job&, train::TrainOptions*)> get_;
  /// What the field has then; none if it cannot hold the value.
  std::function<std::optional<Value>(Job&, train::TrainOptions*, const Value&)> set_;
  std::function<Value(const Job&)> compute_;
};

/// A config that no trial can have: a function or condition of the space threw, or a value does not fit.
struct BadTrial : BadConfig {
  BadTrial(const std::string& field, std::string why, Config so_far)
      : BadConfig("tune: the trial's " + field + " cannot be set", std::move(why),
                  "look at the space's functions and conditions: each value must fit its field"),
        config(std::move(so_far)) {}
  Config config;  ///< as far as it came
};

/// A trial's config, as the struct and as a list.
template <class Job>
struct Sample {
  Job job;
  Config config;
};

template <class Job>
class Space {
 public:
  /// Gives a parameter's value: a search's Search::suggest for one trial.
  using Suggest = std::function<Value(const Parameter&)>;

  Space() = default;
  /// Throws BadConfig: see check(parameters).
  Space(std::initializer_list<Dimension<Job>> dimensions)
      : dimensions_(dimensions) {  // NOLINT: implicit on purpose
    for (const auto& dimension : dimensions_) {
      if (!dimension.compute_) parameters_.push_back(dimension.parameter_);
    }
    check(parameters_);
  }

  bool empty() const { return dimensions_.empty(); }
  /// Those that are drawn, in order: without the functions of others.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// "lr log_uniform(0.0001, 0.1), decay computed": two sweeps of one space have the same.
  std::string to_text() const {
    std::string text;
    for (const auto& each : dimensions_) {
      text += (text.empty() ? "" : ", ") + each.parameter_.name + " " +
              (each.compute_ ? "computed" : tune::to_text(each.parameter_.domain)) +
              (each.when_ ? " if" : "");
    }
    return text;
  }

  /// `base` with every field of the space set. Throws BadTrial, and what `suggest` throws.
  Sample<Job> sample(const Job& base, const Suggest& suggest) const {
    return make(base, nullptr, [&](const Parameter& parameter, const Config&) { return suggest(parameter); });
  }
  /// `base` with the fields that `config` has, and `options`, if any; functions are computed again, what a
  /// condition refuses is left out. Throws BadTrial, also for a config that lacks a setting or has one of
  /// another type.
  Sample<Job> apply(const Job& base, const Config& config, train::TrainOptions* options = nullptr) const {
    return make(base, options, [&](const Parameter& parameter, const Config& so_far) {
      const Value* value = config.find(parameter.name);
      if (!value) throw BadTrial(parameter.name, "the config has no such setting", so_far);
      return *value;
    });
  }
  /// The config of a job and options that have their fields set already. REQUIRES: options, if the space
  /// names one of theirs.
  Config config_of(const Job& job, train::TrainOptions* options = nullptr) const {
    return make(job, options,
                [&](const Parameter& parameter, const Config&) {
                  return value_in(job, options, parameter.name);
                })
        .config;
  }
  /// The names of its fields that are TrainOptions'.
  std::vector<std::string> options() const {
    std::vector<std::string> names;
    for (const auto& dimension : dimensions_) {
      if (dimension.is_option_) names.push_back(dimension.parameter_.name);
    }
    return names;
  }

 private:
  Value value_in(Job job, train::TrainOptions* options, const std::string& name) const {
    for (const auto& dimension : dimensions_) {
      if (dimension.parameter_.name == name) return dimension.get_(job, options);
    }
    return {};
  }

  /// What `of_users` gives; what it throws is this trial's alone.
  template <class Call>
  static auto guarded(const std::string& field, const Config& so_far, Call of_users) {
    try {
      return of_users();
    } catch (const std::exception& thrown) {
      throw BadTrial(field, std::string("its function threw: ") + thrown.what(), so_far);
    } catch (...) {
      throw BadTrial(field, "its function threw something that is no std::exception", so_far);
    }
  }

  template <class Give>
  Sample<Job> make(const Job& base, train::TrainOptions* options, const Give& give) const {
    Sample<Job> made{base, {}};
    for (const auto& dimension : dimensions_) {
      const std::string& name = dimension.parameter_.name;
      if (dimension.when_ && !guarded(name, made.config, [&] { return dimension.when_(made.job); })) continue;
      const Value value = dimension.compute_
                              ? guarded(name, made.config, [&] { return dimension.compute_(made.job); })
                              : give(dimension.parameter_, made.config);
      const auto held = dimension.set_(made.job, options, value);
      if (!held) throw BadTrial(name, "it is " + tune::to_text(value), made.config);
      made.config.settings.push_back({name, *held});
    }
    return made;
  }

  std::vector<Dimension<Job>> dimensions_;
  std::vector<Parameter> parameters_;
};

}  // namespace troupe::tune
