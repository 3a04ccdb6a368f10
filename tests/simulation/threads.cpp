#include "tests/simulation/threads.hpp"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/host/this_thread.hpp"
#include "tests/simulation/hosted.hpp"
#include "tests/simulation/world.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace troupe::sim {
namespace {

constexpr std::size_t kStackBytes = std::size_t{512} << 10;  // touched as it is used
/// What a thread of a process that is taken down may do before it has to be over.
constexpr int kLastSteps = 10'000;

/// Of the thread: which exceptions are being handled.
struct Exceptions {
  void* caught = nullptr;
  unsigned uncaught = 0;
};

Exceptions exchange_exceptions(const Exceptions& with) {
  Exceptions before;
  void* globals = abi::__cxa_get_globals();
  std::memcpy(&before, globals, sizeof before);
  std::memcpy(globals, &with, sizeof with);
  return before;
}

/// AddressSanitizer wants to know of each change of stacks.
struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};
void before_switch([[maybe_unused]] void** fake, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake, to.bottom, to.bytes);
#endif
}
void after_switch([[maybe_unused]] void* fake, [[maybe_unused]] Stack* from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, from == nullptr ? nullptr : &from->bottom,
                                  from == nullptr ? nullptr : &from->bytes);
#endif
}
/// The stack that everything else runs on.
Stack main_stack;

}  // namespace

struct Threads::Fiber {
  Fiber()
      : stack(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    TROUPE_ASSERT(stack != MAP_FAILED, "there is memory for a stack");
  }
  ~Fiber() { ::munmap(stack, kStackBytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void* stack;
  ucontext_t context{};
  ucontext_t back{};
  std::function<void()> body;
  Hosted* process = nullptr;
  bool thread = false;  ///< of Thread, and not of run()
  bool ended = true;
  std::atomic<std::uint32_t> over{0};          ///< 1 once it has ended: who joins waits for it
  std::atomic<std::uint32_t>* word = nullptr;  ///< that it waits on
  std::uint64_t wait = 0;                      ///< counts its waits
  ThisThread state;
  Exceptions exceptions;
};

class Threads::Joined final : public ThreadFloor::Running {
 public:
  Joined(Threads& threads, Fiber& fiber) : threads_(threads), fiber_(fiber) {}
  void join() override {
    if (threads_.current_ == nullptr) {  // its process is taken down
      for (int i = 0; fiber_.over == 0; ++i) {
        TROUPE_ASSERT(i < kLastSteps, "a thread of a process that ends comes to its end");
        threads_.enter(fiber_);
      }
    }
    while (fiber_.over == 0) threads_.wait(fiber_.over, 0, seconds(3600));
    threads_.idle_.push_back(&fiber_);
  }

 private:
  Threads& threads_;
  Fiber& fiber_;
};

Threads::Threads(World& world) : world_(world) {}
Threads::~Threads() = default;

Threads::Fiber& Threads::make(Hosted& process, std::function<void()> body) {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    idle_.push_back(fibers_.back().get());
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  fiber.body = std::move(body);
  fiber.process = &process;
  fiber.thread = fiber.ended = false;
  fiber.over = 0;
  fiber.state = {};
  fiber.state.gate = process.runtime.get();
  fiber.exceptions = {};
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
  ::getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Threads::begin), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  return fiber;
}

void Threads::begin(unsigned high, unsigned low) {
  auto& threads = *reinterpret_cast<Threads*>((static_cast<std::uintptr_t>(high) << 32) | low);
  Fiber& me = *threads.current_;
  after_switch(nullptr, &main_stack);
  me.body();
  me.body = nullptr;
  me.ended = true;
  threads.finish(me);
  before_switch(nullptr, main_stack);
  ::setcontext(&me.back);
}

void Threads::finish(Fiber& fiber) {
  fiber.over = 1;
  if (fiber.thread) {
    wake(fiber.over);
  } else {
    idle_.push_back(&fiber);
  }
}

/// From the thread's own stack to the fiber's, until that waits or ends.
void Threads::enter(Fiber& fiber) {
  TROUPE_ASSERT(current_ == nullptr && !fiber.ended, "one fiber runs, and none inside another");
  if (fiber.word != nullptr) {
    std::erase(waiting_[fiber.word], &fiber);
    fiber.word = nullptr;
  }
  ++fiber.wait;
  current_ = &fiber;
  const ThisThread mine = std::exchange(this_thread, fiber.state);
  const Exceptions my_exceptions = exchange_exceptions(fiber.exceptions);
  void* fake = nullptr;
  before_switch(&fake, {fiber.stack, kStackBytes});
  ::swapcontext(&fiber.back, &fiber.context);
  after_switch(fake, nullptr);
  fiber.exceptions = exchange_exceptions(my_exceptions);
  fiber.state = std::exchange(this_thread, mine);
  current_ = nullptr;
}

/// As an event of its process.
void Threads::resume(Fiber& fiber) {
  const std::uint64_t wait = ++fiber.wait;
  world_.after(*fiber.process, world_.between(microseconds(1), microseconds(50)), "~woken",
               [this, &fiber, wait] {
                 if (fiber.wait == wait && !fiber.ended) enter(fiber);
               });
}

Instant Threads::now() {
  const Hosted* process = current_ != nullptr ? current_->process : Hosted::running();
  if (process == nullptr) return world_.now();
  const auto drained = drained_.find(process);
  return process->now() + (drained == drained_.end() ? Duration{0} : drained->second);
}

void Threads::wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) {
  if (word.load() != expected || timeout <= Duration{0}) return;
  const auto drained = drained_.find(current_ != nullptr ? current_->process : Hosted::running());
  if (drained != drained_.end()) drained->second += std::clamp<Duration>(timeout, seconds(1), seconds(3600));
  if (current_ == nullptr) {
    TROUPE_ASSERT(drained != drained_.end(), "what waits runs in a fiber");
    return;
  }
  Fiber& me = *current_;
  if (drained != drained_.end() && !me.thread) return;
  me.word = &word;
  waiting_[&word].push_back(&me);
  const std::uint64_t wait = ++me.wait;
  if (timeout < seconds(3600)) {
    world_.after(*me.process, timeout, "~wait is over", [this, &me, wait] {
      if (me.wait == wait && !me.ended) enter(me);
    });
  }
  void* fake = nullptr;
  before_switch(&fake, main_stack);
  ::swapcontext(&me.context, &me.back);
  after_switch(fake, &main_stack);
}

void Threads::wake(std::atomic<std::uint32_t>& word) {
  const auto at = waiting_.extract(&word);
  if (at.empty()) return;
  for (Fiber* fiber : at.mapped()) {
    fiber->word = nullptr;
    resume(*fiber);
  }
}

std::unique_ptr<ThreadFloor::Running> Threads::start(std::function<void()> body) {
  Hosted& process = Hosted::current();
  Fiber& fiber = make(process, std::move(body));
  fiber.thread = true;
  resume(fiber);
  return std::make_unique<Joined>(*this, fiber);
}

void Threads::run(Hosted& process, std::function<void()> body) {
  enter(make(process, std::move(body)));
}

void Threads::drain(Hosted& process) {
  drained_.try_emplace(&process);
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = *fibers_[i];
    if (fiber.process != &process || fiber.thread) continue;
    for (int steps = 0; !fiber.ended; ++steps) {
      TROUPE_ASSERT(steps < kLastSteps, "a turn of a process that ends comes to its end");
      enter(fiber);
    }
  }
}

}  // namespace troupe::sim
