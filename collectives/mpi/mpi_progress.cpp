#include "collectives/mpi/mpi_progress.hpp"

#include <algorithm>
#include <thread>

#include "collectives/mpi/mpi_runtime.hpp"
#include "collectives/native/patience.hpp"

namespace troupe::collectives {
namespace {

/// MPI wakes nobody, so a rank that has waited for long looks again after this.
constexpr Duration kNap = std::chrono::microseconds(100);

}  // namespace

class MpiProgress::Operation final : public Work {
 public:
  Operation(std::shared_ptr<MpiProgress> owner, LibraryCall of, std::vector<MpiStep> steps,
            std::function<void()> finish)
      : call(std::move(of)),
        owner_(std::move(owner)),
        steps_(std::move(steps)),
        finish_(std::move(finish)),
        launched_at_(clock_.now()) {}

  void wait() override {
    owner_->drive(*this, Duration::max());
    if (thrown_) std::rethrow_exception(thrown_);
  }
  bool wait_for(Duration limit) override {
    owner_->drive(*this, limit);
    if (thrown_) std::rethrow_exception(thrown_);
    return settled();
  }
  bool is_completed() override {
    owner_->drive(*this, Duration::zero());
    return settled();
  }
  std::exception_ptr exception() override {
    (void)is_completed();
    return thrown_;
  }
  std::optional<Duration> duration() override {
    if (!settled_at_) return std::nullopt;
    return *settled_at_ - launched_at_;
  }

  bool settled() const { return settled_at_.has_value(); }
  bool begun() const { return next_ == steps_.size(); }
  bool pending() const { return pending_; }

  void begin_step() {
    request_ = steps_[next_++]();
    pending_ = true;
  }
  /// Whether the step that was begun is complete; the last one completes the operation.
  bool test() {
    int done = 0;
    check_mpi(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
    pending_ = false;
    if (begun()) {
      if (finish_) finish_();
      settle(nullptr);
    }
    return true;
  }
  void settle(std::exception_ptr thrown) {
    thrown_ = std::move(thrown);
    settled_at_ = clock_.now();
    if (pending()) return;  // MPI still uses the buffers that the steps hold
    steps_.clear();
    next_ = 0;
    finish_ = nullptr;
  }

  const LibraryCall call;

 private:
  std::shared_ptr<MpiProgress> owner_;
  std::vector<MpiStep> steps_;
  std::size_t next_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool pending_ = false;  ///< a step is begun and not complete
  std::function<void()> finish_;
  MonotonicClock clock_;
  const Instant launched_at_;
  std::optional<Instant> settled_at_;
  std::exception_ptr thrown_;
};

MpiProgress::MpiProgress(int rank, int size, Duration timeout, std::shared_ptr<AbortFlag> flag)
    : rank_(rank),
      crowded_(static_cast<unsigned>(size) > std::thread::hardware_concurrency()),
      timeout_(timeout),
      flag_(std::move(flag)) {}

std::shared_ptr<Work> MpiProgress::launch(LibraryCall call, bool ordered, std::vector<MpiStep> steps,
                                          std::function<void()> finish) {
  auto made =
      std::make_shared<Operation>(shared_from_this(), std::move(call), std::move(steps), std::move(finish));
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

bool MpiProgress::begin_steps() {
  bool any = false;
  while (!to_begin_.empty()) {
    const auto operation = to_begin_.front();
    if (operation->pending()) break;  // its step before
    const bool first = std::find(in_flight_.begin(), in_flight_.end(), operation) == in_flight_.end();
    operation->begin_step();
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
  std::erase_if(in_flight_, [](const auto& operation) { return operation->settled(); });
  return begin_steps() || any;
}

void MpiProgress::drive(Operation& operation, Duration limit) {
  const MonotonicClock clock;
  const Instant begun = clock.now();
  Instant progress_at = begun;
  Patience patience(crowded_);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (operation.settled()) return;
      try {
        flag_->check();
        if (advance()) {
          patience.reset();
          progress_at = clock.now();
          continue;
        }
        if (limit == Duration::zero()) return;
        if (clock.now() - progress_at >= timeout_) {
          throw time_out(*flag_, rank_, operation.call, timeout_, "MPI does not say which rank it waits for");
        }
      } catch (const Error& e) {
        flag_->set("rank " + std::to_string(rank_) + ": " + to_string(operation.call) + ": " + e.what());
        keep_mpi_from_finalizing();
        operation.settle(std::current_exception());
        return;
      }
    }
    if (clock.now() - begun >= limit) return;
    if (patience.next() == Patience::Turn::kSleep) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace troupe::collectives
