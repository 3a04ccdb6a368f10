// A generator and a discriminator that train in turns, on digits: several modules and optimizers in one job.
#include <cstdio>
#include <troupe/train.hpp>

using namespace troupe;

struct Gan {
  struct Nets {
    torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  };
  double lr = 2e-4;
  std::int64_t noise = 32;

  Nets setup(train::Setup& s) const {
    using namespace torch::nn;
    Nets nets;
    nets.generator =
        s.module("generator", Sequential(Linear(noise, 256), ReLU(), Linear(256, 28 * 28), Sigmoid()));
    nets.discriminator = s.module(
        "discriminator",
        Sequential(Linear(28 * 28, 256), LeakyReLU(LeakyReLUOptions().negative_slope(0.2)), Linear(256, 1)));
    const auto adam = torch::optim::AdamOptions(lr).betas({0.5, 0.999});
    s.optimizer<torch::optim::Adam>("generator", nets.generator->parameters(), adam);
    s.optimizer<torch::optim::Adam>("discriminator", nets.discriminator->parameters(), adam);
    return nets;
  }

  // Even steps teach the discriminator, odd ones the generator.
  static bool judges(std::int64_t step) { return step % 2 == 0; }

  torch::Tensor loss(Nets& nets, const data::Batch& batch, train::Leaf& at) const {
    const auto made = nets.generator->forward(torch::randn({batch.size(), noise}));
    if (!judges(at.step)) {
      const auto verdict = nets.discriminator->forward(made);
      at.count("fooled", (verdict > 0).sum(), static_cast<double>(batch.size()));
      return cost(verdict, true);
    }
    const auto real = nets.discriminator->forward(batch.input.flatten(1));
    const auto fake = nets.discriminator->forward(made.detach());
    at.count("caught", (fake < 0).sum(), static_cast<double>(batch.size()));
    return cost(real, true) + cost(fake, false);
  }

  void apply(train::Apply& a) const { a.step(judges(a.step_number) ? "discriminator" : "generator"); }

  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 6000 : 100});
  }

  static torch::Tensor cost(const torch::Tensor& verdict, bool real) {
    return torch::binary_cross_entropy_with_logits(
        verdict, real ? torch::ones_like(verdict) : torch::zeros_like(verdict));
  }
};

int main(int argc, char** argv) try {
  Gan job;
  train::TrainOptions options{.logical_ranks = 2,
                              .micro_batch = 50,
                              .epochs = 2,
                              .trainers = 2,
                              .seed = 7,
                              .evaluate = false,
                              .find_unused_parameters = true};
  configure(argc, argv, {job, options}, "Trains a generator of digits");
  auto session = init(argc, argv);
  const auto result = train::run(session, job, options);
  // The trained generator, in this program.
  train::Setup setup;
  auto generator = result.load(job.setup(setup).generator, "generator");
  std::printf("mean of 100 images that it makes: %.3f\n",
              generator->forward(torch::randn({100, job.noise})).mean().item<double>());
  return result.exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "gan: %s\n", error.what());
  return 1;
}
