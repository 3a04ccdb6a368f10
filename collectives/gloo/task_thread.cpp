#include "collectives/gloo/task_thread.hpp"

#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {

class TaskThread::Task final : public Work {
 public:
  Task(std::function<void()> body, std::shared_ptr<std::atomic<int>> source)
      : body_(std::move(body)), source_(std::move(source)) {}
  int source() const override { return source_ != nullptr ? source_->load() : -1; }

  void run() {
    try {
      body_();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    body_ = nullptr;
  }
  void end() {
    settle(std::move(thrown_));
    { const std::lock_guard lock(mutex_); }  // whoever looked before waits by now
    ended_.notify_all();
  }

 private:
  bool advance(Duration limit) override {
    std::unique_lock lock(mutex_);
    const auto ended = [&] { return is_settled(); };
    if (limit != Duration::max()) return ended_.wait_for(lock, limit, ended);
    ended_.wait(lock, ended);
    return true;
  }

  std::function<void()> body_;
  const std::shared_ptr<std::atomic<int>> source_;
  std::exception_ptr thrown_;
  std::mutex mutex_;
  std::condition_variable ended_;
};

TaskThread::TaskThread() : thread_(start_quiet_thread([this] { loop(); })) {}

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<Work> TaskThread::run(std::function<void()> task, std::shared_ptr<std::atomic<int>> source) {
  auto made = std::make_shared<Task>(std::move(task), std::move(source));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(made);
  }
  changed_.notify_one();
  return made;
}

bool TaskThread::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

bool TaskThread::await_idle(std::chrono::steady_clock::time_point end) const {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, end, [&] { return queue_.empty(); });
}

void TaskThread::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto task = queue_.front();
    lock.unlock();
    task->run();
    lock.lock();
    queue_.pop_front();
    task->end();  // last: whoever has waited finds the thread idle
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace troupe::collectives
