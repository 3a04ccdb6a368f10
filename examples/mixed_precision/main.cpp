// Mixed precision by hand: the forward in bfloat16, the loss scaled, gradients clipped, and a step with inf
// left out on every rank.
#include <cmath>
#include <cstdio>
#include <troupe/ddp.hpp>

using namespace troupe;

/// [64, 32] inputs and their classes; other ones on every rank and step.
std::pair<torch::Tensor, torch::Tensor> batch_of(int step, int rank) {
  torch::manual_seed(1000 * step + rank);
  const torch::Tensor x = torch::randn({64, 32});
  return {x, (x.slice(1, 0, 4)).argmax(1)};
}

int main() {
  try {
    torch::set_num_threads(1);
    auto group = collectives::init_process_group("native");
    torch::manual_seed(7);
    torch::nn::Sequential net(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 4));
    train::DistributedDataParallel ddp(net, group);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.003));
    train::GradScaler scaler({.growth_interval = 100}, group);

    for (int step = 0; step < 300; ++step) {
      const auto [x, y] = batch_of(step, group->rank());
      torch::Tensor output;
      {
        const train::Autocast autocast;  // bfloat16 on the CPU
        output = ddp->forward(x);
      }
      torch::Tensor loss = torch::nn::functional::cross_entropy(output.to(torch::kFloat32), y);
      if (step == 150 && group->rank() == 0) loss = loss * INFINITY;  // as an overflow would
      optimizer.zero_grad();
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      if (group->rank() == 0 && (step % 100 == 0 || !stepped)) {
        std::printf("step %d  loss %.4f  scale %g%s\n", step, loss.item<double>(), scaler.get_scale(),
                    stepped ? "" : "  left out");
      }
    }
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "mixed_precision: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mixed_precision: %s\n", error.what());
    return 1;
  }
}
