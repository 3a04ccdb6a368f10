#include "tests/gpu/training/loop.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "actors/checkpoint/sha256.hpp"

namespace troupe::gpu {
namespace {

double seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

void Speed::step(double loss) {
  loss_ = loss;
  last_ = Clock::now();
  if (++done_ == warm_up_) first_ = last_;
}

void Speed::print() const {
  if (!first_ || done_ <= warm_up_) throw std::runtime_error("too few steps to measure: give more epochs");
  const double from = seconds(*first_), to = seconds(last_);
  std::printf("samples_per_s %.1f\nmeasured from %.3f to %.3f\nloss %.6f\n",
              static_cast<double>((done_ - warm_up_) * samples_) / (to - from), from, to, loss_);
}

data::Batch read_all(const data::Dataset& dataset) {
  std::vector<torch::Tensor> inputs, targets;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    data::Random random({7, 0}, i);
    const data::Sample sample = dataset.get(i, random);
    inputs.push_back(data::TensorTraits<at::Tensor>::to(sample["input"]));
    targets.push_back(data::TensorTraits<at::Tensor>::to(sample["target"]));
  }
  return {torch::stack(inputs), torch::stack(targets)};
}

void print_parameters(const std::vector<torch::Tensor>& parameters, collectives::ProcessGroup* group) {
  checkpoint::Sha256 digest;
  for (const torch::Tensor& parameter : parameters) {
    const torch::Tensor values = parameter.detach().cpu().contiguous();
    digest.update({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
  }
  const std::string mine = digest.finish();
  if (group != nullptr) {
    const std::vector<char> text(mine.begin(), mine.end());
    std::vector<char> all(text.size() * static_cast<std::size_t>(group->size()));
    group->host_group().all_gather(text, all)->wait();
    for (std::size_t at = 0; at < all.size(); at += text.size()) {
      if (std::string(&all[at], text.size()) != mine)
        throw std::runtime_error("the ranks end with different parameters");
    }
    if (group->rank() != 0) return;
  }
  std::printf("state sha256 %s\n", mine.c_str());
}

int run_in_processes(int ranks, const std::function<void(int rank)>& body) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    std::fflush(stdout);
    const pid_t process = ::fork();
    if (process < 0) throw std::runtime_error("cannot fork");
    if (process == 0) {
      try {
        body(rank);
        std::fflush(stdout);
        ::_exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
    }
    processes.push_back(process);
  }
  int failed = 0;
  for (const pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace troupe::gpu
