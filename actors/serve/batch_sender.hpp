/// Sends batches to replicas, in the program and in a proxy: who they are, how their clocks stand to ours,
/// and what comes back.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "actors/serve/clock_offset.hpp"
#include "actors/serve/replica.hpp"
#include "actors/serve/request_book.hpp"
#include "runtime/client/actor_handle.hpp"

namespace troupe::serve {

/// Not thread-safe: in its owner's Serial alone. What it asks for comes back there.
class BatchSender {
 public:
  struct Owner {
    /// Does work in the Serial of whoever has this, and keeps that alive until then.
    std::function<void(std::function<void()>)> post;
    std::function<std::shared_ptr<const void>()> life;
    /// The replica is gone, or cannot be reached.
    std::function<void(ReplicaId, const ErrorInfo&)> lost;
    /// Its answer, or that of a method that threw.
    std::function<void(const BatchDone&)> done;
  };

  /// `me`: whose batches these are; 0: the program's.
  BatchSender(RequestBook& book, ProxyId me, Owner owner) : book_(book), me_(me), owner_(std::move(owner)) {}

  void add(ReplicaId id, const ActorHandle<Replica>& replica, VersionId version);
  void remove(ReplicaId id) { seats_.erase(id); }
  bool has(ReplicaId id) const { return seats_.contains(id); }
  /// REQUIRES: has().
  const ActorHandle<Replica>& handle(ReplicaId id) const { return seats_.at(id).handle; }
  template <class Keep>
  void keep_only(const Keep& keep) {
    std::erase_if(seats_, [&](const auto& one) { return !keep(one.first); });
  }

  /// Deadlines travel in the replica's time: it is asked for that before its first batch, says it with each
  /// answer, and may be asked again. `answered` is told in the owner's Serial, unless the replica was removed
  /// meanwhile. REQUIRES: has().
  void ask_clock(ReplicaId id, std::function<void(const Result<void>&)> answered);
  /// It can be sent batches.
  bool is_timed(ReplicaId id) const;
  /// REQUIRES: is_timed() of its replica.
  void send(const SendBatch& batch);

 private:
  struct Seat {
    ActorHandle<Replica> handle;
    VersionId version = 0;
    ClockOffset clock{};  ///< its own, to ours
  };
  void answered(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                Result<BatchOutput> output);

  RequestBook& book_;
  const ProxyId me_;
  const Owner owner_;
  const MonotonicClock clock_;
  std::unordered_map<ReplicaId, Seat> seats_;
};

}  // namespace troupe::serve
