#include "collectives/rendezvous/world.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "collectives/flight/dump_files.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "collectives/native/process_engines.hpp"
#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/origin.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kLinger = std::chrono::seconds(2);
constexpr Duration kLeaveTime = std::chrono::seconds(1);

/// What a rank enters with: lines. The last two in the first formation of a job alone, when nobody knows
/// where the others are.
std::string text_of(const PeerInfo& peer, const std::string& standby) {
  const std::string text = peer.token + "\n" + peer.endpoint;
  return standby.empty() ? text : text + "\n" + peer.host + "\n" + standby;
}

}  // namespace

bool World::is_gone(int rank) const {
  const std::lock_guard lock(mutex_);
  return gone_.contains(rank);
}

/// Whether this rank may be the first of several on its host, and whether all members are there. In a job's
/// first formation nobody knows, and of survivors nobody knows who is the first.
std::pair<bool, bool> World::place_of(const Plan& plan, bool first) const {
  const std::lock_guard lock(mutex_);
  bool shares = false, follows = false, alone = true;
  for (const int r : plan.members) {
    if (r == rank()) continue;
    const bool here = !first && hosts_[static_cast<std::size_t>(r)] == host_;
    shares = shares || here || first;
    follows = follows || (here && !plan.survivors && r < rank());
    alone = alone && here;
  }
  return {shares && !follows, alone};
}

/// Where the members are, as they say themselves, or said when the job met.
std::vector<PeerInfo> World::learn(const std::vector<std::pair<int, std::string>>& values, bool first) {
  const std::lock_guard lock(mutex_);
  std::vector<PeerInfo> peers;
  for (const auto& [rank, text] : values) {
    PeerInfo peer;
    std::string standby;
    std::istringstream lines(text);
    std::getline(lines, peer.token);
    std::getline(lines, peer.endpoint);
    if (first) {
      hosts_.emplace_back();
      std::getline(lines, hosts_.back());
      std::getline(lines, standby);
      endpoints_.push_back(standby);
    }
    peer.host = hosts_.at(static_cast<std::size_t>(rank));
    peers.push_back(std::move(peer));
  }
  return peers;
}

World::Meeting World::prepare(const Plan& plan, bool first) {
  const auto [leads, alone] = place_of(plan, first);
  Meeting made;
  PeerInfo mine{.host = host_};
  if (leads) {
    made.offer = RegionOffer::open().value();
    mine.token = made.offer->token();
  }
  if (!alone) {
    made.listener = std::make_shared<DataListener>(DataListener::bind({address_, 0}).value());
    mine.endpoint = to_string(made.listener->endpoint());
  }
  made.text = text_of(mine, first ? standby() : std::string());
  return made;
}

std::shared_ptr<ProcessGroup> World::form(const Plan& plan) {
  if (is_watcher()) {
    throw BadConfig(plan.purpose, "it was called by what an abort called, in the thread that hears of deaths",
                    "form groups in another thread");
  }
  const MoveMeanwhile moves;  // a rank that is late may wait for what is in flight
  const MonotonicClock clock;
  const Instant until = clock.now() + options_.timeout;
  const auto left = [&] { return std::max(until - clock.now(), Duration::zero()); };
  (void)wait_for_store(0, options_.timeout);
  GroupFormation formation(plan.store ? store(*plan.store) : store(), plan.key, plan.purpose);

  const bool first = plan.key == kWorldPrefix;
  Meeting mine;
  Entry entry{.survivors = plan.survivors, .ranks = plan.members};
  try {
    mine = prepare(plan, first);
    entry.value = mine.text;
  } catch (const std::exception& e) {
    formation.begin(entry, options_.timeout);  // with nothing: a part of the formation, to say why it fails
    formation.give_up("rank " + std::to_string(rank()) + ": " + e.what(), std::current_exception());
  }
  const auto enter = [&] {
    try {
      return formation.enter(entry, options_.timeout);
    } catch (const Timeout&) {
      timed_out_ = true;
      throw;
    }
  };
  const auto entered = enter();
  if (first) {
    const std::lock_guard lock(mutex_);
    first_incarnation_ = entered.generation.incarnation;
  }
  std::vector<int> members;
  bool all_can = true;
  for (const auto& [rank, value] : entered.values) {
    members.push_back(rank);
    all_can = all_can && !value.empty();
  }
  if (!all_can) formation.ready(left());  // throws what that rank says next
  const auto name = [&](int r) { return std::to_string(members.at(static_cast<std::size_t>(r))); };
  std::vector<int> gone;
  for (std::size_t r = 0; r < plan.members.size(); ++r) {
    if (!std::binary_search(members.begin(), members.end(), plan.members[r]))
      gone.push_back(static_cast<int>(r));
  }
  std::shared_ptr<ProcessGroup> group;
  try {
    const auto place = std::lower_bound(members.begin(), members.end(), rank());
    InitOptions options = options_;
    if (plan.parent != nullptr) options.device = plan.parent->facts().device.index;
    group = factory_(BackendContext{.rank = static_cast<int>(place - members.begin()),
                                    .size = static_cast<int>(members.size()),
                                    .local_rank = place_.local_rank,
                                    .options = std::move(options),
                                    .predecessor = plan.survivors ? plan.parent : nullptr,
                                    .gone = std::move(gone),
                                    .store = formation,
                                    .group = plan.name,
                                    .generation = entered.generation,
                                    .until = until,
                                    .key = key_,
                                    .address = address_,
                                    .peers = learn(entered.values, first),
                                    .offer = mine.offer ? &*mine.offer : nullptr,
                                    .listener = std::move(mine.listener),
                                    .aborted = [&formation] { return formation.failed(); },
                                    .abort_fd = formation.failed_fd(),
                                    .purpose = plan.purpose,
                                    .name = name});
  } catch (const std::exception& e) {
    formation.give_up("rank " + std::to_string(rank()) + ": " + e.what(), std::current_exception());
  }
  // From here on no rank waits for another: when all are ready, all have a group, and if not, none has.
  try {
    formation.ready(left());
  } catch (const std::exception& e) {
    group->abort(e.what());  // or its end waits for ranks that are gone
    throw;
  }
  return adopt(std::move(group), std::move(members));
}

