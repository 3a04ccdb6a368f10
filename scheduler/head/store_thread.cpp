#include "scheduler/head/store_thread.hpp"

#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe {

StoreThread::StoreThread(Storage& storage, Done done)
    : storage_(storage), done_(std::move(done)), thread_(start_quiet_thread([this] { run(); })) {}

StoreThread::~StoreThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StoreThread::write(std::shared_ptr<const StoreBatch> batch) {
  {
    const std::lock_guard lock(mutex_);
    TROUPE_ASSERT(batch_ == nullptr, "one write at a time");
    batch_ = std::move(batch);
  }
  changed_.notify_one();
}

void StoreThread::run() {
  for (;;) {
    std::shared_ptr<const StoreBatch> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return batch_ != nullptr || stopping_; });
      if (batch_ == nullptr) return;
      batch = std::exchange(batch_, nullptr);
    }
    const MonotonicClock clock;
    const Instant begun = clock.now();
    auto how = storage_.apply(*batch);
    done_(std::move(how), clock.now() - begun);
  }
}

}  // namespace troupe
