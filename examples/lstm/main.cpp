// Trains an LSTM on sentences of variable length, padded by the dataset's collate().
#include <cstdio>
#include <troupe/train.hpp>

namespace nn = torch::nn;

constexpr std::int64_t kWords = 20;
constexpr std::int64_t kClasses = 4;

struct ReaderImpl : nn::Module {
  nn::Embedding embedding = register_module("embedding", nn::Embedding(kWords, 16));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(16, 32).batch_first(true)));
  nn::Linear output = register_module("output", nn::Linear(32, kClasses));

  /// Tokens [N, T] and lengths [N] to logits [N, 4]: what the LSTM says at each sentence's last token.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& lengths) {
    const auto said = std::get<0>(lstm(embedding(tokens)));
    const auto last = (lengths - 1).view({-1, 1, 1}).expand({-1, 1, said.size(2)});
    return output(said.gather(1, last).squeeze(1));
  }
};
TORCH_MODULE(Reader);

struct Sentences {
  std::int64_t count;
  std::int64_t size() const { return count; }

  troupe::data::Sample get(std::int64_t index, troupe::data::Random&) const {
    // Not from the sample's Random, which draws anew each epoch: a sentence stays what it is.
    troupe::SeededRandom random(static_cast<std::uint64_t>(index + count));
    std::vector<std::int64_t> tokens(3 + random.below(38));
    std::int64_t last = 0;
    for (auto& token : tokens) {
      token = static_cast<std::int64_t>(random.below(kWords));
      if (token < kClasses) last = token;
    }
    return {{"tokens", torch::tensor(tokens)}, {"target", last}};
  }

  troupe::data::Sample collate(std::vector<troupe::data::Sample> samples) const {
    std::vector<torch::Tensor> tokens;
    std::vector<torch::Tensor> targets;
    std::vector<std::int64_t> lengths;
    for (const auto& sample : samples) {
      tokens.push_back(sample["tokens"]);
      targets.push_back(sample["target"]);
      lengths.push_back(tokens.back().size(0));
    }
    return {{"tokens", nn::utils::rnn::pad_sequence(tokens, true)},
            {"target", torch::stack(targets)},
            {"lengths", lengths}};
  }
};

struct Reading {
  double lr = 0.01;

  Reader model() const { return Reader(); }
  auto optimizer(Reader& net) const { return torch::optim::Adam(net->parameters(), lr); }
  torch::Tensor loss(Reader& net, const troupe::data::Batch& batch) const {
    return nn::functional::cross_entropy(net->forward(batch["tokens"], batch["lengths"]), batch.target);
  }
  torch::Tensor correct(Reader& net, const troupe::data::Batch& batch) const {
    return net->forward(batch["tokens"], batch["lengths"]).argmax(1).eq(batch.target);
  }
  Sentences dataset(troupe::data::Split split) const {
    return {split == troupe::data::Split::kTrain ? 8000 : 1000};
  }
};

int main(int argc, char** argv) try {
  Reading job;
  troupe::train::TrainOptions options{
      .logical_ranks = 2, .micro_batch = 32, .epochs = 3, .trainers = 2, .seed = 1};
  troupe::configure(argc, argv, {job, options}, "Trains an LSTM on sentences");
  auto session = troupe::init(argc, argv);
  return troupe::train::run(session, job, options).exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "lstm: %s\n", error.what());
  return 1;
}
