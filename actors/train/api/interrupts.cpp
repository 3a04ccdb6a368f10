#include "actors/train/api/interrupts.hpp"

#include <unistd.h>

#include <atomic>

namespace troupe::train {
namespace {

std::atomic<bool> in_use{false};
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

void on_signal(int number) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, number)) ::_exit(128 + number);
}

}  // namespace

Interrupts::Interrupts(bool take) {
  if (!take || in_use.exchange(true)) return;
  first_signal = 0;
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;  // the program has its own way
    struct sigaction ours {};
    ours.sa_handler = on_signal;
    ::sigaction(number, &ours, nullptr);
    taken_.push_back(number);
  }
  if (taken_.empty()) in_use = false;
}

Interrupts::~Interrupts() {
  if (taken_.empty()) return;
  for (const int number : taken_) std::signal(number, SIG_DFL);
  in_use = false;
}

int Interrupts::signal() const {
  return taken_.empty() ? 0 : first_signal.load();
}

}  // namespace troupe::train
