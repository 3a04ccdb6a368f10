/// The thread of a group that moves everything while no thread of the program waits, so that a rank that
/// computes keeps nobody waiting, sums go on behind a backward, and an abort of another host is seen.
///
/// Whoever waits serves itself, and faster, so the thread sleeps for as long. It looks a thousand times a
/// second while operations are in flight, and else wakes for what comes over a connection and, within a host,
/// for a launch.

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
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw_error(io_error("cannot make an eventfd", errno, "raise ulimit -n"));
  server_ = start_quiet_thread([this] { serve(); });
}

void Engine::wake_server() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

/// An operation has begun: it is looked after.
void Engine::note_launch() {
  moved_ = true;
  entry_->open();
  if (dozes_.load(std::memory_order_relaxed) && dozes_.exchange(false)) wake_server();
}

void Engine::serve() {
  const bool within_host = layout_.hosts() == 1;
  std::vector<pollfd> watched;
  const auto was_busy = [&] { return clock_.now() - served_at_ < kBusyFor; };
  while (!stops_) {
    dozes_.store(within_host);  // before the look: what is launched after it wakes this thread
    int slice = within_host && was_busy() ? kBusySlice : kIdleSlice;
    watched.assign(1, {wake_.get(), POLLIN, 0});
    if (waiting_.load(std::memory_order_relaxed) == 0) {
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
        if (region_aborted(region_.abort_word())) {
          tell_other_machines();
          return;
        }
        float_mode_.apply();
        try {
          while (advance() || take_unasked()) {
            moved_ = true;
            served_at_ = clock_.now();
            if (waiting_.load(std::memory_order_relaxed) != 0) break;
          }
        } catch (const Error&) {
          return;  // it is in the abort word, and others know
        }
        if (is_busy() || was_busy()) slice = kBusySlice;
        watched.push_back({sockets_.get(), POLLIN, 0});
      }
    }
    if (slice == kBusySlice) dozes_.store(false);
    ::poll(watched.data(), watched.size(), slice);
    if ((watched.front().revents & POLLIN) == 0) continue;
    std::uint64_t woken = 0;
    (void)!::read(wake_.get(), &woken, sizeof woken);
    served_at_ = clock_.now();
  }
}

}  // namespace troupe::collectives
