/// The calls that this process waits for: each ends once, with an answer or with the reason why none comes.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/host/call_state.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {

/// A call of an actor that is started again when it dies: all of it, as it may have to wait, or to be sent
/// again.
struct MovingCall {
  std::shared_ptr<CallState> state;  ///< null: it wants no answer
  ActorId actor;
  std::uint64_t method = 0;
  CallBody args;
  int sent = 0;             ///< how often it was
  std::uint64_t order = 0;  ///< among the calls of its actor from this process
};

/// A frame that wants a reply.
struct PendingCall {
  std::shared_ptr<CallState> state;
  wire::FrameKind kind = wire::FrameKind::kCall;
  ActorAddress to;
  std::size_t bytes = 0;                 ///< that it takes of its receiver's window until it is answered
  std::shared_ptr<MovingCall> moving{};  ///< if its actor may be started again
  std::uint64_t method = 0;              ///< of a kCall
};

/// Thread-safe. Sharded by number, so that a caller and the thread that receives seldom meet.
class CallTable {
 public:
  /// Keeps the call and returns its number.
  std::uint64_t add(PendingCall call);
  /// The call that a reply of `from` ends. Nothing when nobody waits for it any more, or `from` was not
  /// asked.
  std::optional<PendingCall> take(std::uint64_t number, ProcessAddress from);
  /// Every call that satisfies `which`, oldest first.
  std::vector<PendingCall> take_where(const std::function<bool(const PendingCall&)>& which);
  std::size_t size() const;

 private:
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::uint64_t, PendingCall> calls;  ///< guarded by mutex
  };
  static constexpr std::size_t kShards = 16;
  Shard& shard(std::uint64_t number) { return shards_[number % kShards]; }

  std::atomic<std::uint64_t> next_{1};
  std::array<Shard, kShards> shards_;
};

}  // namespace troupe
