/// The threads of simulated processes, as fibers of the simulator's one thread: what waits gives way to the
/// next event, and goes on when it is woken, when its time is over, or never.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "runtime/core/thread_floor.hpp"

namespace troupe::sim {

class World;
struct Hosted;

class Threads final : public ThreadFloor {
 public:
  explicit Threads(World& world);
  ~Threads() override;

  // ThreadFloor: of the process whose event runs.
  Instant now() override;
  void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) override;
  void wake(std::atomic<std::uint32_t>& word) override;
  std::unique_ptr<Running> start(std::function<void()> body) override;

  /// Runs `body` where it may wait; returns when it has ended, or waits.
  void run(Hosted& process, std::function<void()> body);
  /// `process` is taken down: its waits are over at once, and what was under way in run() ends.
  void drain(Hosted& process);
  bool is_drained(const Hosted& process) const { return drained_.contains(&process); }

 private:
  struct Fiber;
  class Joined;
  Fiber& make(Hosted& process, std::function<void()> body);
  void enter(Fiber& fiber);
  void resume(Fiber& fiber);
  void finish(Fiber& fiber);
  static void begin(unsigned high, unsigned low);

  World& world_;
  Fiber* current_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;  ///< their stacks can be used again
  std::map<std::atomic<std::uint32_t>*, std::vector<Fiber*>> waiting_;
  std::map<const Hosted*, Duration> drained_;  ///< how far its clock has run ahead since
};

}  // namespace troupe::sim
