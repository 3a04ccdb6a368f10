#include "runtime/host/kept_states.hpp"

namespace troupe {

Outcome KeptStates::asked(std::uint64_t operation, wire::ByteView body) {
  auto said = wire::decode<StateOfLife>(body);
  if (!said) return said.error();
  bool is_new = false;
  Outcome answer = wire::Bytes{};
  {
    const std::lock_guard lock(mutex_);
    const auto [at, added] = kept_.try_emplace(said->actor);
    is_new = added;
    Kept& kept = at->second;
    if (said->incarnation < kept.incarnation) {
      return ErrorInfo{ErrorCode::kRefused, "cannot keep the state of actor " + to_string(said->actor),
                       "another life of it has begun", ""};
    }
    kept.incarnation = said->incarnation;
    if (operation == kLastState) {
      answer = wire::encode(kept.state);
    } else {
      kept.state = std::move(said->state);
    }
  }
  if (is_new) watch_(said->actor);
  return answer;
}

void KeptStates::forget(ActorId actor) {
  const std::lock_guard lock(mutex_);
  kept_.erase(actor);
}

}  // namespace troupe