std::shared_ptr<ProcessGroup> World::adopt(std::shared_ptr<ProcessGroup> group, std::vector<int> members) {
  if (!flight::timeline_folder().empty()) {
    const char* run = std::getenv("TORCHELASTIC_RUN_ID");
    flight::record(*group, {.group = run != nullptr && *run != '\0' ? run : "group"});
  }
  group->set_origin(std::make_shared<WorldOrigin>(shared_from_this(), *group, members));
  std::vector<std::string> dead;
  {
    const std::lock_guard lock(mutex_);
    for (const int r : members) {
      if (const auto gone = gone_.find(r); gone != gone_.end() && gone->second.died)
        dead.push_back(to_string(r, gone->second));
    }
    groups_.emplace(group.get(), Formed{group, std::move(members)});
  }
  if (!dead.empty()) group->abort(dead.front());
  ProcessGroup* raw = group.get();
  return {raw, [world = shared_from_this(), group = std::move(group),
                guard = ForkGuard()](ProcessGroup* gone) mutable {
            if (guard.is_in_child()) {
              // Threads, connections and memory are the parent's: nothing is said or joined in its name.
              static_cast<void>(new auto(std::move(group)));
              static_cast<void>(new auto(std::move(world)));
              return;
            }
            world->forget(gone);
            group.reset();
            world.reset();
          }};
}

/// Returns when the watcher is through with the group: what the caller ends with it has ended then.
void World::forget(const ProcessGroup* group) {
  std::unique_lock lock(mutex_);
  groups_.erase(group);
  if (!is_watcher()) aborted_one_.wait(lock, [&] { return aborting_ != group; });
}

void World::on_gone(int rank, const Departure& departure) {
  if (departure.died) log(LogLevel::kInfo, to_string(rank, departure));
  std::unique_lock lock(mutex_);
  if (!gone_.emplace(rank, departure).second || !departure.died) return;
  std::vector<const ProcessGroup*> all;
  for (const auto& [raw, formed] : groups_) all.push_back(raw);
  // One at a time, and without the lock: an abort may use and end groups, the one that it is of, too.
  for (const ProcessGroup* raw : all) {
    const auto found = groups_.find(raw);
    if (found == groups_.end()) continue;
    const auto& [weak, members] = found->second;
    if (!std::binary_search(members.begin(), members.end(), rank)) continue;
    auto group = weak.lock();  // it is there: forget() comes before its end
    aborting_ = raw;
    lock.unlock();
    try {
      group->abort(to_string(rank, departure));
    } catch (const std::exception& e) {
      log(LogLevel::kWarning, std::string("the abort of a group failed: ") + e.what());
    }
    group.reset();
    lock.lock();
    aborting_ = nullptr;
    aborted_one_.notify_all();
  }
}

World::~World() {
  stopping_ = true;
  std::shared_ptr<StoreClient> client;
  bool good = false;
  {
    const std::lock_guard lock(mutex_);
    client = client_;
    good = store_good_;
  }
  if (client && good) client->leave(kLeaveTime);
  if (client) client->interrupt();
  if (watcher_.joinable()) watcher_.join();
  if (server_) server_->close(kLinger, !timed_out_);
}

}  // namespace troupe::collectives
