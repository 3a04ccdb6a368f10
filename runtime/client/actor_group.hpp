/// ActorGroup<T>: actors of one class that are called together.
///
///   auto shards = session.spawn_group<Shard>(4, {.isolated = true}, troupe::kPlace, folder);
///   std::vector<double> sums = shards.call_all<&Shard::sum>("price").get();
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/actor_handle.hpp"
#include "runtime/client/group_fold.hpp"
#include "runtime/client/group_shape.hpp"
#include "runtime/core/condition.hpp"

namespace troupe {

/// As an argument of spawn_group: each member's place in the group, a std::size_t.
struct MemberPlace {};
inline constexpr MemberPlace kPlace;

namespace detail {

template <class T>
decltype(auto) for_member(const T& argument, const std::size_t& place) {
  if constexpr (std::is_same_v<T, MemberPlace>) {
    return (place);
  } else {
    return (argument);
  }
}

/// Which of some calls are ready, in the order in which they came to be so.
class ReadyOrder {
 public:
  explicit ReadyOrder(const States& states);
  /// The next one; nothing when `deadline` is over first.
  std::optional<std::size_t> next(Instant deadline);

 private:
  struct Shared {
    std::mutex mutex;
    Condition changed;
    std::deque<std::size_t> ready;  ///< under mutex
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};
/// Waits for it; throws a Timeout that names the members without an answer.
void await_members(const std::shared_ptr<CallState>& all, const States& states, const MemberNames& names,
                   Duration timeout);

ErrorInfo no_answer_of(const std::string& member, Duration timeout);

/// Calls without an answer, by member; or that it has died.
class MemberLoads {
 public:
  explicit MemberLoads(std::size_t members) : members_(members) {}
  /// The living member with the fewest.
  std::size_t least() const;
  void add(const std::shared_ptr<MemberLoads>& self, std::size_t place,
           const std::shared_ptr<CallState>& call);

 private:
  struct Member {
    std::atomic<std::size_t> calls{0};
    std::atomic<bool> is_dead{false};
  };
  std::vector<Member> members_;
};

void monitor_members(ProcessGate* gate, const std::vector<ActorAddress>& members,
                     const std::function<void(std::size_t, const std::string&)>& callback);
void kill_members(ProcessGate* gate, const std::vector<ActorAddress>& members, const std::string& reason);
/// The address of the machine on which the first one runs. Throws BadConfig if there is none, or if they
/// share a process.
std::string host_of_first(ProcessGate* gate, const std::vector<ActorAddress>& members, Duration timeout);
std::string random_key();

}  // namespace detail

/// The answers of a call of all members, in order: futures, and more. co_await when_all(answers), or
/// wait(answers, n, timeout), as of any vector of futures.
template <class R>
class GroupAnswers : public std::vector<Future<R>> {
 public:
  explicit GroupAnswers(detail::MemberNames names) : names_(std::move(names)) {}

  /// All answers in order; fails with the first failure that arrives, which names the member.
  auto all() const {
    constexpr bool kValues = !std::is_void_v<R>;
    auto state = detail::all_of_members(detail::states_of(*this), names_, kValues);
    if constexpr (kValues) {
      return Future<std::vector<R>>(std::move(state), gate_);
    } else {
      return Future<void>(std::move(state));
    }
  }
  /// Waits for that. Timeout names the members that gave no answer.
  auto get(Duration timeout = std::chrono::hours(1)) const {
    const auto answers = all();
    detail::check_may_block("GroupAnswers::get", detail::kInsteadOfWaiting);
    detail::await_members(answers.state(), detail::states_of(*this), names_, timeout);
    return answers.get(Duration::zero());
  }
  /// What became of each, in order, once all have ended, or `timeout` is over: kTimeout then.
  std::vector<Result<R>> outcomes(Duration timeout = std::chrono::hours(1)) const {
    detail::check_may_block("GroupAnswers::outcomes", detail::kInsteadOfWaiting);
    const Instant deadline = MonotonicClock().now() + timeout;
    std::vector<Result<R>> all;
    all.reserve(this->size());
    for (std::size_t i = 0; i < this->size(); ++i) {
      (*this)[i].state()->wait(std::max(deadline - MonotonicClock().now(), Duration::zero()));
      all.push_back(outcome_of(i, timeout));
    }
    return all;
  }
  /// Calls `use(place, Result<R>)` for each as it comes, in this thread; for those that have given no answer
  /// when `timeout` is over, with kTimeout.
  template <class Use>
  void as_they_come(Use use, Duration timeout = std::chrono::hours(1)) const {
    detail::check_may_block("GroupAnswers::as_they_come", detail::kInsteadOfWaiting);
    const Instant deadline = MonotonicClock().now() + timeout;
    detail::ReadyOrder order(detail::states_of(*this));
    std::vector<bool> used(this->size());
    for (std::size_t left = used.size(); left > 0; --left) {
      const auto place = order.next(deadline);
      if (!place) break;
      used[*place] = true;
      use(*place, outcome_of(*place, timeout));
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) use(i, outcome_of(i, timeout));
    }
  }

