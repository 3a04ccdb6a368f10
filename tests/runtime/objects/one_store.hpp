/// The objects of one process whose node and disk do what a test says.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/objects/objects.hpp"
#include "tests/runtime/client/local_gate.hpp"

namespace troupe::testing {

/// A node with room for four objects of kBytes.
class Store final : public LocalGate {
 public:
  using Objects = troupe::objects::Objects;
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static ErrorInfo says(const char* why) { return {ErrorCode::kIo, "the test says no", why, ""}; }

  Store() {
    objects = std::make_shared<Objects>(
        *this, nullptr, [this](const std::string& key, std::uint64_t bytes, Objects::OnRegion then) {
          if (on_ask) on_ask(key);
          then(lend(key, bytes));
        });
  }
  ~Store() override {
    objects->close();
    objects->stop();
    objects.reset();
  }

  Result<Objects::Lent> lend(const std::string& key, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto at = regions_.find(key);
    if (at != regions_.end() && refuses_old) return says("too many open files");
    Objects::Lent lent;
    lent.answer.store_bytes = kStore;
    if (at != regions_.end()) {
      lent.fd = UniqueFd(::dup(at->second.first.get()));
      return lent;
    }
    if (used_ + bytes > kStore) {
      lent.answer.full = true;
      lent.answer.holders = holders;
      lent.answer.why = {ErrorCode::kLimit, "no shared memory", "the store is full", ""};
      return lent;
    }
    UniqueFd fd(::memfd_create("store", MFD_ALLOW_SEALING | MFD_CLOEXEC));
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      return says("no memory");
    }
    lent.fd = UniqueFd(::dup(fd.get()));
    regions_.emplace(key, std::pair(std::move(fd), bytes));
    used_ += bytes;
    return lent;
  }
  void drop_region(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto at = regions_.find(key);
    if (at == regions_.end()) return;
    used_ -= at->second.second;
    regions_.erase(at);
  }
  bool has(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    return regions_.contains(key);
  }

  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t operation, CallBody args,
                                  bool one_way) override {
    if (!on_call && !on_ask_of) return LocalGate::call(to, operation, std::move(args), one_way);
    auto state = std::make_shared<CallState>(nullptr);
    if (auto said = on_ask_of ? on_ask_of(operation, args.bytes) : on_call(operation)) {
      state->resolve(*std::move(said));
    } else {
      const std::lock_guard lock(mutex_);
      unanswered_.push_back(state);
    }
    return state;
  }

  void later(Duration, std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    delayed.push_back(std::move(work));
  }
  /// Its time has come. False: there is nothing to do.
  bool do_delayed() {
    std::vector<std::function<void()>> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(delayed);
    }
    for (const auto& work : now) work();
    return !now.empty();
  }

  bool has_delayed() const {
    const std::lock_guard lock(mutex_);
    return !delayed.empty();
  }

  void fail_unanswered(const ErrorInfo& why) { answer_unanswered(why); }
  void answer_unanswered(const Outcome& what) {
    std::vector<std::shared_ptr<CallState>> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(unanswered_);
    }
    for (const auto& one : all) one->resolve(what);
  }

  std::vector<troupe::objects::HandlePtr> put(int count) {
    std::vector<troupe::objects::HandlePtr> all;
    for (int i = 0; i < count; ++i) all.push_back(objects->put(bytes(i)));
    return all;
  }
  static wire::Bytes bytes(int i) { return wire::Bytes(kBytes, std::byte(i)); }

  std::shared_ptr<Objects> objects;
  std::atomic<bool> refuses_old = false;  ///< who asks for memory that is there gets an error
  std::function<void(const std::string& key)> on_ask;
  std::function<std::optional<Outcome>(std::uint64_t operation)> on_call;  ///< nothing: no answer comes
  std::function<std::optional<Outcome>(std::uint64_t operation, const wire::Bytes& body)> on_ask_of;
  std::vector<ProcessId> holders;  ///< of memory, when it is full

 private:
  static constexpr std::uint64_t kStore = 4 * (kBytes + kTagBytes);
  mutable std::mutex mutex_;
  std::map<std::string, std::pair<UniqueFd, std::uint64_t>> regions_;
  std::uint64_t used_ = 0;
  std::vector<std::shared_ptr<CallState>> unanswered_;
};

}  // namespace troupe::testing
