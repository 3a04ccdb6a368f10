// How a rank gets to the store of its job: rank 0 serves it, the others look for it.

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "collectives/native/process_engines.hpp"
#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/world.hpp"
#include "runtime/core/names.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

/// Between two looks for rank 0. It has to be asked: nobody is there yet who could tell, a refused connection
/// leaves nothing to wait for, and a file system that other hosts write to tells of no change.
constexpr Duration kRetryAfter = std::chrono::milliseconds(20);
constexpr Duration kConnectTime = std::chrono::seconds(10);

std::string purpose_of(const InitOptions& options) {
  return "cannot initialise the process group '" + options.name + "'";
}

/// The names in use, with the ranks that hold them: threads may be ranks of one group.
struct Names {
  std::mutex mutex;
  std::set<std::pair<std::string, int>> held;
};
Names& names() {
  static Names all;
  return all;
}

constexpr std::size_t kMaxHostBytes = 1024;

/// What a backend of ours would ignore is refused. One that a program added gets all options.
void check_options(std::string_view backend, const InitOptions& options) {
  if (auto wrong = check_name(options.name, "cannot initialise a process group"))
    throw_error(*std::move(wrong));
  const bool positive = options.timeout > Duration::zero() && options.operation_timeout > Duration::zero();
  if (!positive || options.timeout >= std::chrono::hours(24 * 365)) {
    throw BadConfig(purpose_of(options), "a timeout is not positive, or longer than a year",
                    "give timeout and operation_timeout as durations, for example 5min and 30s");
  }
  if (options.host.size() > kMaxHostBytes) {
    throw BadConfig(purpose_of(options),
                    "the name of this rank's host has " + std::to_string(options.host.size()) + " bytes",
                    "give at most " + std::to_string(kMaxHostBytes));
  }
  const bool is_ours = backend == "native" || backend == "nccl" || backend == "gloo" || backend == "mpi";
  const auto only = [&](const char* option, bool given, const char* owner) {
    if (!given || !is_ours || backend == owner) return;
    throw BadConfig(purpose_of(options),
                    std::string("the backend ") + std::string(backend) + " has no " + option,
                    std::string("leave it out, or use the backend ") + owner);
  };
  only("device", options.device != -1, "nccl");
  only("share_gpu", options.share_gpu, "nccl");
  only("compare_calls", options.compare_calls, "nccl");
  only("encrypt_data_plane", options.encrypt_data_plane, "native");
}

/// Without a key of the user's, nobody but processes of this machine may be let in.
void check_key_policy(const InitOptions& options, const std::string& host, bool has_key) {
  if (has_key || is_loopback(host)) return;
  throw BadConfig(
      purpose_of(options), "the ranks would meet at " + host + ", which other machines reach, without a key",
      "set TROUPE_JOB_KEY to the same 64 hexadecimal digits on every rank (openssl rand -hex 32), or "
      "TROUPE_JOB_KEY_FILE to a file with them");
}

}  // namespace

World::NameLease::NameLease(const std::string& name, int rank) : held_(name, rank) {
  const std::lock_guard lock(names().mutex);
  if (names().held.insert(held_).second) return;
  throw BadConfig("cannot initialise the process group '" + name + "'",
                  "rank " + std::to_string(rank) + " has a group of this name in this process",
                  "destroy it first, with all groups made of it, or give another name");
}

World::NameLease::~NameLease() {
  const std::lock_guard lock(names().mutex);
  names().held.erase(held_);
}

std::shared_ptr<World> World::join(std::string_view backend, const Rendezvous& place, InitOptions options,
                                   const Environment& environment) {
  check_options(backend, options);
  const MoveMeanwhile moves;  // a rank that is late may wait for what is in flight
  // Its own thread cannot end it: an abort may end the last group.
  std::shared_ptr<World> world(new World(place, std::move(options), find_backend(backend)), [](World* w) {
    if (w->is_watcher()) {
      start_quiet_thread([w] { delete w; }).detach();
    } else {
      delete w;
    }
  });
  const auto key = configured_job_key(world->options_.key, environment).value();
  world->host_ = world->options_.host.empty() ? host_identity() : world->options_.host;
  if (place.rank == 0) {
    world->serve(key, environment);
  } else {
    world->seek(key, environment);
  }
  return world;
}

void World::serve(const std::optional<JobKey>& key, const Environment& environment) {
  if (!place_.path.empty()) meeting_file_.emplace(MeetingFile::take(place_.path).value());
  address_ = resolve(place_.at.host, options_.timeout).value();
  if (!meeting_file_) check_key_policy(options_, address_, key.has_value());
  auto listener = DataListener::bind({address_, meeting_file_ ? std::uint16_t{0} : place_.at.port});
  if (!listener) {
    auto error = listener.error();
    error.what = purpose_of(options_) + ": rank 0 cannot serve the store at " + to_string(place_.at);
    error.todo =
        "give the address of rank 0's machine and a port that is free: another rank 0 or another job may "
        "have "
        "this one (torchrun has MASTER_PORT itself: set TROUPE_MASTER_PORT to another)";
    throw_error(std::move(error));
  }
  if (key) {
    key_ = *key;
  } else if (meeting_file_) {
    key_ = random_job_key();
  } else {
    key_file_.emplace(LocalKeyFile::create(place_.at.port, environment).value());
    key_ = key_file_->key();
  }
  const Endpoint at = listener->endpoint();
  // A job that comes after another at the same place has other generations; and there is room for successors.
  const auto incarnation = static_cast<std::uint32_t>(SystemRandom().next() >> 33) | 1;
  server_ = StoreServer::start(*std::move(listener),
                               {.key = key_, .world_size = place_.size, .incarnation = incarnation})
                .value();
  enter(std::make_shared<StoreClient>(server_->local_session()));
  // Only now, when rank 0 is in, so that nobody finds a store without it.
  if (meeting_file_)
    meeting_file_->write({.at = at, .key = key ? std::nullopt : std::optional(key_)}).value();
}

