#include "collectives/native/engine.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {
namespace {

/// Other groups may move so often before this one looks after its own deadline.
constexpr unsigned kMovesPerCheck = 64;

constexpr int kBusySlice = 1;   // milliseconds, where operations are in flight or were just now
constexpr int kIdleSlice = 20;  // milliseconds
constexpr Duration kBusyFor = std::chrono::milliseconds(50);

/// Counts a thread for as long as it waits.
class Counted {
 public:
  explicit Counted(std::atomic<std::uint32_t>* all) : all_(all) {
    if (all_ != nullptr) all_->fetch_add(1, std::memory_order_relaxed);
  }
  ~Counted() {
    if (all_ != nullptr) all_->fetch_sub(1, std::memory_order_relaxed);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<std::uint32_t>* const all_;
};

}  // namespace

Engine::Engine(NativeGroupOptions options, Region region)
    : view_(options.rank, std::move(options.name), std::move(options.machines), std::move(region)),
      data_(view_, options.leaves),
      rounds_(view_, data_),
      gateways_(view_, data_, rounds_, any_receives_, std::move(options.remote),
                std::move(options.connector)),
      messages_(view_, gateways_, any_receives_),
      waiting_(view_, rounds_, gateways_, messages_, options.timeout) {
  view_.region.add_cores();
  const std::lock_guard lock(mutex_);  // other threads find it in the middle of the next line
  entry_.emplace(*this, view_.region.file());
}

std::vector<std::byte*> Engine::reserve(std::size_t count, DType dtype, bool tree) {
  const std::lock_guard lock(mutex_);
  return data_.reserve(count, dtype, tree);
}
std::optional<bool> Engine::release(std::byte* at) {
  const std::lock_guard lock(mutex_);
  const std::span<const std::byte> memory = data_.reserved(at);
  if (memory.empty()) return std::nullopt;
  std::erase_if(transfers_, [](const auto& transfer) { return transfer->done; });
  const bool is_in_message = std::any_of(transfers_.begin(), transfers_.end(),
                                         [&](const auto& transfer) { return transfer->call.uses(memory); });
  if (is_in_message || rounds_.uses(memory)) return false;
  data_.release(memory);
  return true;
}

// Launching.

Token Engine::launch(const Op& call) {
  if (is_message(call.kind)) return post(call);
  return launch_rounds(call.timeout, [&] { return rounds_.launch(call); });
}

Token Engine::launch_packed(std::span<const Op> calls) {
  return launch_rounds(calls.back().timeout, [&] { return rounds_.launch_packed(calls); });
}

template <class Start>
Token Engine::launch_rounds(Duration timeout, Start start) {
  const std::lock_guard lock(mutex_);
  return telling([&]() -> Token {
    view_.throw_if_aborted();
    if (rounds_.is_full()) drive({rounds_.oldest_ends(), nullptr, {}});
    const std::uint32_t launched = start();
    note_launch();
    if (!view_.one_host()) {
      gateways_.on_launch();
      gateways_.exchange();
    }
    return {launched, nullptr, timeout, rounds_.completed() == launched};
  });
}

Token Engine::post(const Op& call) {
  const std::lock_guard lock(mutex_);
  return telling([&]() -> Token {
    view_.throw_if_aborted();
    const std::shared_ptr<Transfer> made = messages_.post(call);
    if (view_.region.holds(view_.local(view_.rank), made->data, made->bytes)) {
      std::erase_if(transfers_, [](const auto& transfer) { return transfer->done; });
      transfers_.push_back(made);
    }
    note_launch();
    if (call.peer == kAnyRank) {
      advance();
    } else if (view_.is_local(call.peer)) {
      messages_.exchange();
    } else {
      gateways_.exchange();
    }
    return {0, made, call.timeout, made->done};
  });
}

std::vector<Token> Engine::post_parts(const Op& call) {
  std::vector<Token> tokens;
  try {
    for (const Op& part : messages_.parts_of(call)) tokens.push_back(post(part));
  } catch (const Error& e) {
    abort(AbortKind::kRequested, "an all_to_all was launched in part: " + std::string(e.what()));
    throw;
  }
  return tokens;
}

/// An operation has begun: it is looked after.
void Engine::note_launch() {
  waiting_.note_move();
  entry_->open();
  if (dozes_.load(std::memory_order_relaxed) && dozes_.exchange(false)) wake_server();
}

// Moving.

bool Engine::advance() {
  bool moved = rounds_.advance();
  moved = messages_.exchange() || moved;
  return (!view_.one_host() && gateways_.exchange()) || moved;
}

bool Engine::wait(const Token& token, Duration limit) {
  const Counted counted(server_.joinable() ? &waiting_threads_ : nullptr);
  fork_guard_.check("process group");
  const std::lock_guard lock(mutex_);
  return telling([&] { return drive(token, limit); });
}

bool Engine::drive(const Token& token, Duration limit) {
  // What comes from other hosts wakes who sleeps, and the sockets' work needs a core: yield early and often.
  const bool between_hosts = !view_.one_host();
  Backoff backoff(rounds_.is_crowded(), between_hosts ? nullptr : &spin_credit_);
  const bool polls = limit <= Duration::zero(), limited = !polls && limit != Duration::max();
  const Instant begun = limited ? clock_.now() : Instant{};
  const auto over = [&] { return limited && clock_.now() - begun >= limit; };
  unsigned moves_beside = 0;
  waiting_.begin();
  while (!waiting_.is_done(token)) {
    view_.throw_if_aborted();
    if (advance() || (token.transfer && messages_.exchange(true))) {
      backoff.reset();
      waiting_.note_move();
      if (over()) return waiting_.is_done(token);
      continue;
    }
    Backoff::Turn turn = Backoff::Turn::kCheck;
    if (!polls && EngineEntry::others_are_open() && entry_->move_others(false)) {
      backoff.reset();
      if (++moves_beside % kMovesPerCheck != 0) continue;
    } else if (!polls) {
      turn = backoff.next([&] { return between_hosts || waiting_.waits_beside(token); });
    }
    if (turn == Backoff::Turn::kAgain) continue;
    if (turn == Backoff::Turn::kSleep) waiting_.sleep(token);
    if (messages_.take_unasked()) waiting_.note_move();
    entry_->move_others(true);
    waiting_.check(token, clock_.now());
    if (polls || over()) return waiting_.is_done(token);
  }
  return true;
}

std::vector<int> Engine::missing(const Token& token) {
  const std::lock_guard lock(mutex_);
  return waiting_.is_done(token) ? std::vector<int>{} : waiting_.missing(token);
}

bool Engine::move_beside(bool all) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  bool moved = false;
  try {
    telling([&] {
      view_.throw_if_aborted();
      moved = advance() || (all && messages_.take_unasked());
    });
    if (moved) waiting_.note_move();
    if (!is_busy()) entry_->close();
  } catch (const Error&) {
    entry_->close();  // who waits in this group learns why
  }
  return moved;
}

