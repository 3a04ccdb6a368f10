/// Trials that are plain functions of the job's fields, which report:
///
///     double objective(const Settings& of, tune::Reporter& reporter) {
///       double loss = 1;
///       for (int i = 0; i < 100; ++i) reporter.report(loss *= of.rate);  // the sweep's metric
///       return loss;                                                     // one more report
///     }
///     auto best = tune::run_function<&objective>(session, Settings{}, {.space = ..., .metric = "loss",
///     ...});
///
/// The function may return nothing, too, or all its figures as report::Metrics. Without a Reporter it reports
/// what it returns. A third parameter, `Progress& state`, is what it goes on from: a struct of the program's
/// that the codec knows. It is written down at each report, and a trial that was paused or copies another
/// begins with that one's. Each trial is in a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "actors/report/events.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "runtime/host/method.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::tune {

/// Report::report() throws it where the sweep has stopped the trial: the function ends by it, and its
/// destructors run. Not an error, so no std::exception.
struct TrialStopped {};

namespace detail {
struct Turns;
}

/// What a trial's function reports to. For the function's own thread.
class Reporter {
 public:
  /// Waits until the sweep has decided. Throws TrialStopped where it stops the trial; one that is paused, or
  /// copies another's state, ends here with its process.
  void report(report::Metrics metrics);
  /// Of the sweep's metric.
  void report(double value);

 private:
  friend class FunctionThread;
  Reporter(detail::Turns& turns, std::string metric, const std::function<void()>& before)
      : turns_(turns), metric_(std::move(metric)), before_(before) {}

  detail::Turns& turns_;
  std::string metric_;
  const std::function<void()>& before_;
};

/// A function on a thread of its own, which runs from report to report when it is told to. For one thread.
class FunctionThread {
 public:
  struct Task {
    std::function<std::optional<report::Metrics>(Reporter&)> function;  ///< what it returns is a report
    std::function<void()> before_report{};                              ///< on the function's thread
    std::string metric{};                                               ///< of reports that are one number
  };
  explicit FunctionThread(Task task) : task_(std::make_shared<const Task>(std::move(task))) {}
  /// As end(), for a second.
  ~FunctionThread();
  FunctionThread(const FunctionThread&) = delete;
  FunctionThread& operator=(const FunctionThread&) = delete;

  /// Its next report; none: it has returned. Throws what it throws.
  std::optional<report::Metrics> next();
  /// Its report() throws TrialStopped. False: it has not ended within `limit`, and is left to itself.
  bool end(Duration limit);

 private:
  std::shared_ptr<const Task> task_;
  std::shared_ptr<detail::Turns> turns_;  ///< none: it has not begun
};

namespace detail {

template <class R, class Job, class State = void>
struct FunctionShape {
  using Settings = std::remove_cvref_t<Job>;
  using Progress = std::remove_cvref_t<State>;
  static constexpr bool kReturnsNothing = std::is_void_v<R>;
  static constexpr bool kIsGood =
      (std::is_void_v<R> || std::is_arithmetic_v<R> || std::is_same_v<R, report::Metrics>)&&  //
      (!std::is_lvalue_reference_v<Job> || std::is_const_v<std::remove_reference_t<Job>>);
};
template <class F>
struct FunctionTraits;
template <class R, class Job>
struct FunctionTraits<R (*)(Job)> : FunctionShape<R, Job> {
  static constexpr bool kReports = false;
};
template <class R, class Job>
struct FunctionTraits<R (*)(Job, Reporter&)> : FunctionShape<R, Job> {
  static constexpr bool kReports = true;
};
template <class R, class Job, class State>
struct FunctionTraits<R (*)(Job, Reporter&, State&)> : FunctionShape<R, Job, State> {
  static constexpr bool kReports = true;
};

/// What a trial's actor is made from.
template <class Job>
struct FunctionJob {
  Job job;
  std::string metric;
};

/// What a step came to. The function's exception travels in it, since it is the function that threw and not
/// this class, whose name says nothing to whoever wrote the function.
struct FunctionStep {
  std::optional<report::Metrics> metrics{};  ///< none: it has returned
  std::optional<ErrorInfo> thrown{};
};

/// Of the exception that is being handled; `function` is its name.
ErrorInfo thrown_by(std::string_view function);

template <auto F>
class FunctionActor;

}  // namespace detail

