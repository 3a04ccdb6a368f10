#include "runtime/client/actor_group.hpp"

#include <algorithm>
#include <array>
#include <sstream>

#include "runtime/client/session.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/random.hpp"

namespace troupe {
namespace detail {
namespace {

constexpr std::size_t kMostNames = 8;  ///< in an error

constexpr std::uint64_t kHostOfActor = signature_hash("troupe::detail::host_of");

std::string in_seconds(Duration timeout) {
  std::ostringstream text;
  text << std::max(0.0, to_seconds(timeout)) << " s";
  return text.str();
}

/// A method of actors of every class.
const bool host_registered = Registry::instance().add_method(
    kHostOfActor, {"host_of", kEveryClass, [](void*, wire::ByteView, Responder responder) {
                     responder.answer(wire::encode(this_actor().session().host()));
                   }});

}  // namespace

std::shared_ptr<CallState> all_of_members(States states, MemberNames names, bool values) {
  const auto all = all_of(states, values);
  auto named = std::make_shared<CallState>(nullptr);
  // Its callbacks may run when those of the last answer are over, which held it.
  all->on_ready([all, named, states = std::move(states), names = std::move(names)] {
    Outcome outcome = all->outcome();
    if (!outcome.ok()) {
      const auto failed = std::find_if(states.begin(), states.end(), [](const auto& state) {
        return state->ready() && state->failure() != nullptr;
      });
      ErrorInfo error = *(*failed)->failure();
      error.what = names->at(static_cast<std::size_t>(failed - states.begin())) + ": " + error.what;
      outcome = std::move(error);
    }
    named->resolve(std::move(outcome), all->refers_to());
  });
  return named;
}

ReadyOrder::ReadyOrder(const States& states) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    states[i]->on_ready([shared = shared_, i] {
      const std::lock_guard lock(shared->mutex);
      shared->ready.push_back(i);
      shared->changed.notify_all();
    });
  }
}

std::optional<std::size_t> ReadyOrder::next(Instant deadline) {
  const MonotonicClock clock;
  std::unique_lock lock(shared_->mutex);
  for (Instant now = clock.now(); shared_->ready.empty() && now < deadline; now = clock.now())
    shared_->changed.wait_for(lock, deadline - now);
  if (shared_->ready.empty()) return std::nullopt;
  const std::size_t place = shared_->ready.front();
  shared_->ready.pop_front();
  return place;
}

void await_members(const std::shared_ptr<CallState>& all, const States& states, const MemberNames& names,
                   Duration timeout) {
  if (all->wait(timeout)) return;
  std::string silent;
  std::size_t count = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i]->ready() && ++count <= kMostNames) silent += (count == 1 ? "" : ", ") + names->at(i);
  }
  if (count > kMostNames) silent += " and " + std::to_string(count - kMostNames) + " more";
  throw Timeout({ErrorCode::kTimeout, "a group gave no answer",
                 silent + " gave none within " + in_seconds(timeout),
                 "raise the timeout, or look at what these members do"});
}

ErrorInfo no_answer_of(const std::string& member, Duration timeout) {
  return {ErrorCode::kTimeout, member + " gave no answer", "none came within " + in_seconds(timeout),
          "raise the timeout, or look at what it does"};
}

std::size_t MemberLoads::least() const {
  const auto load_of = [](const Member& member) { return member.is_dead ? SIZE_MAX : member.calls.load(); };
  const auto at = std::min_element(members_.begin(), members_.end(),
                                   [&](const Member& a, const Member& b) { return load_of(a) < load_of(b); });
  return static_cast<std::size_t>(at - members_.begin());
}

void MemberLoads::add(const std::shared_ptr<MemberLoads>& self, std::size_t place,
                      const std::shared_ptr<CallState>& call) {
  Member& member = members_[place];
  ++member.calls;
  call->watch(self.get(), [self, &member, call] {
    // With an origin it is the death of another actor, which the member called.
    const ErrorInfo* why = call->failure();
    if (why != nullptr && why->code == ErrorCode::kActorDied && why->origin.empty()) member.is_dead = true;
    --member.calls;
  });
}

void monitor_members(ProcessGate* gate, const std::vector<ActorAddress>& members,
                     const std::function<void(std::size_t, const std::string&)>& callback) {
  for (std::size_t i = 0; i < members.size(); ++i)
    Session(*gate).monitor(members[i], [callback, i](const std::string& reason) { callback(i, reason); });
}

void kill_members(ProcessGate* gate, const std::vector<ActorAddress>& members, const std::string& reason) {
  for (const ActorAddress& member : members) Session(*gate).kill(member, reason);
}

std::string host_of_first(ProcessGate* gate, const std::vector<ActorAddress>& members, Duration timeout) {
  (void)host_registered;
  if (members.empty() || is_light(members.front().actor)) {
    throw BadConfig("cannot form a process group of actors",
                    members.empty() ? "the group has no members" : "its members share a process with others",
                    "spawn_group<T>(n, {.isolated = true}): members wait for each other");
  }
  return Future<std::string>(start_call(gate, members.front(), kHostOfActor, "host_of", {}, nullptr, false))
      .get(timeout);
}

std::string random_key() {
  std::array<std::byte, 32> bytes;
  SystemRandom().fill(bytes);
  return to_hex(bytes);
}

}  // namespace detail
}  // namespace troupe
