/// What actors that this process spawned have saved, for their next lives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/host/call_state.hpp"
#include "runtime/wire/address.hpp"

namespace troupe {

// Operations of a process's actor 0. The body is a StateOfLife.
inline constexpr std::uint64_t kKeepState = 0x73617665;
inline constexpr std::uint64_t kLastState = 0x73617666;  ///< the answer is a std::optional<wire::Bytes>

struct StateOfLife {
  ActorId actor;
  std::uint32_t incarnation = 1;  ///< the life that says or asks it
  std::optional<wire::Bytes> state{};
};

/// Thread-safe.
///
/// Invariant: what is kept of an actor is of its latest life that was heard of, or of one before that.
class KeptStates {
 public:
  /// `watch`: calls forget() when that actor has no other life.
  explicit KeptStates(std::function<void(ActorId)> watch) : watch_(std::move(watch)) {}

  /// What kKeepState or kLastState is answered with. Refuses a life after which another one has begun.
  Outcome asked(std::uint64_t operation, wire::ByteView body);
  void forget(ActorId actor);

 private:
  struct Kept {
    std::uint32_t incarnation = 1;
    std::optional<wire::Bytes> state;
  };
  const std::function<void(ActorId)> watch_;
  std::mutex mutex_;
  std::map<ActorId, Kept> kept_;  ///< under mutex_
};

}  // namespace troupe
