// The store of a job outlives the rank that serves it: the lowest rank that lives serves the next one.
//
// When the store is gone, the thread of every rank tries the ranks in ascending order, except those that it
// knows to be dead. If the next one is itself, it serves a new store at its standby address. Otherwise it
// connects there. A refusal means that this rank is dead, too; an accepted connection means that this rank
// serves the store now, or soon. A host that is cut off does not refuse: its ranks are tried until the
// timeout. A living rank that the others take for dead joins nobody: its groups were aborted, and rebuild()
// tells it.

#include <thread>

#include "collectives/rendezvous/address.hpp"
#include "collectives/rendezvous/world.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kWatch = std::chrono::hours(1);  ///< of one request for the next event
constexpr Duration kTry = std::chrono::seconds(1);  ///< of one connection to a successor
constexpr Duration kTryAgain = std::chrono::milliseconds(20);
constexpr Duration kLook = std::chrono::milliseconds(500);  ///< of one look whether a rank lives
constexpr int kClients = StoreServer::kLocalSessions - 2;   ///< connections for threads that form groups

}  // namespace

Store& World::store() const {
  const std::lock_guard lock(mutex_);
  return *client_;
}

bool World::has_store(int number) const {
  try {
    (void)store().find("incarnation");
    const std::lock_guard lock(mutex_);
    return stores_ == number;
  } catch (const Unavailable&) {
    return false;
  }
}

int World::wait_for_store(int number, Duration limit) const {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return store_over_ || (store_good_ && stores_ >= number); };
  const bool in_time = store_changed_.wait_for(lock, limit, there);
  if (in_time && !store_over_) return stores_;
  throw_error(
      {in_time ? ErrorCode::kUnavailable : ErrorCode::kTimeout, "the store of the job is gone",
       "rank " + std::to_string(server_rank_) + ", which served it, left or died, and no rank serves another",
       "initialise the process group anew"});
}

/// A connection of one thread alone, since a wait keeps its connection for 50 ms. Null: kClients are in use,
/// or there is no more to be had. `number`: of the store, for give_client.
std::unique_ptr<StoreClient> World::take_client(int& number) {
  StoreClient::Options options;
  {
    const std::lock_guard lock(mutex_);
    number = stores_;
    if (!idle_.empty()) {
      auto client = std::move(idle_.back());
      idle_.pop_back();
      return client;
    }
    if (clients_ == kClients) return nullptr;
    ++clients_;
    if (server_) return std::make_unique<StoreClient>(server_->local_session());
    options = connect_;
  }
  auto made = StoreClient::connect(options);
  return made ? std::move(*made) : nullptr;
}

void World::give_client(std::unique_ptr<StoreClient> client, int number) {
  const std::lock_guard lock(mutex_);
  if (client && number == stores_) idle_.push_back(std::move(client));
}

/// Whom this rank's store turned away, if it serves one.
std::string World::strangers() const {
  const std::lock_guard lock(mutex_);
  return server_ ? server_->strangers() : std::string();
}

/// Where this rank would serve the store.
std::string World::standby() {
  standby_.emplace(DataListener::bind({address_, 0}).value());
  return to_string(standby_->endpoint());
}

void World::learn_standbys(const std::vector<std::string>& infos) {
  const std::lock_guard lock(mutex_);
  for (const auto& info : infos) endpoints_.push_back(info.substr(std::min(info.find(' ') + 1, info.size())));
}

void World::watch() {
  bool died = true;
  do {
    try {
      watch_events();
    } catch (const Unavailable& e) {
      // Who leaves ends no group; who dies does.
      died = e.info().why != kServerLeft;
    }
    int server = 0;
    {
      const std::lock_guard lock(mutex_);
      store_good_ = false;
      server = server_rank_;
    }
    if (!stopping_) on_gone(server, {.died = died, .who = "which served the store"});
  } while (!stopping_ && succeed(died));
  const std::lock_guard lock(mutex_);
  store_over_ = true;
  store_changed_.notify_all();
}

