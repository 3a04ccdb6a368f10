/// The thread of a group that spans hosts: it moves everything while no thread of the program waits, so that
/// a gateway that computes keeps nobody waiting, sums go on behind a backward, and an abort of another host
/// is seen.
///
/// Whoever waits serves itself, and faster, so the thread sleeps for as long. It looks a thousand times a
/// second while operations are in flight, and else wakes for what comes over a connection.

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "collectives/native/engine.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {
namespace {

constexpr int kBusySlice = 1;   // milliseconds, where operations are in flight or were just now
constexpr int kIdleSlice = 20;  // milliseconds
constexpr Duration kBusyFor = std::chrono::milliseconds(50);

}  // namespace

void Engine::start_serving() {
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_) throw_error(io_error("cannot make an eventfd", errno, "raise ulimit -n"));
  server_ = start_quiet_thread([this] { serve(); });
}

void Engine::serve() {
  std::vector<pollfd> watched;
  while (true) {
    int slice = kIdleSlice;
    watched.assign(1, {stop_.get(), POLLIN, 0});
    if (waiting_.load(std::memory_order_relaxed) == 0) {
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
        if (region_aborted(region_.abort_word())) {
          tell_other_machines();
          return;
        }
        float_mode_.apply();
        try {
          for (bool moved = advance(); moved; moved = advance()) {
            moved_ = true;
            served_at_ = clock_.now();
            if (waiting_.load(std::memory_order_relaxed) != 0) break;
          }
        } catch (const Error&) {
          return;  // it is in the abort word, and others know
        }
        const bool busy = !ops_.empty() || oldest_transfer() != nullptr;
        if (busy || clock_.now() - served_at_ < kBusyFor) slice = kBusySlice;
        watched.push_back({sockets_.get(), POLLIN, 0});
      }
    }
    ::poll(watched.data(), watched.size(), slice);
    if ((watched.front().revents & POLLIN) != 0) return;
  }
}

}  // namespace troupe::collectives
