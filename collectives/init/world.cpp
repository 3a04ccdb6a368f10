#include "collectives/init/world.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "collectives/init/address.hpp"
#include "collectives/init/exchange.hpp"
#include "collectives/init/origin.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(50);
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr Duration kLeaveTime = std::chrono::seconds(1);
constexpr std::size_t kMaxOutcomeChars = 4096;
constexpr const char* kFormed = "formed";
constexpr const char* kDied = "died";

constexpr std::size_t kShownRanks = 32;  ///< of a list in an error

/// A list as ranks compare it and as errors show it: other lists have another text.
std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  std::uint64_t hash = ranks.size();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    hash = mix(hash, static_cast<std::uint64_t>(ranks[i]));
    if (i < kShownRanks) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() <= kShownRanks) return text;
  return text + " and more, " + std::to_string(ranks.size()) + " in all (" + to_hex(hash) + ")";
}

Generation parse_generation(const std::string& text) {
  Generation generation;
  const auto dot = text.find('.');
  const char* end = text.data() + text.size();
  if (dot == std::string::npos ||
      std::from_chars(text.data(), text.data() + dot, generation.incarnation).ptr != text.data() + dot ||
      std::from_chars(text.data() + dot + 1, end, generation.counter).ptr != end) {
    throw_error({ErrorCode::kBadInput, "cannot form a process group", "rank 0 published no generation",
                 "the ranks run different builds"});
  }
  return generation;
}

}  // namespace

/// The keys of one group that is being formed. Waits end once a member is gone, or gives up.
class World::GroupStore final : public Store {
 public:
  GroupStore(World& world, const std::string& prefix, const std::vector<int>& members,
             const std::string& purpose)
      : world_(world),
        client_(world.take_client(number_)),
        keys_(client_ ? static_cast<Store&>(*client_) : world.store(), prefix + "form/"),
        members_(members),
        purpose_(purpose) {}
  ~GroupStore() override { world_.give_client(std::move(client_), number_); }

  void set(const std::string& key, std::string_view value) override { keys_.set(key, value); }
  std::string set_once(const std::string& key, std::string_view value) override {
    return keys_.set_once(key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t by) override { return keys_.add(key, by); }
  std::int64_t erase(const std::string& prefix) override { return keys_.erase(prefix); }

  std::optional<std::string> find(const std::string& key, Duration wait) override {
    const MonotonicClock clock;
    const Instant until = clock.now() + wait;
    while (true) {
      const Duration left = std::max(until - clock.now(), Duration::zero());
      auto value = keys_.find(key, std::min(left, kSlice));
      if (value || clock.now() >= until) return value;
      const auto missing = world_.missing_member(members_);
      const auto outcome = keys_.find("outcome");
      if (missing.empty() && (!outcome || *outcome == kFormed)) continue;
      // What was waited for may have come before the others went.
      if ((value = keys_.find(key))) return value;
      if (outcome && *outcome != kFormed) throw_outcome(*outcome);
      throw_error({ErrorCode::kAborted, purpose_, missing, "start it again, or go on without that rank"});
    }
  }

  /// The keys of all groups.
  Store& everybodys() { return world_.store(); }

  bool aborted() {
    const auto outcome = keys_.find("outcome");
    return (outcome && *outcome != kFormed) || !world_.missing_member(members_).empty();
  }

  /// This member needs the keys no more. The last one takes them away, and those of an agreement before.
  void done(const std::string& prefix) {
    try {
      if (keys_.add("done", 1) < static_cast<std::int64_t>(members_.size())) return;
      keys_.erase("");
      everybodys().erase(prefix + "here/");
    } catch (const Error&) {
      // The store is gone, and the keys with it.
    }
  }

  /// Says how it ended, unless somebody did before; returns what counts for all.
  std::string settle(const std::string& outcome) { return keys_.set_once("outcome", outcome); }

  /// "gone ..." or "failed ...", as settle() was told.
  [[noreturn]] void throw_outcome(const std::string& outcome) const {
    const bool gone = outcome.starts_with("gone ");
    throw_error({gone ? ErrorCode::kAborted : ErrorCode::kUnavailable, purpose_,
                 outcome.substr(std::min(outcome.find(' ') + 1, outcome.size())),
                 gone ? "start it again, or go on without that rank" : ""});
  }

 private:
  World& world_;
  int number_ = 0;                       ///< of the store
  std::unique_ptr<StoreClient> client_;  ///< this thread's; null: it shares the world's
  PrefixStore keys_;
  const std::vector<int>& members_;
  const std::string& purpose_;
};

std::string World::how_it_went(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = gone_.find(rank);
  if (found == gone_.end()) return {};
  return "rank " + std::to_string(rank) + " (" + found->second.who + ") " +
         (found->second.died ? kDied : "left");
}

std::string World::missing_member(const std::vector<int>& members) const {
  for (const int r : members) {
    if (auto how = how_it_went(r); !how.empty()) return how;
  }
  return {};
}

Generation World::next_generation(Store& store) {
  std::uint32_t fresh = 0;
  SystemRandom random;
  while (fresh == 0) fresh = static_cast<std::uint32_t>(random.next() >> 33);  // room for successors
  const std::string incarnation = store.set_once("incarnation", std::to_string(fresh));
  return parse_generation(incarnation + "." + std::to_string(store.add("generation", 1)));
}

std::shared_ptr<ProcessGroup> World::form(const std::string& prefix, const std::vector<int>& members,
                                          const std::string& name_of_group, const std::string& purpose) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options_.timeout;
  const auto left = [&] { return std::max(until - clock.now(), Duration::zero()); };
  const auto name = [&](int r) { return std::to_string(members.at(static_cast<std::size_t>(r))); };
  const int size = static_cast<int>(members.size());
  const int rank =
      static_cast<int>(std::lower_bound(members.begin(), members.end(), place_.rank) - members.begin());
  (void)wait_for_store(0, options_.timeout);
  GroupStore store(*this, prefix, members, purpose);
  std::shared_ptr<ProcessGroup> group;
  std::string outcome;
  try {
    const std::string mine = text_of(members);
    if (const std::string first = store.set_once("ranks", mine); first != mine) {
      throw BadConfig(purpose,
                      "rank " + name(rank) + " called it with other ranks than who came first: with " + mine +
                          ", and not with " + first,
                      "give every rank the same list, in the same order of calls");
    }
    // Rank 0's generation is the group's.
    const bool first = prefix == kWorldPrefix;
    const std::string generation = rank == 0 ? to_string(next_generation(store.everybodys())) : "";
    const auto infos = exchange(store, "enter", generation + " " + (first ? standby() : ""),
                                {.rank = rank,
                                 .size = size,
                                 .timeout = left(),
                                 .hint = [this] { return strangers(); },
                                 .purpose = purpose,
                                 .name = name});
    if (first) learn_standbys(infos);
    group = factory_(
        BackendContext{.rank = rank,
                       .size = size,
                       .local_rank = place_.local_rank,
                       .device = options_.device,
                       .share_gpu = options_.share_gpu,
                       .store = store,
                       .lasting_store = std::make_shared<PrefixStore>(this->store(), prefix),
                       .group = name_of_group,
                       .generation = parse_generation(infos.front().substr(0, infos.front().find(' '))),
                       .timeout = left(),
                       .operation_timeout = options_.operation_timeout,
                       .data_bytes = options_.data_bytes,
                       .key = key_,
                       .address = address_,
                       .host = host_,
                       .aborted = [&store] { return store.aborted(); },
                       .purpose = purpose,
                       .name = name});
    // From here on no rank waits for another: when all are ready, all have a group, and if not, none has.
    store.set("ready/" + std::to_string(rank), "1");
    for (int r = 0; rank == 0 && r < size; ++r) (void)store.get("ready/" + std::to_string(r), left());
    outcome = rank == 0 ? store.settle(kFormed) : store.get("outcome", left());
  } catch (const std::exception& e) {
    const auto missing = missing_member(members);
    const std::string why = "failed rank " + std::to_string(place_.rank) + ": " + e.what();
    outcome = store.settle(missing.empty() ? why.substr(0, kMaxOutcomeChars) : "gone " + missing);
    const auto* error = dynamic_cast<const Error*>(&e);
    const bool follows = error != nullptr &&
                         (error->code() == ErrorCode::kAborted || error->code() == ErrorCode::kUnavailable);
    if (outcome == kFormed ? group == nullptr : !follows && outcome.starts_with("failed ")) throw;
  }
  if (outcome != kFormed) store.throw_outcome(outcome);
  store.done(prefix);
  return adopt(std::move(group), members);
}

