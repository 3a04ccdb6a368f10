// The store of a job outlives the rank that serves it: the lowest rank that lives serves the next one.
//
// When the store is gone, the thread of every rank tries the ranks in ascending order, except those that it
// knows to be dead. If the next one is itself, it serves a new store at its standby address. Otherwise it
// connects there. A refusal means that this rank is dead, too; an accepted connection means that this rank
// serves the store now, or soon. Whatever else goes wrong says nothing of it: neither side of a cut network
// refuses, so a rank that cannot be reached is tried until the timeout. A living rank that the others take
// for dead, for it was silent, joins and serves nothing: its groups were aborted, and rebuild() tells it. It
// learns so from the store that answers still, or from the next.

#include <thread>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/world.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kTry = std::chrono::seconds(1);             ///< of one connection to a successor
constexpr Duration kTryAgain = std::chrono::milliseconds(20);  ///< nobody tells when it serves
constexpr Duration kLook = std::chrono::milliseconds(500);     ///< of one look whether a rank lives

}  // namespace

std::shared_ptr<StoreClient> World::store() const {
  const std::lock_guard lock(mutex_);
  return client_;
}

std::shared_ptr<StoreClient> World::store(int number) const {
  const std::lock_guard lock(mutex_);
  if (server_rank_ == number) return client_;
  throw_error(
      {ErrorCode::kUnavailable, "the store of the job is gone", "another rank serves the next one", ""});
}

bool World::has_store(int number) const {
  try {
    (void)store()->find("is anybody there");
    const std::lock_guard lock(mutex_);
    return server_rank_ == number;
  } catch (const Unavailable&) {
    return false;
  }
}

int World::wait_for_store(int number, Duration limit) const {
  // The watcher is the one that finds the next store.
  if (is_watcher()) limit = Duration::zero();
  std::unique_lock lock(mutex_);
  const auto there = [&] { return store_over_ || (store_good_ && server_rank_ >= number); };
  const bool in_time = store_changed_.wait_for(lock, limit, there);
  if (in_time && !store_over_) return server_rank_;
  std::string why =
      "rank " + std::to_string(server_rank_) + ", which served it, left or died, and no rank serves another";
  if (!unreachable_.empty()) why += " (" + unreachable_ + ")";
  if (taken_for_dead_) why = "the others took this rank for dead, for it was silent too long";
  throw_error({in_time ? ErrorCode::kUnavailable : ErrorCode::kTimeout, "the store of the job is gone",
               std::move(why), "initialise the process group anew"});
}

/// Where this rank would serve the store.
std::string World::standby() {
  standby_.emplace(DataListener::bind({address_, 0}).value());
  return to_string(standby_->endpoint());
}

void World::watch() {
  bool died = true;
  do {
    const auto client = store();
    try {
      while (!stopping_) {
        const auto [rank, departure] = client->next_departure();
        on_gone(rank, departure);
      }
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
    if (!stopping_ && died && server != rank() && server_lives(server)) break;
    if (!stopping_) on_gone(server, {.died = died, .who = "which served the store"});
  } while (!stopping_ && succeed(died));
  const std::lock_guard lock(mutex_);
  store_over_ = true;
  store_changed_.notify_all();
}

/// Whether the store whose connection has ended is there: then this rank is the one that went.
bool World::server_lives(int server) {
  const auto client = StoreClient::connect({.at = server_at_,
                                            .key = key_,
                                            .rank = rank(),
                                            .world_size = size(),
                                            .server = server,
                                            .timeout = kTry});
  const std::lock_guard lock(mutex_);
  taken_for_dead_ = static_cast<bool>(client);
  return taken_for_dead_;
}

/// Finds or serves the next store; false: there is none for this rank.
bool World::succeed(bool died) {
  {
    const std::lock_guard lock(mutex_);
    if (endpoints_.empty()) return false;  // nobody knows anybody yet
  }
  try {
    for (int r = 0; r < size() && !stopping_; ++r) {
      if (is_gone(r)) continue;
      if (r == rank()) {
        serve_as_successor(died);
        return true;
      }
      if (join_successor(r, died)) return true;
    }
  } catch (const Refused&) {
    const std::lock_guard lock(mutex_);
    taken_for_dead_ = true;
  } catch (const Error& e) {
    // The store stays gone, and whoever asks for it is told.
    const std::lock_guard lock(mutex_);
    unreachable_ = e.what();
  }
  return false;
}

/// False: that rank is gone. Throws Refused where it takes this one for dead.
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
    bool refused = false;
    auto client = StoreClient::connect(options, nullptr, &refused);
    if (client) {
      try {
        if ((*client)->join(who_we_are()).status != StoreStatus::kOk)
          throw_error({ErrorCode::kRefused, "cannot join the next store", "it takes this rank for dead", ""});
        server_at_ = options.at;
        adopt_store(*std::move(client), nullptr, r);
        return true;
      } catch (const Unavailable&) {  // it went meanwhile, and will refuse
        if (clock.now() >= until) throw;
      }
    } else if (refused) {
      on_gone(r, {.died = died, .who = "at " + endpoints_[static_cast<std::size_t>(r)]});
      return false;
    } else if (clock.now() >= until) {
      throw_error(client.error());
    }
    std::this_thread::sleep_for(kTryAgain);
  }
  return false;
}

void World::serve_as_successor(bool died) {
  std::map<int, Departure> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = gone_;
  }
  // Ranks serve in ascending order, so generations are later than every one so far, whoever made it.
  auto server = StoreServer::start(*std::move(standby_),
                                   {.key = key_,
                                    .world_size = size(),
                                    .rank = rank(),
                                    .incarnation = first_incarnation_ + static_cast<std::uint32_t>(rank()),
                                    .gone = gone})
                    .value();
  const auto client = std::make_shared<StoreClient>(server->local_session());
  (void)client->join(who_we_are());
  StoreServer& served = *server;
  adopt_store(client, std::move(server), rank());
  find_the_dead(served, died);
}

void World::adopt_store(std::shared_ptr<StoreClient> client, std::unique_ptr<StoreServer> server, int r) {
  const std::lock_guard lock(mutex_);
  client_ = std::move(client);
  if (stopping_) client_->interrupt();
  server_ = std::move(server);
  server_rank_ = r;
  store_good_ = true;
  store_changed_.notify_all();
}

/// The new store knows nothing of ranks that died with the old one: looks who listens no more, and tells it.
/// Who listens may still die before it has joined, in the middle of its handshake, too: the store looks out
/// for that.
void World::find_the_dead(StoreServer& server, bool died) {
  for (int r = 0; r < size() && !stopping_; ++r) {
    if (r == rank() || is_gone(r)) continue;
    const std::string& at = endpoints_[static_cast<std::size_t>(r)];
    const Departure departure{.died = died, .who = "at " + at};
    bool refused = false;
    auto there = dial(parse_endpoint(at).value(), kLook, &refused);
    if (there) {
      server.look_out(r, *std::move(there), departure);
    } else if (refused) {
      server.look_out(r, UniqueFd(), departure);
    }
  }
}

}  // namespace troupe::collectives
