#include "collectives/rendezvous/store/formations.hpp"

#include <algorithm>

#include "collectives/texts.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {

std::string to_string(int rank, const Departure& departure) {
  return "rank " + std::to_string(rank) + " (" + departure.who + ") " + (departure.died ? "died" : "left");
}

StoreResponse Formations::failed(const Formation& formation, std::uint32_t id) {
  const auto& [how, why] = *formation.failure;
  return {id, StoreStatus::kFailed, static_cast<std::int64_t>(how), why};
}

StoreResponse Formations::chunk(const Formation& formation, std::uint32_t id, std::size_t first) const {
  std::vector<std::pair<int, const std::string*>> values;
  for (const auto& [rank, member] : formation.members) values.emplace_back(rank, &member.value);
  const auto number = static_cast<std::int64_t>(std::uint64_t{incarnation_} << 32 | formation.number);
  return {id, StoreStatus::kOk, number, encode_gathered(values, first)};
}

std::string Formations::missing(const Formation& formation, std::uint32_t wait_ms) {
  std::vector<int> ranks;
  for (const auto& [rank, member] : formation.members) {
    const bool awaited = formation.gathered ? member.state == State::kIn : member.state == State::kAway;
    if (awaited) ranks.push_back(rank);
  }
  const bool one = ranks.size() == 1;
  const std::string who = name_ranks(ranks);
  if (formation.gathered) return who + " did not finish with forming the group";
  if (formation.survivors) return who + (one ? " lives" : " live") + " and did not call rebuild()";
  return who + " of " + std::to_string(formation.ranks.size()) + (one ? " is" : " are") + " missing after " +
         seconds_text(std::chrono::milliseconds(wait_ms));
}

void Formations::wait(Place place, int rank, Member& member, std::uint32_t wait_ms, Instant now) {
  member.wait_ms = wait_ms;
  member.deadline = now + std::chrono::milliseconds(wait_ms);
  deadlines_.emplace(member.deadline, place->first, rank);
}

void Formations::stop_waiting(Place place, int rank, Member& member) {
  deadlines_.erase({member.deadline, place->first, rank});
}

void Formations::leave(Place place, int rank, Member& member) {
  stop_waiting(place, rank, member);
  member.state = State::kOut;
}

void Formations::end(Place place) {
  for (const auto& [rank, member] : place->second.members) bytes_ -= member.value.size();
  ended_.push_back(place->first);
  formations_.erase(place);
}

/// Who comes first says who the members are.
void Formations::take_list(Place place, int first, const Entry& entry, StoreReplies& replies) {
  Formation& formation = place->second;
  formation.first = first;
  formation.ranks = entry.ranks;
  formation.survivors = entry.survivors;
  const Departure* gone = nullptr;
  int who = 0;
  for (const int rank : entry.ranks) {
    if (const auto found = gone_.find(rank); found == gone_.end()) {
      formation.members[rank];
    } else if (gone == nullptr) {
      gone = &found->second;
      who = rank;
    }
  }
  if (gone != nullptr && !entry.survivors)
    end_with(place, FormationFailure::kGone, to_string(who, *gone), replies);
}

void Formations::enter(const From& from, const StoreRequest& request, const Entry& entry, Instant now,
                       StoreReplies& replies) {
  const auto place = formations_.try_emplace(request.key).first;
  Formation& formation = place->second;
  if (formation.ranks.empty()) take_list(place, from.rank, entry, replies);
  if (entry.ranks != formation.ranks || entry.survivors != formation.survivors)
    return differ(place, from, request, entry, replies);
  const auto found = formation.members.find(from.rank);
  if (found == formation.members.end() || found->second.state != State::kAway) {
    replies.push_back({from.client, {request.id, StoreStatus::kBad}});
    return look(place, replies);
  }
  Member& member = found->second;
  if (formation.failure) {
    replies.push_back({from.client, failed(formation, request.id)});
    leave(place, from.rank, member);
    return look(place, replies);
  }
  member.state = State::kIn;
  member.client = from.client;
  member.id = request.id;
  member.value = entry.value;
  bytes_ += member.value.size();
  wait(place, from.rank, member, request.wait_ms, now);
  look(place, replies);
}

/// There will be no group, of this list or the first. Those that are on this one alone are told, too, when
/// they come: nobody else would wait for them.
void Formations::differ(Place place, const From& from, const StoreRequest& request, const Entry& entry,
                        StoreReplies& replies) {
  Formation& formation = place->second;
  for (const int rank : entry.ranks) {
    if (!gone_.contains(rank)) formation.members.try_emplace(rank);
  }
  const std::string why = "rank " + std::to_string(from.rank) + " called it with " + name_ranks(entry.ranks) +
                          ", and rank " + std::to_string(formation.first) + " before with " +
                          name_ranks(formation.ranks);
  replies.push_back(
      {from.client,
       {request.id, StoreStatus::kFailed, static_cast<std::int64_t>(FormationFailure::kDiffers), why}});
  const auto found = formation.members.find(from.rank);
  if (found != formation.members.end() && found->second.state == State::kAway)
    leave(place, from.rank, found->second);
  end_with(place, FormationFailure::kDiffers, why, replies);
  look(place, replies);
}