/// `double f(const Job&)`, `void f(const Job&, Reporter&)`, `void f(const Job&, Reporter&, State&)`; they
/// return a number, report::Metrics or, with a Reporter, nothing.
template <auto F, class Job>
concept TrialFunction = requires {
  typename detail::FunctionTraits<decltype(F)>::Settings;
  requires std::is_same_v<typename detail::FunctionTraits<decltype(F)>::Settings, Job>;
  requires detail::FunctionTraits<decltype(F)>::kIsGood;
  requires detail::FunctionTraits<decltype(F)>::kReports ||
      !detail::FunctionTraits<decltype(F)>::kReturnsNothing;
};

namespace detail {

/// A function as a TrialActor (actor_trial.hpp).
template <auto F>
class FunctionActor {
  using Traits = FunctionTraits<decltype(F)>;
  using Job = typename Traits::Settings;
  using State = typename Traits::Progress;
  static constexpr bool kHasState = !std::is_void_v<State>;
  struct NoState {};
  struct Shared {
    Job job;
    std::conditional_t<kHasState, State, NoState> state{};
    std::mutex mutex{};
    wire::Bytes reported{};  ///< the state at the last report; guarded by `mutex`

    void keep() {
      if constexpr (kHasState) {
        wire::Bytes now = wire::encode(state);
        const std::lock_guard lock(mutex);
        reported = std::move(now);
      }
    }
  };

 public:
  explicit FunctionActor(FunctionJob<Job> of)
      : shared_(std::make_shared<Shared>(std::move(of.job))), thread_(task(shared_, std::move(of.metric))) {}

  FunctionStep step() {
    FunctionStep done;
    try {
      done.metrics = thread_.next();
    } catch (...) {
      done.thrown = thrown_by(troupe::detail::method_name<F>());
      return done;
    }
    if (!done.metrics && !reported_)
      done.thrown = ErrorInfo{ErrorCode::kTaskFailed, "the trial has no result",
                              "its function returned without a report",
                              "report to the tune::Reporter, or return a number"};
    reported_ = true;
    return done;
  }
  void end() { thread_.end(std::chrono::seconds(10)); }
  wire::Bytes save() requires kHasState {
    const std::lock_guard lock(shared_->mutex);
    return shared_->reported;
  }
  void load(wire::Bytes state) requires kHasState {
    shared_->state = wire::decode<State>(state).value();
    shared_->reported = std::move(state);
    reported_ = true;  // whoever wrote it down had reported
  }

 private:
  static FunctionThread::Task task(const std::shared_ptr<Shared>& shared, std::string metric) {
    const auto figures_of = [metric](auto&& returned) -> report::Metrics {
      if constexpr (std::is_same_v<std::decay_t<decltype(returned)>, report::Metrics>)
        return std::forward<decltype(returned)>(returned);  // a reference to metrics keeps them
      else
        return {{metric, static_cast<double>(returned)}};
    };
    return {.function = [shared, figures_of](Reporter& reporter) -> std::optional<report::Metrics> {
              const auto call = [&]() -> decltype(auto) {
                if constexpr (kHasState)
                  return F(std::as_const(shared->job), reporter, shared->state);
                else if constexpr (Traits::kReports)
                  return F(std::as_const(shared->job), reporter);
                else
                  return F(std::as_const(shared->job));
              };
              if constexpr (Traits::kReturnsNothing) {
                call();
                return std::nullopt;
              } else {
                report::Metrics last = figures_of(call());
                shared->keep();
                return last;
              }
            },
            .before_report = [shared] { shared->keep(); },
            .metric = std::move(metric)};
  }

  std::shared_ptr<Shared> shared_;
  FunctionThread thread_;
  bool reported_ = false;
};

}  // namespace detail
}  // namespace troupe::tune
