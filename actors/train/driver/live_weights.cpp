/// The weights of a job that trains on, for whoever asks: a trainer copies them between two steps, and the
/// copy is given out when every step in it is committed.
#include "actors/train/driver/driver_machine.hpp"
#include "actors/train/driver/train_driver.hpp"

namespace troupe::train {
namespace {

constexpr int kMostTries = 3;

ErrorInfo job_is_over() {
  return {ErrorCode::kUnavailable, "the run has ended", "its trainers copy no weights any more",
          "take its result: wait()"};
}

}  // namespace

Future<WeightCopy> TrainDriver::copy_weights() {
  WeightsAsk ask;
  const auto copy = ask.answer.future();
  weights_asks_.emplace(++last_weights_ask_, std::move(ask));
  serve_weights_asks();
  return copy;
}

void TrainDriver::serve_weights_asks() {
  for (auto at = weights_asks_.begin(); at != weights_asks_.end();)
    at = serve(at->first, at->second) ? weights_asks_.erase(at) : std::next(at);
}

/// True: it is answered.
bool TrainDriver::serve(std::uint64_t number, WeightsAsk& ask) {
  if (over_) return ask.answer.fail(job_is_over()), true;
  if (machine_ == nullptr) return false;
  if (ask.trainer && !trainers_.contains(*ask.trainer)) {  // the copy went with it
    ask.trainer.reset();
    ask.copy.reset();
  }
  if (ask.copy) {
    const bool is_void = ask.copy->lineage != machine_->lineage();
    if (!is_void && machine_->committed() < ask.copy->steps) return false;
    const auto& seat = trainers_.at(*ask.trainer);
    if (!is_void) {
      const StateDonor keeps{seat.handle.address(), ask.copy->number, names_[*ask.trainer]};
      ask.answer.set(WeightCopy{keeps, ask.copy->steps});
      return true;
    }
    seat.handle.tell<&Trainer::drop_copy>(ask.copy->number);
    ask.trainer.reset();
    ask.copy.reset();
  }
  // What nobody has trained yet is no run's weights.
  if (ask.trainer || machine_->committed() == 0) return false;
  const auto trainer = machine_->runs_with_weights();
  if (!trainer || !trainers_.contains(*trainer)) return false;
  ask.trainer = trainer;
  trainers_.at(*trainer).handle.call<&Trainer::copy_weights>().then(
      [this, number, trainer = *trainer](const Result<KeptState>& copy) {
        weights_copied(number, trainer, copy);
      });
  return false;
}

void TrainDriver::weights_copied(std::uint64_t number, ActorId trainer, const Result<KeptState>& copy) {
  const auto at = weights_asks_.find(number);
  if (at == weights_asks_.end() || at->second.trainer != trainer) return;
  WeightsAsk& ask = at->second;
  if (copy) {
    ask.copy = *copy;
    return serve_weights_asks();
  }
  ask.trainer.reset();  // another one is asked with the next event
  if (++ask.failures < kMostTries) return;
  ask.answer.fail(copy.error());
  weights_asks_.erase(at);
}

}  // namespace troupe::train
