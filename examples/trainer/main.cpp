// What the examples of Transformers' Trainer and of Accelerate do (run_glue.py, nlp_example.py): a classifier
// of sentences is trained with a warm-up, clipping and averaged weights, evaluated within epochs, stopped
// when it gets no better, and asked what it thinks of each sentence of the test set.
#include <cstdio>
#include <filesystem>
#include <troupe/train.hpp>

namespace nn = torch::nn;

constexpr std::int64_t kWords = 100;
constexpr std::int64_t kLength = 24;

/// Which of two kinds of words a sentence has more of: words below 20 praise, those from 80 on complain.
struct Reviews {
  std::int64_t first, count;
  std::int64_t size() const { return count; }
  troupe::data::Sample get(std::int64_t index, troupe::data::Random&) const {
    troupe::SeededRandom random(static_cast<std::uint64_t>(first + index));
    std::vector<std::int64_t> words(kLength);
    int praise = 0;
    for (auto& word : words) {
      word = static_cast<std::int64_t>(random.below(kWords));
      praise += word < 20 ? 1 : word >= 80 ? -1 : 0;
    }
    return {{"input", torch::tensor(words)}, {"target", std::int64_t{praise > 0 ? 1 : 0}}};
  }
};

struct ClassifierImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    return output(torch::tanh(hidden(embedding(words).mean(1))));
  }
  nn::Embedding embedding = register_module("embedding", nn::Embedding(kWords, 32));
  nn::Linear hidden = register_module("hidden", nn::Linear(32, 32));
  nn::Linear output = register_module("output", nn::Linear(32, 2));
};
TORCH_MODULE(Classifier);

struct Reviewing {
  double lr = 0.01;
  double clip = 1;
  std::int64_t warmup_steps = 20;

  Classifier model() const { return Classifier(); }
  auto optimizer(Classifier& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(lr).weight_decay(0.01));
  }
  auto scheduler(torch::optim::AdamW& optimizer) const {
    return troupe::train::linear(optimizer, {.warmup_steps = warmup_steps});
  }
  troupe::train::Ema ema() const { return {.decay = 0.95}; }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return nn::functional::cross_entropy(output, batch.target);
  }
  void apply(troupe::train::Apply& a) const {
    a.clip_grad_norm(clip);                             // step/gradient_norm in the logs
    if (a.step_number % 50 == 0) a.count_parameters();  // step/parameter_norm/...
    a.step();
  }
  torch::Tensor evaluate(Classifier& net, const troupe::data::Batch& batch, troupe::train::Leaf& at) const {
    const torch::Tensor said = net->forward(batch.input);
    troupe::train::count_top_k(at, said, batch.target, 1);
    troupe::train::count_confusion(at, said, batch.target, 2);  // precision, recall, f1
    troupe::train::count_auroc(at, said.softmax(1).select(1, 1), batch.target);
    return nn::functional::cross_entropy(said, batch.target);
  }
  static constexpr bool kHasValidation = true;
  Reviews dataset(troupe::data::Split split) const {
    using troupe::data::Split;
    if (split == Split::kTrain) return {0, 4000};
    return split == Split::kValidation ? Reviews{10'000, 500} : Reviews{20'000, 500};
  }
};

int main(int argc, char** argv) try {
  Reviewing job;
  troupe::train::TrainOptions options{.logical_ranks = 2,
                                      .micro_batch = 16,
                                      .epochs = 8,
                                      .trainers = 2,
                                      .seed = 7,
                                      .evaluate_every = 50,
                                      .checkpoint_folder = "reviews",
                                      .stop_early = {.metric = "validation/loss", .patience = 4},
                                      .keep_best = "validation/f1"};
  troupe::configure(argc, argv, {job, options}, "Trains a classifier of sentences");
  auto session = troupe::init(argc, argv);
  options.on_event = [](const troupe::report::Event& event) {  // a callback
    const auto* saved = std::get_if<troupe::report::Checkpointed>(&event);
    if (saved == nullptr) return;
    std::printf("saved %s\n", std::filesystem::path(saved->path).filename().c_str());
    std::fflush(stdout);  // in a pipe, too, it comes between the lines that the run shows
  };
  const auto result = troupe::train::run(session, job, options);

  const auto figures = troupe::train::evaluate(session, job, result.best_checkpoint, options);
  const torch::Tensor scores = troupe::train::predict(session, job, result.best_checkpoint);
  std::printf("the best: f1 %.3f, AUROC %.3f; of %ld sentences %ld praise\n", figures.at("test/f1"),
              figures.at("test/auroc"), static_cast<long>(scores.size(0)),
              static_cast<long>(scores.argmax(1).sum().item<std::int64_t>()));
  result.save("reviews.safetensors");
  return result.exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "trainer: %s\n", error.what());
  return 1;
}
