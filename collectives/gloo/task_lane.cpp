#include "collectives/gloo/task_lane.hpp"

#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {

class TaskLane::Task final : public Work {
 public:
  explicit Task(std::function<void()> body) : body_(std::move(body)), launched_at_(clock_.now()) {}

  void run() {
    try {
      body_();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    body_ = nullptr;
  }
  void settle() {
    const std::lock_guard lock(mutex_);
    settled_at_ = clock_.now();
    settled_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return settled_at_.has_value(); });
    if (thrown_) std::rethrow_exception(thrown_);
  }
  bool wait_for(Duration limit) override {
    std::unique_lock lock(mutex_);
    if (!settled_.wait_for(lock, limit, [&] { return settled_at_.has_value(); })) return false;
    if (thrown_) std::rethrow_exception(thrown_);
    return true;
  }
  bool is_completed() override {
    const std::lock_guard lock(mutex_);
    return settled_at_.has_value();
  }
  std::exception_ptr exception() override {
    const std::lock_guard lock(mutex_);
    return settled_at_ ? thrown_ : nullptr;
  }
  std::optional<Duration> duration() override {
    const std::lock_guard lock(mutex_);
    if (!settled_at_) return std::nullopt;
    return *settled_at_ - launched_at_;
  }

 private:
  std::function<void()> body_;
  MonotonicClock clock_;
  const Instant launched_at_;
  std::mutex mutex_;
  std::condition_variable settled_;
  std::optional<Instant> settled_at_;
  std::exception_ptr thrown_;  ///< others read it once the task is settled
};

TaskLane::TaskLane() : thread_(start_quiet_thread([this] { loop(); })) {}

TaskLane::~TaskLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<Work> TaskLane::run(std::function<void()> task) {
  auto made = std::make_shared<Task>(std::move(task));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(made);
  }
  changed_.notify_one();
  return made;
}

bool TaskLane::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

void TaskLane::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto task = queue_.front();
    lock.unlock();
    task->run();
    lock.lock();
    queue_.pop_front();
    task->settle();  // last: whoever has waited finds the lane idle
  }
}

}  // namespace troupe::collectives
