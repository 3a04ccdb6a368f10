/// PyTorch's GradScaler: keeps the gradients of a small dtype from vanishing, and leaves out a step with inf
/// or NaN, on every rank alike.
///
///   troupe::train::GradScaler scaler({}, group);
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);  // optional, before clipping
///   scaler.step(optimizer);
///   scaler.update();
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>

#include "collectives/process_group.hpp"

namespace troupe::train {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int growth_interval = 2000;  ///< steps without inf or NaN until the scale grows
  bool enabled = true;         ///< false: scale() and unscale_() do nothing, step() steps
  double max_scale = std::numeric_limits<float>::max();  ///< does not grow beyond
};

/// Throws BadConfig for options that make no sense.
void check(const GradScalerOptions& options);

/// The scale and its rule of growth, without a user: the trainer keeps one in its state.
struct LossScale {
  float scale = 65536;     ///< as in PyTorch, whose numbers it has to give
  int growth_tracker = 0;  ///< steps without inf or NaN since it grew or shrank

  double inverse() const { return static_cast<double>(static_cast<float>(1.0 / static_cast<double>(scale))); }
  /// After a step that was or was not left out.
  void update(const GradScalerOptions& options, bool left_out);
};

/// Misuse throws BadConfig: unscale_() or step() twice for an optimizer before update(), either of them or
/// update() before scale(), update() before unscale_() or step(), step() without any gradient, gradients in
/// float16. A step() without any gradient counts as none: after another backward it may be called again. Not
/// thread-safe.
class GradScaler {
 public:
  /// `group`: whose ranks agree on what to leave out; every one makes the same calls. Null: this rank alone,
  /// which is enough where all have the same gradients.
  explicit GradScaler(const GradScalerOptions& options = {},
                      std::shared_ptr<collectives::ProcessGroup> group = nullptr);

  torch::Tensor scale(const torch::Tensor& loss);
  /// Divides the optimizer's gradients by the scale, in place.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// unscale_(), unless it was called; then the optimizer's step, unless a gradient is inf or NaN on some
  /// rank. Returns whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// After the steps of an iteration: a smaller scale if one was left out, a larger one after growth_interval
  /// without; or `scale`.
  void update(std::optional<double> scale = {});

  double get_scale() const { return options_.enabled ? scale_.scale : 1; }
  bool is_enabled() const { return options_.enabled; }

  /// For a checkpoint.
  const LossScale& state() const { return scale_; }
  /// Throws BadConfig for what is no state.
  void load(const LossScale& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OfOptimizer {
    Stage stage = Stage::kReady;
    bool found_inf = false;
    int without_gradient = -1;  ///< a rank that has none for it; -1: all have some
  };
  void check_scaled(const char* call) const;

  GradScalerOptions options_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  LossScale scale_;
  bool scaled_ = false;                                                         ///< scale() was called
  std::unordered_map<const torch::optim::Optimizer*, OfOptimizer> optimizers_;  ///< since the last update()
};

}  // namespace troupe::train