 private:
  template <class T>
  friend class ActorGroup;
  Result<R> outcome_of(std::size_t place, Duration timeout) const {
    const auto& state = (*this)[place].state();
    if (state->ready())
      return detail::decode_outcome<R>(detail::outcome_of(*state, detail::kAnswerLoads), gate_);
    return detail::no_answer_of(names_->at(place), timeout);
  }
  detail::MemberNames names_;
  ProcessGate* gate_ = nullptr;
};

/// Handles of its members, in order of their places. Copyable; crosses processes as handles do. Thread-safe.
template <class T>
class ActorGroup {
  template <auto M, std::size_t I>
  using At = detail::ArgumentOf<M, I>;

 public:
  ActorGroup() = default;
  /// Throws BadConfig if the shape is for another number of members.
  ActorGroup(std::vector<ActorHandle<T>> members, GroupShape shape)
      : ActorGroup(std::move(members), std::move(shape), {}) {}

  std::size_t size() const { return members_.size(); }
  const GroupShape& shape() const { return shape_; }
  auto begin() const { return members_.begin(); }
  auto end() const { return members_.end(); }
  /// By place, and by coordinates: group.at({1, 3}).
  const ActorHandle<T>& operator[](std::size_t place) const { return members_.at(place); }
  const ActorHandle<T>& at(const std::vector<std::size_t>& coordinates) const {
    return members_[shape_.place_of(coordinates)];
  }
  /// "member 5 (host=1, gpu=1)": its name in errors, also in a part of the group.
  const std::string& name_of(std::size_t place) const { return names_->at(place); }

  /// The members at which a dimension has that coordinate: slice("host", 1).
  ActorGroup slice(const std::string& dimension, std::size_t at) const {
    auto [places, shape] = shape_.slice(dimension, at);
    return part(places, std::move(shape));
  }
  /// All but these places, in one dimension: those that live, say. Throws BadConfig for a place that it has
  /// not.
  ActorGroup without(const std::vector<std::size_t>& gone) const {
    shape_.check_places(gone);
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < size(); ++i) {
      if (std::find(gone.begin(), gone.end(), i) == gone.end()) places.push_back(i);
    }
    return part(places, places.empty() ? GroupShape() : GroupShape(places.size()));
  }

