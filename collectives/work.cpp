#include "collectives/work.hpp"

#include <algorithm>
#include <utility>

#include "collectives/flight/flight_recorder.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

class Done final : public Work {
 public:
  Done() : Work(true) {}

 private:
  bool advance(Duration) override { return true; }
};

class Then final : public Work {
 public:
  Then(std::shared_ptr<Work> work, std::function<void()> next)
      : work_(std::move(work)), next_(std::move(next)) {}
  int source() const override { return work_->source(); }

 private:
  bool advance(Duration limit) override {
    // Of a GPU, too, the host waits: `next` may read the result.
    while (!(limit == Duration::zero() ? work_->is_completed() : work_->wait_for(limit))) {
      if (limit != Duration::max()) return false;
    }
    if (auto failed = work_->exception()) std::rethrow_exception(failed);
    std::exchange(next_, nullptr)();
    return true;
  }

  const std::shared_ptr<Work> work_;
  std::function<void()> next_;
};

class Joined final : public Work {
 public:
  explicit Joined(std::vector<std::shared_ptr<Work>> parts) : parts_(std::move(parts)) {}

  void remember(std::shared_ptr<flight::FlightRecorder> recorder, std::uint64_t first, std::size_t operations,
                Instant launched_at) override {
    TROUPE_ASSERT(operations == parts_.size(), "a part an operation");
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i]->remember(recorder, first + i, 1, launched_at);
  }

 private:
  bool advance(Duration limit) override {
    const MonotonicClock clock;
    const bool forever = limit == Duration::max();
    const Instant until = forever ? Instant::max() : clock.now() + limit;
    for (const auto& part : parts_) {
      const Duration left = forever ? limit : std::max(until - clock.now(), Duration::zero());
      if (!part->wait_for(left)) return false;
    }
    return true;
  }
  bool hand_over() override {
    for (const auto& part : parts_) part->wait();
    // What the parts left to a device is not complete yet.
    return !std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_completed(); });
  }

  const std::vector<std::shared_ptr<Work>> parts_;
};

}  // namespace

std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

void Work::wait() {
  if (!is_settled()) {
    if (hand_over()) {
      for (std::size_t i = 0; remembered_ && i < remembered_->notes.size(); ++i)
        remembered_->recorder->enqueued(remembered_->notes[i].first, remembered_->notes[i].operations);
    } else {
      while (!drive(Duration::max())) {
      }
    }
  }
  rethrow();
}

bool Work::wait_for(Duration limit) {
  if (!drive(std::max(limit, Duration{1}))) return false;
  rethrow();
  return true;
}

bool Work::drive(Duration limit) {
  if (is_settled()) return true;
  if (remembered_ && limit > Duration::zero()) {
    for (const Note& note : remembered_->notes) remembered_->recorder->waiting(note.first, note.operations);
  }
  try {
    if (!advance(limit)) return false;
    if (!is_settled()) end(nullptr);
  } catch (...) {
    settle(std::current_exception());
  }
  dump_failure();
  return true;
}

void Work::dump_failure() const {
  if (remembered_ && thrown_) remembered_->recorder->dump_failure(text_of(thrown_));
}

void Work::rethrow() {
  if (!is_settled() || !thrown_) return;
  dump_failure();
  std::rethrow_exception(thrown_);
}

std::optional<Duration> Work::duration() const {
  if (!is_settled() || !remembered_) return std::nullopt;
  return remembered_->settled_at - remembered_->launched_at;
}

void Work::settle(std::exception_ptr thrown) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_settled()) end(std::move(thrown));
}

void Work::end(std::exception_ptr thrown) noexcept {
  if (remembered_) remembered_->settled_at = MonotonicClock().now();
  thrown_ = std::move(thrown);
  settled_.store(true, std::memory_order_release);
  if (!remembered_) return;
  for (const Note& note : remembered_->notes) tell(note);
}

void Work::remember(std::shared_ptr<flight::FlightRecorder> recorder, std::uint64_t first,
                    std::size_t operations, Instant launched_at) {
  const std::lock_guard lock(mutex_);
  if (!remembered_) {
    remembered_ = std::make_unique<Remembered>(std::move(recorder));
    remembered_->launched_at = launched_at;
    if (is_settled()) remembered_->settled_at = MonotonicClock().now();
  }
  remembered_->notes.push_back({first, operations});
  if (is_settled()) tell(remembered_->notes.back());
}

void Work::tell(const Note& note) const {
  remembered_->recorder->ended(note.first, note.operations,
                               remembered_->settled_at - remembered_->launched_at,
                               thrown_ ? text_of(thrown_) : std::string());
}

std::shared_ptr<Work> then(std::shared_ptr<Work> work, std::function<void()> next) {
  if (work == nullptr || next == nullptr)
    throw_error({ErrorCode::kBadInput, "then() of nothing", "its work or its function is empty", ""});
  return std::make_shared<Then>(std::move(work), std::move(next));
}

std::shared_ptr<Work> completed_work() {
  return std::make_shared<Done>();
}

std::shared_ptr<Work> joined(std::vector<std::shared_ptr<Work>> parts) {
  if (parts.empty()) return completed_work();
  if (std::count(parts.begin(), parts.end(), nullptr) != 0)
    throw_error({ErrorCode::kBadInput, "joined() of nothing", "one of its works is empty", ""});
  const bool same =
      std::all_of(parts.begin(), parts.end(), [&](const auto& p) { return p == parts.front(); });
  if (same) return parts.front();
  return std::make_shared<Joined>(std::move(parts));
}

}  // namespace troupe::collectives