void World::watch_events() {
  for (std::uint64_t n = 0; !stopping_;) {
    const auto event = watching_->find_undisturbed("event/" + std::to_string(n), kWatch);
    if (!event) continue;
    on_event(*event);
    ++n;
  }
}

/// Finds or serves the next store; false: there is none.
bool World::succeed(bool died) {
  {
    const std::lock_guard lock(mutex_);
    if (endpoints_.empty()) return false;  // nobody knows anybody yet
  }
  try {
    for (int r = 0; r < size() && !stopping_; ++r) {
      if (!how_it_went(r).empty()) continue;
      if (r == rank()) {
        serve_as_successor();
      } else if (!join_successor(r, died)) {
        continue;
      }
      find_the_dead(died);
      return true;
    }
  } catch (const Error&) {
    // The store stays gone, and whoever asks for it is told.
  }
  return false;
}

/// False: that rank is gone.
bool World::join_successor(int r, bool died) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options_.timeout;
  const StoreClient::Options options{.at = parse_endpoint(endpoints_[static_cast<std::size_t>(r)]).value(),
                                     .key = key_,
                                     .rank = rank(),
                                     .world_size = size(),
                                     .server = r,
                                     .timeout = kTry};
  while (!stopping_) {
    const Instant begun = clock.now();
    auto client = StoreClient::connect(options);
    if (client) {
      auto watching = StoreClient::connect(options).value();
      if ((*client)->join(who_we_are()).status != StoreStatus::kOk) return false;
      {
        const std::lock_guard lock(mutex_);
        connect_ = options;
      }
      adopt_store(std::move(*client), std::move(watching), nullptr, r);
      return true;
    }
    if (client.error().code == ErrorCode::kUnavailable && clock.now() - begun < kTry / 2) {
      on_gone(r, {.died = died, .who = "at " + endpoints_[static_cast<std::size_t>(r)]});
      return false;
    }
    if (clock.now() >= until) throw_error(client.error());
    std::this_thread::sleep_for(kTryAgain);
  }
  return false;
}

void World::serve_as_successor() {
  auto server =
      StoreServer::start(*std::move(standby_), key_, size(), std::chrono::seconds(5), rank()).value();
  auto client = std::make_unique<StoreClient>(server->local_session());
  auto watching = std::make_unique<StoreClient>(server->local_session());
  (void)client->join(who_we_are());
  // Later than every generation so far, whoever made it.
  Generation latest;
  {
    const std::lock_guard lock(mutex_);
    latest = latest_;
  }
  client->set("incarnation", std::to_string(latest.incarnation + 1));
  adopt_store(std::move(client), std::move(watching), std::move(server), rank());
}

void World::adopt_store(std::unique_ptr<StoreClient> client, std::unique_ptr<StoreClient> watching,
                        std::unique_ptr<StoreServer> server, int r) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::exchange(client_, std::move(client)));
  retired_.push_back(std::exchange(watching_, std::move(watching)));
  server_ = std::move(server);
  server_rank_ = r;
  idle_.clear();
  clients_ = 0;
  ++stores_;
  store_good_ = true;
  store_changed_.notify_all();
}

/// Nobody tells the new store of ranks that died with the old one: looks who listens no more.
void World::find_the_dead(bool died) {
  const MonotonicClock clock;
  for (int r = 0; r < size() && !stopping_; ++r) {
    if (r == rank() || !how_it_went(r).empty()) continue;
    const std::string& at = endpoints_[static_cast<std::size_t>(r)];
    const Instant begun = clock.now();
    const bool there = dial(parse_endpoint(at).value(), kLook).ok();
    if (!there && clock.now() - begun < kLook / 2) on_gone(r, {.died = died, .who = "at " + at});
  }
}

}  // namespace troupe::collectives
