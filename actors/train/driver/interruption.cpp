#include "actors/train/driver/interruption.hpp"

namespace troupe::train {

void Interruption::add(const std::string& cause, bool fault, Instant now) {
  if (!now_) {
    now_ = State{cause, fault, false, now, now};
    return;
  }
  now_->cause += "; " + cause;
  now_->fault = now_->fault || fault;
}

void Interruption::member_died(const std::string& what, bool unexpected) {
  if (!now_) return;
  if (unexpected) now_->cause = now_->explained ? now_->cause + "; " + what : what;
  now_->explained = true;
}

void Interruption::member_left(Instant now) {
  if (now_) now_->left = now;
}

std::optional<Recovered> Interruption::end(Generation generation, int trainers, Instant now) {
  if (!now_) return std::nullopt;
  Recovered told{generation, now_->cause, now_->fault, now_->detected, now_->left, now, trainers};
  now_.reset();
  return told;
}

}  // namespace troupe::train