void Formations::more(const From& from, const StoreRequest& request, StoreReplies& replies) const {
  StoreResponse response{request.id, StoreStatus::kAbsent};
  if (const auto found = formations_.find(request.key); found != formations_.end()) {
    const Formation& formation = found->second;
    if (formation.failure) {
      response = failed(formation, request.id);
    } else if (formation.gathered && formation.members.contains(from.rank) && request.amount >= 0) {
      response = chunk(formation, request.id, static_cast<std::size_t>(request.amount));
    }
  }
  replies.push_back({from.client, std::move(response)});
}

void Formations::ready(const From& from, const StoreRequest& request, Instant now, StoreReplies& replies) {
  const auto place = formations_.find(request.key);
  const auto answer = [&](StoreResponse response) { replies.push_back({from.client, std::move(response)}); };
  if (place == formations_.end()) return answer({request.id, StoreStatus::kAbsent});
  Formation& formation = place->second;
  const auto found = formation.members.find(from.rank);
  if (!formation.gathered || found == formation.members.end() || found->second.state != State::kIn) {
    return answer({request.id, StoreStatus::kBad});
  }
  Member& member = found->second;
  if (formation.failure) {
    answer(failed(formation, request.id));
    leave(place, from.rank, member);
  } else {
    member.state = State::kReady;
    member.ready_id = request.id;
    wait(place, from.rank, member, request.wait_ms, now);
  }
  look(place, replies);
}

void Formations::fail(const From& from, const StoreRequest& request, StoreReplies& replies) {
  const auto place = formations_.find(request.key);
  if (place == formations_.end() || !place->second.members.contains(from.rank)) {
    replies.push_back({from.client, {request.id, StoreStatus::kAbsent}});
    return;
  }
  leave(place, from.rank, place->second.members.at(from.rank));
  end_with(place, FormationFailure::kGaveUp, request.value, replies);
  replies.push_back({from.client, failed(place->second, request.id)});
  look(place, replies);
}

void Formations::give_up(const std::string& key, const std::string& why, StoreReplies& replies) {
  const auto place = formations_.try_emplace(key).first;
  end_with(place, FormationFailure::kGaveUp, why, replies);
  look(place, replies);
}

/// Does what is due: all have come, all are ready, or all are through.
void Formations::look(Place place, StoreReplies& replies) {
  Formation& formation = place->second;
  if (formation.ranks.empty()) return;
  const auto all = [&](State state) {
    return std::all_of(formation.members.begin(), formation.members.end(),
                       [&](const auto& entry) { return entry.second.state == state; });
  };
  if (formation.failure || formation.members.empty()) {
    if (all(State::kOut)) end(place);
  } else if (!formation.gathered && all(State::kIn)) {
    gather(place, replies);
  } else if (formation.gathered && all(State::kReady)) {
    for (auto& [rank, member] : formation.members) {
      replies.push_back({member.client, {member.ready_id, StoreStatus::kOk}});
      stop_waiting(place, rank, member);
    }
    end(place);
  }
}

void Formations::gather(Place place, StoreReplies& replies) {
  Formation& formation = place->second;
  formation.gathered = true;
  formation.number = ++numbers_;
  for (auto& [rank, member] : formation.members) {
    stop_waiting(place, rank, member);
    replies.push_back({member.client, chunk(formation, member.id, 0)});
  }
}

/// The first failure is the one that counts.
void Formations::end_with(Place place, FormationFailure how, const std::string& why, StoreReplies& replies) {
  Formation& formation = place->second;
  if (formation.failure) return;
  formation.failure.emplace(how, why);
  for (auto& [rank, member] : formation.members) {
    if (member.state != State::kIn && member.state != State::kReady) continue;
    const bool works = formation.gathered && member.state == State::kIn;
    replies.push_back(
        {member.client, failed(formation, member.state == State::kReady ? member.ready_id : member.id)});
    // Who is making its part says when it has stopped.
    if (!works) leave(place, rank, member);
  }
}

void Formations::on_gone(int rank, const Departure& departure, StoreReplies& replies) {
  gone_.emplace(rank, departure);
  std::vector<std::string> keys;
  for (const auto& [key, formation] : formations_) {
    if (formation.members.contains(rank)) keys.push_back(key);
  }
  for (const auto& key : keys) {
    const auto place = formations_.find(key);
    Formation& formation = place->second;
    const auto member = formation.members.find(rank);
    stop_waiting(place, rank, member->second);
    bytes_ -= member->second.value.size();
    formation.members.erase(member);
    if (formation.gathered || !formation.survivors)
      end_with(place, FormationFailure::kGone, to_string(rank, departure), replies);
    look(place, replies);
  }
}

void Formations::on_time(Instant now, const std::string& hint, StoreReplies& replies) {
  while (!deadlines_.empty() && std::get<0>(*deadlines_.begin()) <= now) {
    const auto [when, key, rank] = *deadlines_.begin();
    const auto place = formations_.find(key);
    TROUPE_ASSERT(place != formations_.end(), "a formation is there while somebody waits for it");
    const std::string why = missing(place->second, place->second.members.at(rank).wait_ms);
    end_with(place, FormationFailure::kTimeout, why + hint, replies);
    look(place, replies);
  }
}

std::optional<Instant> Formations::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return std::get<0>(*deadlines_.begin());
}

}  // namespace troupe::collectives
