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

}  // namespace troupe::train
