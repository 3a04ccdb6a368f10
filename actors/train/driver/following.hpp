/// How a trainer joins without a stop of the others: it takes a copy of a member's state and every step
/// since, beside the steps, and becomes a member when it is as far as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// A value: time comes in. Not thread-safe.
///
/// Invariants: while it is on there are a source and at least one follower; who has caught up is a follower,
/// and none has before the source has shared its state; join_at() is set only when all have.
class Following {
 public:
  bool is_on() const { return now_.has_value(); }
  /// The member whose state is taken. REQUIRES: is_on().
  ActorId source() const { return now_->source; }
  /// The generation of its ShareState. REQUIRES: is_on().
  Generation shared_in() const { return now_->shared_in; }
  /// REQUIRES: is_on().
  const std::set<ActorId>& followers() const { return now_->followers; }
  /// One of those that have all that their source had. REQUIRES: all_caught_up().
  ActorId first_caught_up() const { return *now_->caught_up.begin(); }
  bool has_caught_up(ActorId trainer) const { return now_ && now_->caught_up.contains(trainer); }
  /// It follows, and its source has shared the state.
  bool takes_from_source(ActorId trainer) const {
    return now_ && now_->shared && now_->followers.contains(trainer);
  }
  /// It is on, and all followers that still count have what their source had.
  bool all_caught_up(const std::function<bool(ActorId)>& counts) const;
  /// After so many steps the followers become members.
  std::optional<std::int64_t> join_at() const { return now_ ? now_->join_at : std::nullopt; }
  /// It failed so often that the others wait while the state is copied.
  bool must_wait_for_copies() const { return failures_ >= kTries; }

  void begin(ActorId source, Generation generation, const std::vector<ActorId>& followers, Instant deadline);
  /// The source has its copy. False if nobody follows it.
  bool share(ActorId source, Instant deadline);
  /// False if it follows nobody.
  bool catch_up(ActorId follower);
  /// A source or follower gives up: it is tried again, and drop() comes next. False if it is neither.
  bool fail(ActorId who);
  /// It is gone, or has given up. True if that ends it: no source or no follower is left.
  bool drop(ActorId who);
  void join_at(std::int64_t step) { now_->join_at = step; }

  /// A follower has come further.
  void note_progress(ActorId follower, Instant deadline);
  void shift(Duration gap);
  bool is_overdue(Instant now) const { return now_ && now >= now_->deadline; }
  /// It is overdue: the others wait for copies from now on.
  void give_up();
  /// A generation begins: who followed is a member of it, or begins again.
  void begin_generation();

 private:
  /// So often it is tried beside the steps; then all wait until the state is copied.
  static constexpr int kTries = 2;
  struct State {
    ActorId source{};
    Generation shared_in;
    bool shared = false;
    std::set<ActorId> followers;  ///< that have not failed
    std::set<ActorId> caught_up;
    std::optional<std::int64_t> join_at;
    Instant deadline{};
  };
  std::optional<State> now_;
  int failures_ = 0;  ///< since the generation began
};

}  // namespace troupe::train
