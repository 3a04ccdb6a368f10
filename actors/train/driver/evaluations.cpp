#include "actors/train/driver/evaluations.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::train {

Evaluations::Evaluations(SharedConfig config) : config_(std::move(config)) {
  if (config_->resume.empty()) return;
  const CheckpointInfo& newest = config_->resume.back();
  take_up(newest.history, newest.step);
  if (config_->keep_best.empty()) return;
  find_best_file(config_->resume);
  to_keep_ = best_file_;
}

void Evaluations::find_best_file(const std::vector<CheckpointInfo>& files) {
  best_file_ = {};
  if (files.empty()) return;
  const Best kept = decode_history(files.back().history).value_or(History{}).kept;
  for (const CheckpointInfo& one : files) {
    if (one.in_memory) continue;
    const History of = decode_history(one.history).value_or(History{});
    const auto value = of.metrics.find(config_->keep_best);
    if (one.step == kept.step) {
      best_file_ = kept;
    } else if (of.evaluated == one.step && value != of.metrics.end()) {
      best_file_ = better(best_file_, one.step, value->second);
    }
  }
}

const History& Evaluations::seen(std::int64_t step) const {
  static const History kNothing;
  const auto behind = history_.upper_bound(step);
  return behind == history_.begin() ? kNothing : std::prev(behind)->second;
}

void Evaluations::begin(std::int64_t step) {
  kept_value_.reset();
  const std::int64_t last = std::max<std::int64_t>(step - 1, 0);
  done_ = {.epoch = static_cast<int>(last / config_->steps_per_epoch),
           .step = step,
           .ended = step > 0 && step % config_->steps_per_epoch == 0};
  pieces_.clear();
}

void Evaluations::add(const std::vector<PieceReport>& pieces) {
  for (const PieceReport& piece : pieces) pieces_.emplace(piece.piece, piece);
}

std::optional<JobFailed> Evaluations::sum_pieces() {
  for (std::int64_t p = 0; p < config_->pieces(); ++p) {
    const auto piece = pieces_.find(p);
    const bool test = p < config_->test_pieces;
    if (piece == pieces_.end() ||
        (config_->expected_piece && config_->expected_piece(p) != piece->second.indices_hash)) {
      return JobFailed{
          "piece " + std::to_string(test ? p : p - config_->test_pieces) + " of the " +
              (test ? "test" : "validation") + " set was " +
              (piece == pieces_.end() ? "not evaluated" : "evaluated with other samples than it has"),
          {}};
    }
    done_.count += piece->second.count;
    add_figures(test ? done_.test : done_.validation, piece->second.figures);
  }
  return std::nullopt;
}

const EpochDone& Evaluations::finish(std::vector<Figure> train) {
  done_.train = std::move(train);
  for (const auto& [set, figures] : {std::pair("train/", &done_.train), std::pair("test/", &done_.test),
                                     std::pair("validation/", &done_.validation)}) {
    for (const Figure& figure : *figures) add_metrics(done_.metrics, set, figure);
  }
  return done_;
}

std::optional<std::string> Evaluations::watch(bool stops) {
  History before = seen(done_.step - 1);
  History& now = history_[done_.step] = std::move(before);
  now.metrics = done_.metrics;
  now.evaluated = done_.step;
  if (!config_->keep_best.empty()) {
    const double* value = find_metric(config_->keep_best);
    if (value == nullptr) return std::nullopt;
    now.kept = better(now.kept, done_.step, *value);
    to_keep_ = better(to_keep_, done_.step, *value);
    kept_value_ = *value;
  }
  const StopEarly& rule = config_->stop_early;
  if (rule.metric.empty()) return std::nullopt;
  const double* value = find_metric(rule.metric);
  if (value == nullptr) return std::nullopt;
  Best& best = now.patience;
  best = observe(best, rule.metric, rule.mode, rule.min_delta, done_.step, *value);
  if (best.since < rule.patience || stops) return std::nullopt;
  const bool by_steps = config_->evaluate_every > 0;
  const std::int64_t unit = by_steps ? 1 : config_->steps_per_epoch;
  return "stopping early: " + rule.metric + " has not become better " +
         (rule.min_delta > 0 ? "by more than " + std::to_string(rule.min_delta) + " " : "") + "for " +
         std::to_string(rule.patience) + (by_steps ? " evaluations, " : " epochs, ") +
         (best.step == 0
              ? "it was never a number"
              : "the best was " + std::to_string(best.value) + (by_steps ? " after step " : " after epoch ") +
                    std::to_string(best.step / unit));
}

/// Null where the job does not have it: then it fails, but not before the checkpoint.
const double* Evaluations::find_metric(const std::string& name) {
  const auto at = done_.metrics.find(name);
  if (at != done_.metrics.end()) return &at->second;
  missing_metric_ = name;
  return nullptr;
}

std::string Evaluations::history_with(std::int64_t step, std::vector<Figure> figures) const {
  History history = seen(step);
  history.epoch_figures = std::move(figures);
  return encode_history(history);
}

void Evaluations::take_up(const std::string& history, std::int64_t step) {
  auto of = decode_history(history);
  if (!of) return;
  of->epoch_figures.clear();
  const std::int64_t at = std::min(of->evaluated, step);
  history_.insert_or_assign(at, *std::move(of));
}

void Evaluations::fall_back(std::int64_t step) {
  history_.erase(history_.upper_bound(step), history_.end());
  kept_value_.reset();
  to_keep_ = best_file_;
}

bool Evaluations::is_best(std::int64_t step) const {
  return !config_->keep_best.empty() && to_keep_.step > 0 && step == to_keep_.step;
}

void Evaluations::forget_lost_best(std::int64_t step) {
  if (to_keep_.step >= step || to_keep_.step == best_file_.step) return;
  to_keep_ = best_file_;
  // It was compared with what is lost.
  if (kept_value_ && done_.step == step) to_keep_ = better(to_keep_, step, *kept_value_);
}

Best Evaluations::better(const Best& best, std::int64_t step, double value) const {
  return observe(best, config_->keep_best, config_->keep_best_mode, 0, step, value);
}

JobFailed Evaluations::why_it_lacks(std::optional<std::int64_t> saved_at) const {
  std::string all;
  for (const auto& [known, value] : done_.metrics) all += (all.empty() ? "" : ", ") + known;
  return {
      "there is no metric '" + missing_metric_ + "': the job has " + all,
      "name one of them in stop_early or keep_best, or count it in the job's loss() or evaluate()" +
          (saved_at ? "; a run with resume goes on at step " + std::to_string(*saved_at) : std::string())};
}

StepValues Evaluations::told(std::int64_t step) const {
  const History& at = seen(step);
  return config_->tells_metrics && at.evaluated == step ? at.metrics : StepValues{};
}

std::map<std::int64_t, StepValues> Evaluations::told_from(std::int64_t step) const {
  std::map<std::int64_t, StepValues> all;
  for (auto at = history_.lower_bound(step); at != history_.end(); ++at) {
    if (auto values = told(at->first); !values.empty()) all[at->first] = std::move(values);
  }
  return all;
}

void Evaluations::forget_before(std::int64_t step) {
  const auto behind = history_.upper_bound(step);
  if (behind != history_.begin()) history_.erase(history_.begin(), std::prev(behind));
}

}  // namespace troupe::train
