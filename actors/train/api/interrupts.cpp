#include "actors/train/api/interrupts.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <vector>

namespace troupe::train {
namespace {

std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

void on_signal(int number) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, number)) ::_exit(128 + number);
}

/// The handlers of the process, and how many Interrupts want them.
struct Handlers {
  std::mutex mutex;  ///< guards all of it
  int users = 0;
  std::vector<int> taken;

  void install() {
    first_signal = 0;
    for (const int number : {SIGINT, SIGTERM}) {
      struct sigaction before {};
      ::sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_DFL) continue;  // the program has its own way
      struct sigaction ours {};
      ours.sa_handler = on_signal;
      ::sigaction(number, &ours, nullptr);
      taken.push_back(number);
    }
  }
  void remove() {
    for (const int number : taken) {
      struct sigaction now {};
      ::sigaction(number, nullptr, &now);
      if (now.sa_handler == on_signal) std::signal(number, SIG_DFL);  // else the program took it since
    }
    taken.clear();
  }
};

Handlers& handlers() {
  static Handlers all;
  return all;
}

}  // namespace

Interrupts::Interrupts() {
  const std::lock_guard lock(handlers().mutex);
  if (handlers().users++ == 0) handlers().install();
}

Interrupts::~Interrupts() {
  const std::lock_guard lock(handlers().mutex);
  if (--handlers().users == 0) handlers().remove();
}

int Interrupts::signal() const {
  return first_signal.load();
}

}  // namespace troupe::train
