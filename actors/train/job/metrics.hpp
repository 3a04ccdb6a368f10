/// Figures beside loss and accuracy, for the Leaf of a job's evaluate() or loss(): exact over any number of
/// trainers, as all of a Leaf's are.
///
///     torch::Tensor evaluate(Net& net, const data::Batch& batch, train::Leaf& at) const {
///       const auto logits = net->forward(batch.input);
///       train::count_top_k(at, logits, batch.target, 5);          // test/top5
///       train::count_confusion(at, logits, batch.target, 10);     // test/precision, test/recall, test/f1
///       return torch::nn::functional::cross_entropy(logits, batch.target);
///     }
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "actors/train/job/leaf.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// "top<k>": the share of samples whose class is among the k with the highest scores. `scores` [N, classes],
/// `target` [N].
inline void count_top_k(Leaf& at, const torch::Tensor& scores, const torch::Tensor& target, std::int64_t k) {
  if (scores.dim() != 2 || k < 1 || k > scores.size(1))
    throw BadConfig("cannot count the " + std::to_string(k) + " highest scores",
                    "scores are " + c10::str(scores.sizes()), "give [samples, classes], and 1 to classes");
  const torch::Tensor best = std::get<1>(scores.topk(k, 1));
  at.count("top" + std::to_string(k), best.eq(target.unsqueeze(1)).sum(),
           static_cast<double>(target.size(0)));
}

/// How often class i was taken for class j: "precision", "recall" and "f1" of each class, and their means
/// over classes (a class that never was, or never was predicted, counts as 0), and RunResult::confusion.
/// `predicted`: classes [N], or scores [N, classes].
inline void count_confusion(Leaf& at, const torch::Tensor& predicted, const torch::Tensor& target,
                            std::int64_t classes, const std::string& name = {}) {
  const torch::Tensor was = target.to(torch::kCPU, torch::kLong);
  const torch::Tensor of =
      (predicted.dim() == 2 ? predicted.argmax(1) : predicted).to(torch::kCPU, torch::kLong);
  if (of.sizes() != was.sizes())
    throw BadConfig("cannot count a confusion",
                    "targets are " + c10::str(was.sizes()) + ", and predictions " + c10::str(of.sizes()),
                    "give a class of each sample, [N], for both");
  const torch::Tensor places = was * classes + of;
  if (places.numel() > 0 &&
      (of.max().item<std::int64_t>() >= classes || was.max().item<std::int64_t>() >= classes ||
       of.min().item<std::int64_t>() < 0 || was.min().item<std::int64_t>() < 0))
    throw BadConfig("cannot count a confusion of " + std::to_string(classes) + " classes",
                    "a class is none of 0 to " + std::to_string(classes - 1), "give as many as there are");
  const torch::Tensor counts = places.bincount({}, classes * classes).to(torch::kFloat64);
  const auto* begin = counts.data_ptr<double>();
  at.add({name, 0, 0, FigureKind::kConfusion, {begin, begin + counts.numel()}});
}

/// "perplexity": exp of the mean of what is lost a token. `loss`: its sum over `tokens`.
inline void count_perplexity(Leaf& at, const torch::Tensor& loss, double tokens) {
  at.add({"perplexity", loss.item<double>(), tokens, FigureKind::kExponential, {}});
}

/// "auroc": the area under the ROC curve, of scores that are rounded to `ranges` equal ranges of 0 to 1, as
/// torchmetrics' BinaryAUROC(thresholds=...). `probability` [N] that a sample is positive; `target` [N], 0 or
/// 1 (or booleans). Of several classes: one call each, with a name.
inline void count_auroc(Leaf& at, const torch::Tensor& probability, const torch::Tensor& target,
                        std::int64_t ranges = 200, const std::string& name = "auroc") {
  const torch::Tensor score = probability.detach().to(torch::kCPU, torch::kFloat64).flatten();
  const torch::Tensor was = target.to(torch::kCPU, torch::kLong).flatten();
  if (score.sizes() != was.sizes() || ranges < 2)
    throw BadConfig(
        "cannot count an AUROC in " + std::to_string(ranges) + " ranges",
        "targets are " + c10::str(target.sizes()) + ", and probabilities " + c10::str(probability.sizes()),
        "give one of each sample, [N], for both, and at least 2 ranges");
  if (!score.ge(0).logical_and(score.le(1)).all().item<bool>() ||
      !was.ge(0).logical_and(was.le(1)).all().item<bool>())
    throw BadConfig("cannot count an AUROC", "a probability is not in 0 to 1, or a target not 0 or 1",
                    "give sigmoid(logits), or a column of softmax(logits), and 1 for what is positive");
  const torch::Tensor range = (score * static_cast<double>(ranges)).to(torch::kLong).clamp_max(ranges - 1);
  const torch::Tensor counts = (was * ranges + range).bincount({}, 2 * ranges).to(torch::kFloat64);
  const auto* begin = counts.data_ptr<double>();
  at.add({name, 0, 0, FigureKind::kArea, {begin, begin + counts.numel()}});
}

/// "mse", "mae", "rmse" and "r2" of numbers, of any shape.
inline void count_regression(Leaf& at, const torch::Tensor& predicted, const torch::Tensor& target) {
  if (predicted.sizes() != target.sizes())
    throw BadConfig(
        "cannot count a regression's errors",
        "targets are " + c10::str(target.sizes()) + ", and predictions " + c10::str(predicted.sizes()),
        "give the same shape for both");
  const torch::Tensor was = target.detach().to(torch::kFloat64);
  const torch::Tensor error = predicted.detach().to(torch::kFloat64) - was;
  const auto values = static_cast<double>(was.numel());
  const auto squares = error.square().sum().item<double>();
  at.count("mse", squares, values);
  at.count("mae", error.abs().sum().item<double>(), values);
  at.add({"rmse", squares, values, FigureKind::kRoot, {}});
  at.add({"r2",
          0,
          0,
          FigureKind::kR2,
          {values, was.sum().item<double>(), was.square().sum().item<double>(), squares}});
}

}  // namespace troupe::train
