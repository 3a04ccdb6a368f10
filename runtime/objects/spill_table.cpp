#include "runtime/objects/spill_table.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::objects {
namespace {

constexpr std::uint64_t kWorthAWrite = std::uint64_t{64} << 20;

}  // namespace

void SpillTable::into_memory(Objects::iterator at) {
  at->second.state = State::kMemory;
  at->second.line = line_.insert(line_.end(), at->first);
  in_memory_ += at->second.bytes;
}

void SpillTable::add(std::uint64_t number, std::uint64_t bytes) {
  Object object;
  object.bytes = bytes;
  const auto [at, added] = objects_.emplace(number, object);
  TROUPE_ASSERT(added, "an object is made once");
  into_memory(at);
}

void SpillTable::erase(std::uint64_t number) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return;
  if (at->second.state == State::kMemory) {
    line_.erase(at->second.line);
    in_memory_ -= at->second.bytes;
  }
  objects_.erase(at);
}

std::vector<SpillTable::Spill> SpillTable::choose(std::uint64_t wanted, const MayLeave& may_leave) {
  const std::uint64_t goal = std::max(wanted, std::min(kWorthAWrite, in_memory_ / 4));
  std::vector<Spill> chosen;
  std::uint64_t found = 0;
  for (auto next = line_.begin(); next != line_.end() && found < goal;) {
    const auto at = next++;
    if (!may_leave(*at)) continue;
    Object& object = objects_.at(*at);
    chosen.push_back({*at, object.bytes, !object.written});
    found += object.bytes;
    in_memory_ -= object.bytes;
    object.state = State::kLeaving;
    object.wanted = false;
    line_.erase(at);
  }
  return chosen;
}

SpillTable::Object* SpillTable::in_state(std::uint64_t number, State state) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return nullptr;
  TROUPE_ASSERT(at->second.state == state, "an object moves once at a time");
  return &at->second;
}

void SpillTable::stays(std::uint64_t number) {
  if (in_state(number, State::kLeaving) != nullptr) into_memory(objects_.find(number));
}

bool SpillTable::left(std::uint64_t number) {
  Object* object = in_state(number, State::kLeaving);
  if (object == nullptr) return false;
  object->written = true;
  object->state = object->wanted ? State::kComing : State::kDisk;
  return object->wanted;
}

SpillTable::Want SpillTable::want(std::uint64_t number) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return Want::kHere;
  Object& object = at->second;
  switch (object.state) {
    case State::kMemory:
      line_.splice(line_.end(), line_, object.line);
      return Want::kHere;
    case State::kLeaving:
      object.wanted = true;
      return Want::kComes;
    case State::kComing:
      return Want::kComes;
    case State::kDisk:
      break;
  }
  object.state = State::kComing;
  return Want::kRead;
}

void SpillTable::came(std::uint64_t number, std::uint64_t bytes) {
  Object* object = in_state(number, State::kComing);
  if (object == nullptr) return;
  object->bytes = bytes;
  into_memory(objects_.find(number));
}

void SpillTable::did_not_come(std::uint64_t number) {
  if (Object* object = in_state(number, State::kComing)) object->state = State::kDisk;
}

std::size_t SpillTable::on_disk() const {
  return static_cast<std::size_t>(std::count_if(objects_.begin(), objects_.end(), [](const auto& o) {
    return o.second.state == State::kDisk || o.second.state == State::kComing;
  }));
}

}  // namespace troupe::objects