  /// Calls a method of each member with the same arguments, which are encoded once.
  // clang-format off
  template <auto M> requires detail::Takes<M, 0> auto call_all() const { return send<M>(); }
  template <auto M> requires detail::Takes<M, 1> auto call_all(At<M, 0> a) const { return send<M>(a); }
  template <auto M> requires detail::Takes<M, 2> auto call_all(At<M, 0> a, At<M, 1> b) const { return send<M>(a, b); }
  template <auto M> requires detail::Takes<M, 3> auto call_all(At<M, 0> a, At<M, 1> b, At<M, 2> c) const { return send<M>(a, b, c); }
  template <auto M> requires detail::Takes<M, 4> auto call_all(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d) const { return send<M>(a, b, c, d); }
  // clang-format on
  /// Calls a method of each member, and folds the answers by a function of two of them, in the order of
  /// places: through a tree of the members, so that nobody gets more than five of them, and the caller one.
  /// `combine` runs in the members, and must be associative. The failure names the member. Arguments are
  /// values: throws BadConfig for a reference to an object.
  // clang-format off
  template <auto M, auto Combine> requires detail::Takes<M, 0> auto call_fold() const { return fold<M, Combine>(); }
  template <auto M, auto Combine> requires detail::Takes<M, 1> auto call_fold(At<M, 0> a) const { return fold<M, Combine>(a); }
  template <auto M, auto Combine> requires detail::Takes<M, 2> auto call_fold(At<M, 0> a, At<M, 1> b) const { return fold<M, Combine>(a, b); }
  template <auto M, auto Combine> requires detail::Takes<M, 3> auto call_fold(At<M, 0> a, At<M, 1> b, At<M, 2> c) const { return fold<M, Combine>(a, b, c); }
  template <auto M, auto Combine> requires detail::Takes<M, 4> auto call_fold(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d) const { return fold<M, Combine>(a, b, c, d); }
  // clang-format on
  /// Calls the living member with the fewest calls of this group that have no answer.
  // clang-format off
  template <auto M> requires detail::Takes<M, 0> auto call_any() const { return send_any<M>(); }
  template <auto M> requires detail::Takes<M, 1> auto call_any(At<M, 0> a) const { return send_any<M>(a); }
  template <auto M> requires detail::Takes<M, 2> auto call_any(At<M, 0> a, At<M, 1> b) const { return send_any<M>(a, b); }
  template <auto M> requires detail::Takes<M, 3> auto call_any(At<M, 0> a, At<M, 1> b, At<M, 2> c) const { return send_any<M>(a, b, c); }
  template <auto M> requires detail::Takes<M, 4> auto call_any(At<M, 0> a, At<M, 1> b, At<M, 2> c, At<M, 3> d) const { return send_any<M>(a, b, c, d); }
  // clang-format on

  /// As Session::monitor for each: `callback(place, reason)`.
  void monitor(const std::function<void(std::size_t place, const std::string& reason)>& callback) const {
    detail::monitor_members(gate(), addresses(), callback);
  }
  /// As Session::kill for each.
  void kill(const std::string& reason = "killed by its owner") const {
    detail::kill_members(gate(), addresses(), reason);
  }

  /// Makes a process group of the members, each of which has it in process_group() then; ranks are places.
  /// Again, after a death, with who lives (without()) or was started again: members leave the group that they
  /// had. Waits for all, `timeout` at most. Throws as init_process_group, and what it says of a member.
  /// `data_bytes`: as of its InitOptions, a member's memory for allocate().
  /// REQUIRES: T derives from troupe::collectives::GroupMember, and members are isolated.
  void form_process_group(const std::string& backend = "native", Duration timeout = std::chrono::minutes(5),
                          std::uint64_t data_bytes = std::uint64_t{256} << 20) const {
    static_assert(
        requires { &T::join_process_group; },
        "form_process_group: derive the members' class from troupe::collectives::GroupMember");
    detail::check_may_block("ActorGroup::form_process_group", "spawn the actor with .isolated = true");
    const Instant deadline = MonotonicClock().now() + timeout;
    const auto left = [&] { return deadline - MonotonicClock().now(); };
    const std::string host = detail::host_of_first(gate(), addresses(), left());
    const auto port = members_[0].template call<&T::hold_meeting_port>().get(left());
    const std::string url = "tcp://" + host + ":" + std::to_string(port), key = detail::random_key();
    GroupAnswers<void> joined(names_);
    for (std::size_t i = 0; i < size(); ++i) {
      joined.push_back(members_[i].template call<&T::join_process_group>(
          backend, url, key, static_cast<int>(i), static_cast<int>(size()), left(), data_bytes));
    }
    joined.get(left() + std::chrono::seconds(5));
  }

  bool operator==(const ActorGroup& other) const {
    return members_ == other.members_ && shape_ == other.shape_;
  }

 private:
  friend struct wire::Codec<ActorGroup<T>>;

