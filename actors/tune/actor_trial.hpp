/// Trials that are actors of the user's, for what is no training of a Net:
///
///     struct Pendulum {
///       explicit Pendulum(Settings of);
///       troupe::report::Metrics step();        // one epoch, and what it came to: {{"reward", 12.5}}
///                                              // (or std::optional of it; none: the trial is over)
///       troupe::wire::Bytes save();            // both or none: Pbt, HyperBand, MedianStopping need them
///       void load(troupe::wire::Bytes state);
///     };
///     auto best = tune::run_actors<Pendulum>(session, Settings{}, {.space = ..., .metric = "reward", ...});
///
/// Each is in a process of its own.
#pragma once

#include <algorithm>
#include <concepts>
#include <map>
#include <string>
#include <utility>

#include "actors/train/engine/state_parts.hpp"
#include "actors/tune/function_trial.hpp"
#include "actors/tune/trial_run.hpp"

namespace troupe::tune {

namespace detail {
inline std::optional<report::Metrics> metrics_of(std::optional<report::Metrics> stepped) {
  return stepped;
}
/// Throws what the function threw.
inline std::optional<report::Metrics> metrics_of(FunctionStep stepped) {
  if (stepped.thrown) throw_error(*std::move(stepped.thrown));
  return std::move(stepped.metrics);
}
}  // namespace detail

template <class T, class Job>
concept TrialActor = std::constructible_from<T, Job> && requires(T actor) {
  detail::metrics_of(actor.step());
};
template <class T>
concept Saves = requires(T actor, wire::Bytes state) {
  { actor.save() } -> std::same_as<wire::Bytes>;
  actor.load(std::move(state));
};

/// Its end() is waited for where its trial ends, and not where it is paused or fails.
template <class T>
concept Ends = requires(T actor) {
  actor.end();
};

struct ActorTrialOptions {
  int epochs = 1;  ///< steps, at most
  double cpus = 0;
  double gpus = 0;
  std::string label{};  ///< of its process: "trial 3"
  std::int64_t memory = 0;
  std::map<std::string, double> resources{};
  std::map<std::string, std::string> labels{};
};

template <class T, class Job>
requires TrialActor<T, Job>
class ActorTrial final : public TrialRun {
 public:
  ActorTrial(const Session& session, const Job& job, const ActorTrialOptions& options,
             const train::Snapshot* from)
      : session_(session), epochs_(options.epochs) {
    if (from != nullptr) {
      epoch_ = static_cast<int>(from->place.step);
      state_ = from->state;
    }
    spawned_ = session.spawn_async<T>({.num_cpus = std::max(options.cpus, 0.0),
                                       .num_gpus = options.gpus,
                                       .memory = options.memory,
                                       .resources = options.resources,
                                       .labels = options.labels,
                                       .isolated = true,
                                       .label = options.label},
                                      job);
  }
  ~ActorTrial() override {
    if (actor_) {
      session_.kill(*actor_, "its trial has ended");
    } else if (spawned_.valid()) {
      spawned_.cancel();
      try {  // it may have been there, and nobody had looked
        session_.kill(spawned_.answer(), "its trial has ended");
      } catch (const std::exception&) {
      }
    }
  }

  bool has_begun() const override { return actor_.has_value(); }
  std::optional<report::Event> next_event() override {
    if (over_) return std::nullopt;
    if (!actor_) {
      if (!spawned_.ready()) return std::nullopt;
      actor_ = spawned_.answer();
      if (state_) {
        load();
      } else {
        begin_step();
      }
    }
    if (loaded_.valid()) {
      if (!loaded_.ready()) return std::nullopt;
      std::exchange(loaded_, {}).answer();
      begin_step();
    }
    if (is_ending()) {
      over_ = (!last_.valid() || last_.ready()) && (!ended_.valid() || ended_.ready());
      return std::nullopt;
    }
    if (!stepped_.valid() || !stepped_.ready()) return std::nullopt;
    std::optional<report::Metrics> stepped = detail::metrics_of(std::exchange(stepped_, {}).answer());
    if (!stepped) {
      stop();
      return std::nullopt;
    }
    report::EpochDone done;
    done.metrics = *std::move(stepped);
    done.epoch = ++epoch_;
    done.global_step = epoch_;
    metrics_ = done.metrics;
    if (epoch_ >= epochs_) stop();
    return done;
  }
  bool is_over() const override { return over_; }
  train::RunResult wait() override {
    train::RunResult result;
    if (!actor_) return result;
    // Of an actor that saves nothing its last figures are all there is to compare.
    result.state_hash = train::hash_of_bytes(last_.valid() ? last_.answer() : wire::encode(metrics_));
    result.steps = epoch_;
    result.metrics = metrics_;
    return result;
  }
  train::Snapshot snapshot() override {
    wire::Bytes state;
    if constexpr (Saves<T>) state = actor_->template call<&T::save>().get(kMostSave);
    return snapshot_of(std::move(state));
  }
  void go_on() override {
    if (!over_ && !is_ending() && !stepped_.valid()) begin_step();
  }
  /// Over when its last state is there, and it has ended.
  void stop() override {
    if (over_ || is_ending()) return;
    if constexpr (Saves<T>) {
      if (actor_) last_ = actor_->template call<&T::save>();
    }
    if constexpr (Ends<T>) {
      if (actor_) ended_ = actor_->template call<&T::end>();
    }
    over_ = !is_ending();
  }

 private:
  /// The whole sweep waits so long.
  static constexpr Duration kMostSave = std::chrono::seconds(60);

  train::Snapshot snapshot_of(wire::Bytes state) const {
    train::Snapshot snapshot;
    snapshot.place.step = epoch_;
    snapshot.metrics = metrics_;
    snapshot.place.hash = train::hash_of_bytes(state);
    snapshot.state = std::make_shared<const wire::Bytes>(std::move(state));
    return snapshot;
  }
  bool is_ending() const { return last_.valid() || ended_.valid(); }
  void begin_step() { stepped_ = actor_->template call<&T::step>(); }
  void load() {
    if constexpr (Saves<T>) {
      loaded_ = actor_->template call<&T::load>(wire::Bytes(*std::exchange(state_, nullptr)));
    } else {
      throw BadConfig("the trial cannot go on from a state", "its actor has no save() and load()",
                      "give it both, or take a scheduler that neither pauses nor copies");
    }
  }

  const Session session_;
  int epochs_;
  int epoch_ = 0;
  bool over_ = false;
  report::Metrics metrics_;
  std::shared_ptr<const wire::Bytes> state_;  ///< to begin from
  Future<ActorHandle<T>> spawned_;
  std::optional<ActorHandle<T>> actor_;
  Future<void> loaded_;
  Future<std::decay_t<decltype(std::declval<T&>().step())>> stepped_;
  Future<wire::Bytes> last_;  ///< the state that it ends with
  Future<void> ended_;
};

}  // namespace troupe::tune
