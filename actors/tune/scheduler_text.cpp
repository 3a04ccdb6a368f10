#include "actors/tune/sweep_machine.hpp"
#include "actors/tune/words.hpp"

namespace troupe::tune {
namespace {

std::string text_of(const Fifo&) {
  return "fifo";
}
std::string text_of(const Asha& s) {
  return words("asha of max_t %g, grace_period %g, reduction_factor %g, brackets %d, stop_last_trials %d",
               s.max_t, s.grace_period, s.reduction_factor, s.brackets, s.stop_last_trials);
}
std::string text_of(const HyperBand& s) {
  return words("hyperband of max_t %g, reduction_factor %g, stop_last_trials %d", s.max_t, s.reduction_factor,
               s.stop_last_trials);
}
std::string text_of(const MedianStopping& s) {
  return words("median stopping of grace_period %g, min_samples_required %d, min_time_slice %g, hard_stop %d",
               s.grace_period, s.min_samples_required, s.min_time_slice, s.hard_stop);
}
std::string text_of(const Pbt& s) {
  std::string text = words(
      "pbt of perturbation_interval %g, burn_in_period %g, quantile_fraction %g, resample_probability %g, "
      "synch %d, factors",
      s.perturbation_interval, s.burn_in_period, s.quantile_fraction, s.resample_probability, s.synch);
  for (const double factor : s.perturbation_factors) text += words(" %g", factor);
  text += ", changes";
  for (const Mutation& mutation : s.mutations) {
    text += " " + mutation.name;
    if (mutation.draw) text += " by a function";
    if (mutation.domain) text += " by " + to_text(*mutation.domain);
  }
  if (s.mutations.empty()) text += s.custom_explore ? " nothing" : " every field of the space";
  return s.custom_explore ? text + ", an explore of its own" : text;
}
std::string text_of(const PercentilePruner& s) {
  return words(
      "percentile pruner of %g, n_startup_trials %d, n_warmup_steps %d, interval_steps %d, n_min_trials %d",
      s.percentile, s.n_startup_trials, s.n_warmup_steps, s.interval_steps, s.n_min_trials);
}
std::string text_of(const MedianPruner& s) {
  return words("median pruner of n_startup_trials %d, n_warmup_steps %d, interval_steps %d, n_min_trials %d",
               s.n_startup_trials, s.n_warmup_steps, s.interval_steps, s.n_min_trials);
}
std::string text_of(const SuccessiveHalvingPruner& s) {
  return words(
      "successive halving pruner of min_resource %s, reduction_factor %d, min_early_stopping_rate %d, "
      "bootstrap_count %d",
      s.min_resource ? std::to_string(*s.min_resource).c_str() : "auto", s.reduction_factor,
      s.min_early_stopping_rate, s.bootstrap_count);
}
std::string text_of(const HyperbandPruner& s) {
  return words(
      "hyperband pruner of min_resource %d, max_resource %s, reduction_factor %d, bootstrap_count %d, study "
      "%s",
      s.min_resource, s.max_resource ? std::to_string(*s.max_resource).c_str() : "auto", s.reduction_factor,
      s.bootstrap_count, s.study_name.c_str());
}

}  // namespace

std::string to_text(const AnyScheduler& scheduler) {
  return std::visit([](const auto& one) { return text_of(one); }, scheduler);
}

std::string to_text(const AnySearch& search) {
  const auto* tpe = std::get_if<Tpe>(&search);
  if (tpe == nullptr) return "random";
  return words("tpe of n_startup_trials %d, n_ei_candidates %d, multivariate %d, group %d, constant_liar %d",
               tpe->n_startup_trials, tpe->n_ei_candidates, tpe->multivariate, tpe->group,
               tpe->constant_liar);
}

}  // namespace troupe::tune