  ActorGroup(std::vector<ActorHandle<T>> members, GroupShape shape, std::vector<std::string> names)
      : members_(std::move(members)), shape_(std::move(shape)) {
    if (shape_.size() != members_.size()) {
      throw BadConfig("cannot make a group of " + std::to_string(members_.size()) + " actors",
                      "its shape is for " + std::to_string(shape_.size()), "give a shape for as many");
    }
    if (names.empty()) {
      for (std::size_t i = 0; i < members_.size(); ++i) names.push_back(shape_.name_of(i));
    }
    names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
    loads_ = std::make_shared<detail::MemberLoads>(members_.size());
  }

  ActorGroup part(const std::vector<std::size_t>& places, GroupShape shape) const {
    std::vector<ActorHandle<T>> members;
    std::vector<std::string> names;
    for (const std::size_t place : places) {
      members.push_back(members_[place]);
      names.push_back(names_->at(place));
    }
    return {std::move(members), std::move(shape), std::move(names)};
  }
  ProcessGate* gate() const { return members_.empty() ? nullptr : members_.front().process(); }
  std::vector<ActorAddress> addresses() const {
    std::vector<ActorAddress> all;
    for (const auto& member : members_) all.push_back(member.address());
    return all;
  }

  template <auto M, class... P>
  auto send(const Argument<P>&... argument) const {
    using Entry = detail::MethodEntry<M>;
    const CallBody body = detail::encode_call(gate(), wire::kArgumentBound, Entry::kName, argument...);
    GroupAnswers<typename Entry::Answer> answers(names_);
    answers.reserve(size());
    answers.gate_ = gate();
    for (std::size_t i = 0; i < size(); ++i) answers.push_back(counted<M>(i, body));
    return answers;
  }
  template <auto M, auto Combine, class... P>
  auto fold(const Argument<P>&... argument) const {
    using Entry = detail::FoldEntry<T, M, Combine>;
    if (members_.empty())
      throw BadConfig("cannot fold the answers of " + std::string(Entry::kName), "the group has no members",
                      "spawn some");
    CallBody body;
    if constexpr (sizeof...(P) > 0)
      body = detail::encode_message(wire::kUnbounded, Entry::kName, argument...);
    if (!body.kept.empty())
      throw BadConfig("cannot fold the answers of " + std::string(Entry::kName),
                      "an argument refers to an object, which members would pass on to others",
                      "give the value, or use call_all");
    return Future<typename Entry::Answer>(Entry::ask(gate(), members_, *names_, body.bytes), gate());
  }
  template <auto M, class... P>
  auto send_any(const Argument<P>&... argument) const {
    return counted<M>(
        loads_ == nullptr ? 0 : loads_->least(),
        detail::encode_call(gate(), wire::kArgumentBound, detail::MethodEntry<M>::kName, argument...));
  }
  template <auto M>
  auto counted(std::size_t place, CallBody body) const {
    const ActorHandle<T> nobody;
    const auto& member = members_.empty() ? nobody : members_[place];
    auto future = member.template call_encoded<M>(std::move(body));
    loads_->add(loads_, place, future.state());
    return future;
  }

  std::vector<ActorHandle<T>> members_;
  GroupShape shape_;
  detail::MemberNames names_;
  std::shared_ptr<detail::MemberLoads> loads_;
};

template <class T>
struct wire::Codec<ActorGroup<T>> {
  static void encode(Writer& to, const ActorGroup<T>& group) {
    write(to, group.members_);
    write(to, group.shape_);
    write(to, group.names_ == nullptr ? std::vector<std::string>() : *group.names_);
  }
  static bool decode(Reader& from, ActorGroup<T>& group) {
    std::vector<ActorHandle<T>> members;
    GroupShape shape;
    std::vector<std::string> names;
    if (!read(from, members) || !read(from, shape) || !read(from, names)) return false;
    if (shape.size() != members.size() || names.size() != members.size())
      return from.fail("a group has a name and a place for each member");
    group = members.empty() ? ActorGroup<T>()
                            : ActorGroup<T>(std::move(members), std::move(shape), std::move(names));
    return true;
  }
};

}  // namespace troupe
