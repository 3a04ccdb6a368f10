/// The ranks of one job, as init_process_group brought them together: the store, who is there, and the groups
/// that were formed of them.
///
/// Rank 0 serves the store. Every rank listens at an address that the others learn when the first group is
/// formed: once the store is gone the lowest rank that lives serves a new one there, and the others join it,
/// each by itself (succession.cpp). What was in the old one is gone; members that live are not disturbed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/group_formation.hpp"
#include "collectives/rendezvous/init.hpp"
#include "collectives/rendezvous/meeting_file.hpp"

namespace troupe::collectives {

/// Thread-safe. Every group holds the world that it is of; the last one ends it.
///
/// One thread of a world hears of ranks that go, and aborts the groups that they are in. It holds no lock
/// meanwhile: what an abort calls may use and end groups, this world's too, but not form any. Whoever else
/// ends a group waits for its abort to return.
class World : public std::enable_shared_from_this<World> {
 public:
  /// Meets the others at `place`. Throws as init_process_group.
  static std::shared_ptr<World> join(std::string_view backend, const Rendezvous& place, InitOptions options,
                                     const Environment& environment);
  ~World();

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  Duration timeout() const { return options_.timeout; }
  /// Whether the store is still the one that rank `number` serves, and answers. Stores have the numbers of
  /// the ranks that serve them, which ascend: so all ranks call one alike, whichever they have seen.
  bool has_store(int number) const;
  /// The store that is served now.
  std::shared_ptr<StoreClient> store() const;
  /// The same, if it has this number. Throws Unavailable.
  std::shared_ptr<StoreClient> store(int number) const;
  /// Waits until a store is served that has this number or a later one: its number. Throws Unavailable when
  /// there will be none, Timeout.
  int wait_for_store(int number, Duration limit) const;

  /// A group to be formed.
  struct Plan {
    std::string key;             ///< of its formation, used once
    std::vector<int> members;    ///< ranks of the world, ascending, this one among them, who all call form()
    bool survivors = false;      ///< those of them that live form it: the next generation of `parent`
    std::optional<int> store{};  ///< at that one alone, by its number: the key is of it
    ProcessGroup* parent = nullptr;  ///< of whose ranks it is made; null: of the job's
    std::string name;                ///< of the group
    std::string purpose;             ///< what errors begin with
  };
  /// Throws as init_process_group; CollectiveAborted on every member or on none.
  std::shared_ptr<ProcessGroup> form(const Plan& plan);

 private:
  struct Formed {
    std::weak_ptr<ProcessGroup> group;
    std::vector<int> members;
  };

  /// Where the others find this rank while a group is formed, and the text that tells them.
  struct Meeting {
    std::optional<RegionOffer> offer;
    std::shared_ptr<const DataListener> listener;
    std::string text;
  };

  /// Holds the name for this rank in this process. Throws BadConfig where somebody else does.
  class NameLease {
   public:
    NameLease(const std::string& name, int rank);
    NameLease(const NameLease&) = delete;
    NameLease& operator=(const NameLease&) = delete;
    ~NameLease();

   private:
    std::pair<std::string, int> held_;
  };

  World(const Rendezvous& place, InitOptions options, BackendFactory factory)
      : place_(place),
        options_(std::move(options)),
        factory_(std::move(factory)),
        name_(options_.name, place.rank) {}

  void serve(const std::optional<JobKey>& key, const Environment& environment);
  void seek(const std::optional<JobKey>& key, const Environment& environment);
  bool try_to_enter(const Endpoint& at, const JobKey& key, bool key_may_change, ErrorInfo& last);
  void enter(std::shared_ptr<StoreClient> client);
  void watch();
  bool is_watcher() const { return std::this_thread::get_id() == watcher_.get_id(); }
  bool is_gone(int rank) const;
  bool server_lives(int server);
  bool succeed(bool died);
  bool join_successor(int rank, bool died);
  void serve_as_successor(bool died);
  void adopt_store(std::shared_ptr<StoreClient> client, std::unique_ptr<StoreServer> server, int rank);
  void find_the_dead(StoreServer& server, bool died);
  void on_gone(int rank, const Departure& departure);
  std::string standby();
  Meeting prepare(const Plan& plan, bool first);
  std::pair<bool, bool> place_of(const Plan& plan, bool first) const;
  std::vector<PeerInfo> learn(const std::vector<std::pair<int, std::string>>& values, bool first);
  std::shared_ptr<ProcessGroup> adopt(std::shared_ptr<ProcessGroup> group, std::vector<int> members);
  void forget(const ProcessGroup* group);

  Rendezvous place_;
  InitOptions options_;
  BackendFactory factory_;
  NameLease name_;
  JobKey key_{};
  std::string address_;  ///< of this machine, as the others see it
  std::string host_;
  std::optional<MeetingFile> meeting_file_;
  std::optional<LocalKeyFile> key_file_;
  Endpoint server_at_;  ///< of the store, as this rank came to it; the watcher's once that runs
  std::thread watcher_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> timed_out_{false};  ///< this rank waited for others as long as it was told to
  mutable std::mutex mutex_;            ///< of what follows
  mutable std::condition_variable store_changed_;
  std::unique_ptr<StoreServer> server_;  ///< of the rank that serves the store
  std::shared_ptr<StoreClient> client_;
  bool store_good_ = true;
  bool store_over_ = false;  ///< there will be no other
  bool taken_for_dead_ = false;
  std::string unreachable_;                       ///< why no other was found
  int server_rank_ = 0;                           ///< and the number of its store
  std::uint32_t first_incarnation_ = 0;           ///< of the job's first store
  std::optional<DataListener> standby_;           ///< where this rank would serve it
  std::vector<std::string> endpoints_;            ///< of everybody's standby_, by rank; empty: not known yet
  std::vector<std::string> hosts_;                ///< by rank
  std::map<int, Departure> gone_;                 ///< by rank
  std::map<const ProcessGroup*, Formed> groups_;  ///< alive
  const ProcessGroup* aborting_ = nullptr;        ///< the watcher is in it
  std::condition_variable aborted_one_;
};

}  // namespace troupe::collectives
