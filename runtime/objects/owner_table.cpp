#include "runtime/objects/owner_table.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::objects {

void OwnerTable::add(std::uint64_t number, std::uint64_t bytes, bool shared, bool large) {
  TROUPE_ASSERT(!shared || !large, "an object lies in one memory");
  Object object;
  object.large = large;
  object.bytes = bytes;
  object.shared = shared;
  object.held = 1;
  if (!shared) inline_bytes_ += bytes;
  objects_.emplace(number, std::move(object));
}

void OwnerTable::hold(std::uint64_t number) {
  if (const auto at = objects_.find(number); at != objects_.end()) ++at->second.held;
}

void OwnerTable::drop(std::uint64_t number, Actions& out) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return;
  TROUPE_ASSERT(at->second.held > 0, "a reference is dropped once");
  --at->second.held;
  free_if_unused(at, out);
}

void OwnerTable::free_if_unused(Objects::iterator at, Actions& out) {
  Object& object = at->second;
  if (object.held > 0 || !object.borrowers.empty()) return;
  const std::uint64_t number = at->first;
  for (const auto& [node, copy] : object.copies) {
    for (const auto& waiting : copy.waiting) out.push_back(Answer{waiting.ticket, Where::kGone, number});
  }
  for (const auto& reader : object.readers) {
    const auto known = known_.find(reader);
    if (known == known_.end()) continue;
    known->second.erase(number);
    if (known->second.empty()) known_.erase(known);
  }
  if (!object.shared) inline_bytes_ -= object.bytes;
  out.push_back(Free{number, object.shared, std::move(object.readers)});
  objects_.erase(at);
}

void OwnerTable::locate(std::uint64_t number, ProcessAddress from, bool again, std::uint64_t ticket,
                        Actions& out) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return out.push_back(Answer{ticket, Where::kGone, number});
  Object& object = at->second;
  object.readers.insert(from);
  known_[from].insert(number);
  if (!object.shared && !object.large) return out.push_back(Answer{ticket, Where::kInline, number});
  if (object.shared && from.node == home_) return out.push_back(Answer{ticket, Where::kHere, number, true});
  Copy& copy = object.copies[from.node];
  if (copy.there && again && copy.holders.contains(from)) {
    copy.there = false;  // the processes that held it died before this one came
    copy.holders.clear();
    copy.maker = {};
  }
  if (copy.there) {
    copy.holders.insert(from);
    return out.push_back(Answer{ticket, Where::kHere, number});
  }
  if (copy.maker != ProcessAddress{} && copy.maker != from) return wait(copy, {from, ticket}, out);
  copy.maker = from;
  copy.made_for = ticket;
  out.push_back(Answer{ticket, Where::kFetch, number});
}

/// What the maker was told may have been lost with its link, and then it says nothing.
void OwnerTable::wait(Copy& copy, const Waiting& asks, Actions& out) {
  if (copy.waiting.empty()) out.emplace_back(Check{copy.maker, false});
  copy.waiting.push_back(asks);
}

void OwnerTable::make_next(std::uint64_t number, Object& object, NodeId node, Actions& out) {
  Copy& copy = object.copies[node];
  if (copy.waiting.empty()) {
    object.copies.erase(node);
    return;
  }
  const Waiting next = copy.waiting.front();
  copy.waiting.pop_front();
  copy.maker = next.from;
  copy.made_for = next.ticket;
  out.push_back(Answer{next.ticket, Where::kFetch, number});
  if (!copy.waiting.empty()) out.emplace_back(Check{next.from, false});
}

void OwnerTable::copied(const Making& making, ProcessAddress from, bool ok, Actions& out) {
  const std::uint64_t number = making.number;
  const auto at = objects_.find(number);
  if (at == objects_.end()) return;
  const auto made = at->second.copies.find(from.node);
  if (made == at->second.copies.end() || made->second.there || made->second.maker != from) return;
  if (made->second.made_for != making.ticket) return;
  if (!ok) return make_next(number, at->second, from.node, out);
  Copy& copy = made->second;
  copy.there = true;
  copy.holders.insert(from);
  for (const auto& [reader, ticket] : std::exchange(copy.waiting, {})) {
    copy.holders.insert(reader);
    out.push_back(Answer{ticket, Where::kHere, number});
  }
}

void OwnerTable::link_lost(NodeId node, Actions& out) {
  for (const auto& [process, numbers] : known_) {
    if (process.node != node) continue;
    for (const std::uint64_t number : numbers) {
      auto& copies = objects_.at(number).copies;
      const auto copy = copies.find(node);
      if (copy == copies.end()) continue;
      for (const auto& waiting : std::exchange(copy->second.waiting, {}))
        out.emplace_back(Broken{waiting.ticket});
    }
    out.emplace_back(Check{process, true});
  }
}

std::vector<OwnerTable::Making> OwnerTable::makes(ProcessAddress process) const {
  std::vector<Making> all;
  const auto known = known_.find(process);
  if (known == known_.end()) return all;
  for (const std::uint64_t number : known->second) {
    const auto& copies = objects_.at(number).copies;
    const auto copy = copies.find(process.node);
    if (copy != copies.end() && !copy->second.there && copy->second.maker == process)
      all.push_back({number, copy->second.made_for});
  }
  return all;
}

bool OwnerTable::borrow(std::uint64_t number, ProcessAddress from) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return false;
  at->second.borrowers.insert(from);
  at->second.readers.insert(from);
  known_[from].insert(number);
  return true;
}

bool OwnerTable::give_back(std::uint64_t number, ProcessAddress from, Actions& out) {
  const auto at = objects_.find(number);
  if (at == objects_.end()) return false;
  const bool held = at->second.borrowers.erase(from) != 0;
  free_if_unused(at, out);
  return held;
}

std::vector<std::uint64_t> OwnerTable::known_to(const IsDown& is_down) const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [process, known] : known_) {
    if (is_down(process)) numbers.insert(numbers.end(), known.begin(), known.end());
  }
  return numbers;
}

void OwnerTable::readers_down(const IsDown& is_down, Actions& out) {
  for (const std::uint64_t number : known_to(is_down)) {
    const auto at = objects_.find(number);
    if (at == objects_.end()) continue;
    Object& object = at->second;
    for (auto next = object.copies.begin(); next != object.copies.end();) {
      const NodeId node = next->first;
      Copy& copy = (next++)->second;
      std::erase_if(copy.waiting, [&](const Waiting& waiting) {
        const bool is_gone = is_down(waiting.from);
        if (is_gone) out.emplace_back(Broken{waiting.ticket});
        return is_gone;
      });
      std::erase_if(copy.holders, is_down);
      if (copy.there ? copy.holders.empty() : is_down(copy.maker)) make_next(number, object, node, out);
    }
  }
}

void OwnerTable::borrowers_down(const IsDown& is_down, Actions& out) {
  const auto numbers = known_to(is_down);
  std::erase_if(known_, [&](const auto& known) { return is_down(known.first); });
  for (const std::uint64_t number : numbers) {
    const auto at = objects_.find(number);
    if (at == objects_.end()) continue;
    std::erase_if(at->second.readers, is_down);
    std::erase_if(at->second.borrowers, is_down);
    free_if_unused(at, out);
  }
}

}  // namespace troupe::objects