std::shared_ptr<ProcessGroup> World::adopt(std::shared_ptr<ProcessGroup> group,
                                           const std::vector<int>& members) {
  group->set_origin(std::make_shared<WorldOrigin>(shared_from_this(), *group, members));
  {
    const std::lock_guard lock(mutex_);
    groups_.emplace(group.get(), members);
    latest_ = std::max(latest_, group->generation());
  }
  for (const int r : members) {
    if (const auto how = how_it_went(r); how.ends_with(kDied)) group->abort(how);
  }
  ProcessGroup* raw = group.get();
  // The world hears first, so that its watcher never touches a group that is being destroyed.
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

void World::forget(const ProcessGroup* group) {
  std::unique_lock lock(mutex_);
  // Unless it is the watcher itself that ends it.
  if (std::this_thread::get_id() != watcher_.get_id())
    aborted_one_.wait(lock, [&] { return aborting_ != group; });
  std::erase_if(groups_, [&](const auto& entry) { return entry.first == group; });
}

/// "lost RANK WHO" or "left RANK WHO".
void World::on_event(const std::string& event) {
  constexpr std::size_t kWordChars = 5;
  int rank = -1;
  const char* end = event.data() + event.size();
  if (event.size() < kWordChars) return;
  const auto [at, error] = std::from_chars(event.data() + kWordChars, end, rank);
  if (error != std::errc{} || at == end) return;
  on_gone(rank, {.died = event.starts_with("lost"), .who = std::string(at + 1, end)});
}

void World::on_gone(int rank, const Gone& gone) {
  if (gone.died) log(LogLevel::kInfo, "rank " + std::to_string(rank) + " (" + gone.who + ") died");
  std::unique_lock lock(mutex_);
  if (!gone_.emplace(rank, gone).second || !gone.died) return;
  std::set<const ProcessGroup*> done;
  // One at a time, without the lock: an abort may end other groups.
  for (auto at = groups_.begin(); at != groups_.end();) {
    const auto& [group, members] = *at;
    if (!std::binary_search(members.begin(), members.end(), rank) || !done.insert(group).second) {
      ++at;
      continue;
    }
    aborting_ = group;
    lock.unlock();
    aborting_->abort("rank " + std::to_string(rank) + " (" + gone.who + ") " + kDied);
    lock.lock();
    aborting_ = nullptr;
    aborted_one_.notify_all();
    at = groups_.begin();
  }
}

World::~World() {
  stopping_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (client_ && store_good_) client_->leave(kLeaveTime);
    if (watching_) watching_->interrupt();
  }
  if (watcher_.joinable()) watcher_.join();
  if (server_) server_->close(kLinger);
}

}  // namespace troupe::collectives