void World::seek(const std::optional<JobKey>& key, const Environment& environment) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options_.timeout;
  std::string host;
  if (place_.path.empty()) {
    host = resolve(place_.at.host, options_.timeout).value();
    check_key_policy(options_, host, key.has_value());
  }
  ErrorInfo last{ErrorCode::kUnavailable, "", "", ""};
  while (true) {
    Result<MeetingNote> note = MeetingNote{};
    if (!place_.path.empty()) {
      note = MeetingFile::read(place_.path);
    } else {
      *note = {.at = {host, place_.at.port}, .key = key};
      if (!key) {
        auto local = LocalKeyFile::read(place_.at.port, environment);
        if (local) {
          note->key = *local;
        } else {
          note = local.error();
        }
      }
    }
    if (note && !note->key) note->key = key;
    if (!note) {
      last = note.error();
      if (last.code != ErrorCode::kUnavailable) throw_error(last);
    } else if (!note->key) {
      throw BadConfig(purpose_of(options_),
                      "rank 0 was given a key and rank " + std::to_string(place_.rank) + " was not",
                      "set TROUPE_JOB_KEY or TROUPE_JOB_KEY_FILE on every rank");
    } else if (try_to_enter(note->at, *note->key, !key.has_value(), last)) {
      return;
    }
    if (clock.now() >= until) {
      if (last.code == ErrorCode::kRefused) throw_error(last);
      throw_error(
          {ErrorCode::kTimeout, purpose_of(options_),
           "rank 0 of " + std::to_string(place_.size) + " is missing at " + place_.url + " after " +
               std::to_string(
                   std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count()) +
               " ms (" + (last.why.empty() ? last.what : last.why) + ")",
           place_.path.empty()
               ? "start rank 0, and give every rank the same address, or raise the timeout"
               : "start rank 0, or raise the timeout; on several machines append ?host=ADDRESS, rank 0's"});
    }
    std::this_thread::sleep_for(kRetryAfter);
  }
}

bool World::try_to_enter(const Endpoint& at, const JobKey& key, bool key_may_change, ErrorInfo& last) {
  const StoreClient::Options options{.at = at,
                                     .key = key,
                                     .rank = place_.rank,
                                     .world_size = place_.size,
                                     .timeout = std::min(options_.timeout, kConnectTime)};
  Verdict verdict = Verdict::kWelcome;
  auto client = StoreClient::connect(options, &verdict);
  if (!client) {
    last = client.error();
    // A note or key that a job before left behind will be replaced.
    const bool stale = verdict == Verdict::kKey && key_may_change;
    if (verdict == Verdict::kKey) {
      last.what = purpose_of(options_) + " at " + place_.url;
      last.todo = "give every rank the same TROUPE_JOB_KEY or TROUPE_JOB_KEY_FILE";
    }
    if (last.code != ErrorCode::kRefused || stale) return false;
    if (verdict == Verdict::kWorldSize) {
      throw BadConfig(purpose_of(options_),
                      "rank 0 has another size of the job than the " + std::to_string(place_.size) +
                          " of rank " + std::to_string(place_.rank),
                      "give every rank the same WORLD_SIZE");
    }
    last.what = purpose_of(options_) + " at " + place_.url;
    throw_error(last);
  }
  key_ = key;
  try {
    // Within a host there is no address at this end: the server's is one of this host.
    address_ = own_address((*client)->fd()).value();
    if (address_.empty()) address_ = at.host;
    server_at_ = at;
    enter(*std::move(client));
    return true;
  } catch (const Unavailable& e) {  // rank 0 went, or this is the store of a job before
    last = e.info();
    return false;
  }
}

void World::enter(std::shared_ptr<StoreClient> client) {
  const StoreResponse answer = client->join(who_we_are());
  const std::string rank = "rank " + std::to_string(place_.rank);
  if (answer.status == StoreStatus::kTaken) {
    throw BadConfig(purpose_of(options_),
                    "there are two processes with " + rank + ": " + answer.value + " was first",
                    "give every process a RANK of its own");
  }
  if (answer.status == StoreStatus::kOver) {
    throw_error({ErrorCode::kUnavailable, purpose_of(options_),
                 rank + " (" + answer.value + ") was in the job that rank 0 still serves", ""});
  }
  client_ = std::move(client);
  watcher_ = start_quiet_thread([this] { watch(); });
}

std::shared_ptr<ProcessGroup> init_process_group(std::string_view backend, std::string_view url,
                                                 InitOptions options) {
  const Environment variables = [](const char* name) { return std::getenv(name); };
  const Rendezvous place = read_rendezvous(url, options.rank, options.size, variables).value();
  const std::string name = options.name, purpose = purpose_of(options);
  const auto world = World::join(backend, place, std::move(options), variables);
  std::vector<int> everybody(static_cast<std::size_t>(place.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return world->form({.key = kWorldPrefix, .members = everybody, .name = name, .purpose = purpose});
}

}  // namespace troupe::collectives
