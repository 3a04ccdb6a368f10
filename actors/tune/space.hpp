/// A space: fields of a struct of yours, and what each is drawn from.
///
///   tune::Space<Digits> space{
///       {&Digits::lr, tune::log_uniform(1e-4, 1e-1)},
///       {&Digits::kind, tune::choice({"sgd", "adam"})},
///       {&Digits::momentum, tune::uniform(0, 0.99), [](const Digits& job) { return job.kind == "sgd"; }}, //
///       if so
///       {&Digits::decay, [](const Digits& job) { return job.lr / 100; }},                    // a function
///       of others {tune::field(&Digits::schedule, &Schedule::warmup), tune::integer(0, 500)}};
///
/// A field that is not the struct's, or that its domain does not fit, does not compile. Fields are set in the
/// order of the list: functions and conditions see those before them. Not thread-safe while it is made, and
/// constant afterwards.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/tune/domain.hpp"
#include "runtime/config/field.hpp"
#include "runtime/core/error.hpp"

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
template <class Job, class At>
using FieldType =
    std::remove_reference_t<decltype(field_in<Job>(std::declval<At>()).in(std::declval<Job&>()))>;

template <class F, class Of>
inline constexpr bool kFits = false;
template <class F>
inline constexpr bool kFits<F, Real> = std::floating_point<F>;
template <class F>
inline constexpr bool kFits<F, Whole> = std::integral<F> && !std::same_as<F, bool>;
template <class F, class T>
inline constexpr bool kFits<F, Among<T>> = Holds<F, T>;

}  // namespace detail

/// A domain whose values fit the field `At` of a Job.
template <class Of, class Job, class At>
concept Fits = detail::FieldIn<At, Job> && detail::kFits<detail::FieldType<Job, At>, Of>;
/// A function of a Job whose result fits that field.
template <class Of, class Job, class At>
concept Computes = detail::FieldIn<At, Job> && std::invocable<Of, const Job&> &&
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
    bind(detail::field_in<Job>(std::move(at)));
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
    auto field = detail::field_in<Job>(std::move(at));
    compute_ = [in = field.in, compute = std::move(compute)](Job& job) { in(job) = compute(job); };
    bind(std::move(field));
  }

 private:
  template <class>
  friend class Space;

  template <class F>
  void bind(Field<Job, F> field) {
    parameter_.name = std::move(field.name);
    get_ = [in = field.in](Job& job) { return detail::to_value(in(job)); };
    set_ = [in = field.in](Job& job, const Value& value) { return detail::from_value(value, in(job)); };
  }

  Parameter parameter_;
  Condition when_;
  std::function<Value(Job&)> get_;
  std::function<bool(Job&, const Value&)> set_;
  std::function<void(Job&)> compute_;
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
    return make(base, [&](const Parameter& parameter, const Config&) { return suggest(parameter); });
  }
  /// `base` with the fields that `config` has; functions are computed again, what a condition refuses is left
  /// out. Throws BadTrial, also for a config that lacks a setting or has one of another type.
  Sample<Job> apply(const Job& base, const Config& config) const {
    return make(base, [&](const Parameter& parameter, const Config& so_far) {
      const Value* value = config.find(parameter.name);
      if (!value) throw BadTrial(parameter.name, "the config has no such setting", so_far);
      return *value;
    });
  }
  /// The config of a job that has its fields set already.
  Config config_of(const Job& job) const {
    return make(job, [&](const Parameter& parameter, const Config&) { return value_in(job, parameter.name); })
        .config;
  }

 private:
  Value value_in(Job job, const std::string& name) const {
    for (const auto& dimension : dimensions_) {
      if (dimension.parameter_.name == name) return dimension.get_(job);
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
  Sample<Job> make(const Job& base, const Give& give) const {
    Sample<Job> made{base, {}};
    for (const auto& dimension : dimensions_) {
      const std::string& name = dimension.parameter_.name;
      if (dimension.when_ && !guarded(name, made.config, [&] { return dimension.when_(made.job); })) continue;
      if (dimension.compute_) {
        guarded(name, made.config, [&] { dimension.compute_(made.job); });
      } else {
        const Value value = give(dimension.parameter_, made.config);
        if (!dimension.set_(made.job, value)) {
          throw BadTrial(name, "it is " + tune::to_text(value), made.config);
        }
      }
      made.config.settings.push_back({name, dimension.get_(made.job)});
    }
    return made;
  }

  std::vector<Dimension<Job>> dimensions_;
  std::vector<Parameter> parameters_;
};

}  // namespace troupe::tune