void Engine::start_serving() {
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw_error(io_error("cannot make an eventfd", errno, "raise ulimit -n"));
  server_ = start_quiet_thread([this] { serve(); });
}

void Engine::wake_server() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

/// Moves what can be moved, unless somebody waits; whether operations are in flight.
bool Engine::serve_once() {
  while (telling([&] {
    view_.throw_if_aborted();
    return advance() || messages_.take_unasked();
  })) {
    waiting_.note_move();
    served_at_ = clock_.now();
    if (waiting_threads_.load(std::memory_order_relaxed) != 0) break;
  }
  return is_busy();
}

void Engine::serve() {
  const bool within_host = view_.one_host();
  std::vector<pollfd> watched;
  const auto was_busy = [&] { return clock_.now() - served_at_ < kBusyFor; };
  while (!stops_) {
    dozes_.store(within_host);  // before the look: what is launched after it wakes this thread
    int slice = within_host && was_busy() ? kBusySlice : kIdleSlice;
    watched.assign(1, {wake_.get(), POLLIN, 0});
    if (waiting_threads_.load(std::memory_order_relaxed) == 0) {
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
        try {
          if (serve_once() || was_busy()) slice = kBusySlice;
        } catch (const Error&) {
          return;  // it is in the abort word, and others know
        }
        watched.push_back({gateways_.fd(), POLLIN, 0});
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

// Ends.

/// What this rank is at; "nothing" if nothing is in flight.
std::string Engine::name_of_oldest() const {
  if (!rounds_.empty()) return numbered(rounds_.oldest().call);
  const auto transfer = messages_.oldest();
  return transfer ? to_string(*transfer) : "nothing";
}

void Engine::abort(AbortKind kind, const std::string& reason) {
  abort_region(view_.region.abort_word(), reason, kind);
  // A thread that waits leaves within a slice, so the mutex is free soon.
  const std::lock_guard lock(mutex_);
  gateways_.tell_abort();
}

/// A rank that waits for nothing reads its sockets here: the others of another host tell of an abort there. A
/// forked child does not: what it read, its parent would never get.
std::string Engine::abort_reason() {
  if (std::unique_lock lock(mutex_, std::try_to_lock);
      lock && !fork_guard_.is_in_child() && gateways_.any() && !gateways_.has_told_abort()) {
    try {
      telling([&] { gateways_.exchange(); });
    } catch (const Error&) {
      // It is in the abort word.
    }
  }
  if (!view_.is_aborted()) return {};
  return region_abort_reason(view_.region.abort_word()).text;
}

void Engine::leave() {
  if (fork_guard_.is_in_child()) {  // the group is the parent's, and the thread stayed there
    if (server_.joinable()) server_.detach();
    return;
  }
  if (server_.joinable()) {
    stops_ = true;
    wake_server();
    server_.join();
  }
  entry_->remove();
  const std::lock_guard lock(mutex_);
  const bool busy = is_busy();
  if (busy && !view_.is_aborted()) {
    abort_region(view_.region.abort_word(),
                 "rank " + std::to_string(view_.rank) + " destroyed its group during " + name_of_oldest(),
                 AbortKind::kRequested);
  }
  gateways_.leave();
  view_.mine.left.store(1, std::memory_order_release);
  gateways_.linger();
}

}  // namespace troupe::collectives
