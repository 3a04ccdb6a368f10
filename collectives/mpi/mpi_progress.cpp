#include "collectives/mpi/mpi_progress.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "collectives/mpi/mpi_runtime.hpp"
#include "collectives/native/backoff.hpp"

namespace troupe::collectives {
namespace {

/// MPI wakes nobody, so a rank that has waited for long looks again after this.
constexpr Duration kNap = std::chrono::microseconds(100);

}  // namespace

class MpiProgress::Operation final : public Work {
 public:
  Operation(std::shared_ptr<MpiProgress> owner, const Op& of, std::vector<MpiStep> steps,
            std::function<void()> finish)
      : op(of), owner_(std::move(owner)), steps_(std::move(steps)), finish_(std::move(finish)) {}

  bool begun() const { return next_ == steps_.size(); }
  bool pending() const { return pending_; }

  void begin_step() {
    request_ = steps_[next_++]();
    pending_ = true;
  }
  /// Whether the step that was begun is complete; the last one completes the operation.
  bool test() {
    int done = 0;
    MPI_Status status{};
    if (const int code = MPI_Test(&request_, &done, &status); code != MPI_SUCCESS) {
      check_mpi(code, numbered(op).c_str());  // whichever operation is waited for
    }
    if (done == 0) return false;
    if (op.kind == OpKind::kRecv) source_ = status.MPI_SOURCE;
    pending_ = false;
    if (begun()) {
      if (finish_) finish_();
      end(nullptr);
    }
    return true;
  }
  /// Of an operation that was given up: whether MPI is at its buffers no more.
  bool has_left() {
    if (!pending_) return true;
    if (op.kind == OpKind::kRecv && !std::exchange(cancelled_, true)) MPI_Cancel(&request_);
    int done = 0;
    const bool failed = MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS;  // it has ended, too
    if (done == 0 && !failed) return false;
    pending_ = false;
    steps_.clear();
    next_ = 0;
    finish_ = nullptr;
    return true;
  }
  void end(std::exception_ptr thrown) {
    settle(std::move(thrown));
    if (pending()) return;  // MPI still uses the buffers that the steps hold
    steps_.clear();
    next_ = 0;
    finish_ = nullptr;
  }

  const Op op;
  int source() const override { return is_settled() ? source_ : -1; }

 private:
  bool advance(Duration limit) override { return owner_->drive(*this, limit); }

  std::shared_ptr<MpiProgress> owner_;
  std::vector<MpiStep> steps_;
  std::size_t next_ = 0;
  int source_ = -1;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool pending_ = false;    ///< a step is begun and not complete
  bool cancelled_ = false;  ///< a receive that was given up
  std::function<void()> finish_;
};

MpiProgress::MpiProgress(int rank, int size, Duration timeout, std::shared_ptr<AbortFlag> flag)
    : rank_(rank),
      crowded_(static_cast<unsigned>(size) > std::thread::hardware_concurrency()),
      timeout_(timeout),
      flag_(std::move(flag)) {}

std::shared_ptr<Work> MpiProgress::launch(const Op& op, bool ordered, std::vector<MpiStep> steps,
                                          std::function<void()> finish) {
  auto made = std::make_shared<Operation>(shared_from_this(), op, std::move(steps), std::move(finish));
  const std::lock_guard lock(mutex_);
  if (ordered) {
    to_begin_.push_back(made);
    begin_steps();
  } else {
    made->begin_step();
    in_flight_.push_back(made);
  }
  return made;
}

bool MpiProgress::idle() const {
  const std::lock_guard lock(mutex_);
  return in_flight_.empty() && to_begin_.empty();
}

std::size_t MpiProgress::leave_ended() {
  const std::lock_guard lock(mutex_);
  to_begin_.clear();
  std::erase_if(in_flight_, [](const auto& operation) { return operation->has_left(); });
  return in_flight_.size();
}

void MpiProgress::await_quiet() {
  const MonotonicClock clock;
  Instant progress_at = clock.now();
  std::size_t left = leave_ended();
  while (left > 0) {
    std::this_thread::sleep_for(kNap);
    const std::size_t now = leave_ended();
    if (now < std::exchange(left, now)) progress_at = clock.now();
    if (now == 0 || clock.now() - progress_at < timeout_) continue;
    throw Timeout({ErrorCode::kTimeout, "operations of an aborted group have not ended",
                   std::to_string(now) + " of rank " + std::to_string(rank_) +
                       " wait for ranks that do not come to them, and MPI cannot take them back",
                   "keep their buffers, and end the process"});
  }
}

bool MpiProgress::begin_steps() {
  bool any = false;
  while (!to_begin_.empty()) {
    const auto operation = to_begin_.front();
    if (operation->pending()) break;  // its step before
    const bool first = std::find(in_flight_.begin(), in_flight_.end(), operation) == in_flight_.end();
    try {
      operation->begin_step();
    } catch (...) {
      to_begin_.pop_front();  // nothing of it is begun any more
      operation->end(std::current_exception());
      throw;
    }
    if (first) in_flight_.push_back(operation);
    if (operation->begun()) to_begin_.pop_front();
    any = true;
  }
  return any;
}

bool MpiProgress::advance() {
  bool any = false;
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    if (in_flight_[i]->pending()) any = in_flight_[i]->test() || any;
  }
  std::erase_if(in_flight_, [](const auto& operation) { return operation->is_settled(); });
  return begin_steps() || any;
}

bool MpiProgress::drive(Operation& operation, Duration limit) {
  const MonotonicClock clock;
  const Instant begun = clock.now();
  Instant progress_at = begun;
  Backoff backoff(crowded_);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (operation.is_settled()) return true;
      try {
        flag_->check();
        if (advance()) {
          backoff.reset();
          progress_at = clock.now();
          continue;
        }
        if (limit == Duration::zero()) return false;
        const Duration own = operation.op.timeout;
        const Duration timeout = own > Duration::zero() ? own : timeout_;
        if (clock.now() - progress_at >= timeout) {
          throw time_out(*flag_, rank_, operation.op, timeout, "MPI does not say which rank it waits for");
        }
      } catch (const Error& e) {
        flag_->set("rank " + std::to_string(rank_) + ": " + numbered(operation.op) + ": " + e.what());
        keep_mpi_from_finalizing();
        operation.end(std::current_exception());
        return true;
      }
    }
    if (clock.now() - begun >= limit) return false;
    const auto turn = backoff.next([] { return true; });  // MPI does not say on which cores the others are
    if (turn == Backoff::Turn::kSleep) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace troupe::collectives
