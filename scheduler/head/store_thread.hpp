/// The one thread that writes to the head's store, so that the head's loop never waits for the disk.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/core/clock.hpp"
#include "runtime/core/storage.hpp"

namespace troupe {

/// From its first write on, `storage` is its alone.
class StoreThread {
 public:
  using Done = std::function<void(Result<void>, Duration took)>;

  /// `done` is called in the thread, once for each write. Both must outlive it.
  StoreThread(Storage& storage, Done done);
  /// Waits for the write under way.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  /// REQUIRES: no write is under way.
  void write(std::shared_ptr<const StoreBatch> batch);

 private:
  void run();

  Storage& storage_;
  const Done done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const StoreBatch> batch_;  ///< guarded by mutex_
  bool stopping_ = false;                    ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace troupe
