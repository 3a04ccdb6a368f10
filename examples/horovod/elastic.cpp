// Horovod's elastic example: a loop that goes on from its last commit, here under a launcher that starts all
// ranks again when one dies. With --die-at 130 rank 1 does, at its first start.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <troupe/distributed_optimizer.hpp>

#include "batches.hpp"

using namespace troupe;

/// Once the last commit is on disk: it is written while the loop goes on.
void kill_rank_1(collectives::ProcessGroup& group, train::ElasticState& state) {
  state.flush();
  group.barrier()->wait();
  if (group.rank() == 1) std::raise(SIGKILL);
}

void run(const std::string& file, int die_at) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a rank may be killed
  torch::set_num_threads(1);
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool dies = restarts == nullptr || std::string(restarts) == "0";
  auto group = collectives::init_process_group("native");
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 4));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.04).momentum(0.9));
  int step = 0;

  train::ElasticState state(*net, sgd, {.file = file});
  state.add("step", step);
  const auto loop = [&](const std::shared_ptr<collectives::ProcessGroup>& of) {
    train::DistributedOptimizer optimizer(sgd, net->named_parameters(), of);
    if (of->rank() == 0) std::printf("begins at step %d\n", step);
    for (; step < 300; ++step) {
      if (step % 50 == 0) state.commit();
      if (step == die_at && dies) kill_rank_1(*of, state);
      const auto [x, y] = batch_of(step, of->rank());
      optimizer.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), y);
      loss.backward();
      optimizer.step();
      if (of->rank() == 0 && (step + 1) % 100 == 0)
        std::printf("step %d  loss %.6f\n", step + 1, loss.item<double>());
    }
  };
  train::run_elastic(group, state, loop, /*reset_limit=*/0);  // the launcher begins anew
}

int main(int argc, char** argv) {
  std::string file;
  int die_at = -1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--file") file = argv[i + 1];
    if (flag == "--die-at") die_at = std::atoi(argv[i + 1]);
  }
  if (argc % 2 == 0) {
    std::fputs("usage: horovod_elastic [--file COMMIT] [--die-at STEP], once a rank (README.md)\n", stderr);
    return 2;
  }
  try {
    run(file, die_at);
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "horovod_elastic: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "horovod_elastic: %s\n", error.what());
    return 1;
  }
}
