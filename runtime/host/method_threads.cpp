#include "runtime/host/method_threads.hpp"

#include <utility>

#include "runtime/core/error.hpp"

namespace troupe {

void MethodThreads::run(Work work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    if (waiting_.size() <= idle_ || threads_.size() >= most_) return has_work_.notify_all();
    try {
      threads_.emplace_back([this] { serve(); });
      return;
    } catch (const Error&) {  // no thread is to be had: those that there are take it
      if (!threads_.empty()) return has_work_.notify_all();
      work = std::move(waiting_.back());
      waiting_.pop_back();
    }
  }
  work();
}

void MethodThreads::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    while (waiting_.empty() && !stops_) has_work_.wait(lock);
    --idle_;
    if (stops_) return;
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // without the lock: it holds what its caller is told by
    lock.lock();
  }
}

std::deque<MethodThreads::Work> MethodThreads::stop() {
  std::vector<Thread> threads;
  std::deque<Work> not_begun;
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    not_begun = std::exchange(waiting_, {});
    threads = std::exchange(threads_, {});
    has_work_.notify_all();
  }
  for (Thread& thread : threads) thread.join();
  return not_begun;
}

}  // namespace troupe
