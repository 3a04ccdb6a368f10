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
#include "collectives/rendezvous/init.hpp"
#include "collectives/rendezvous/meeting_file.hpp"
#include "collectives/rendezvous/store_client.hpp"

namespace troupe::collectives {

/// Thread-safe. Every group holds the world that it is of; the last one ends it.
class World : public std::enable_shared_from_this<World> {
 public:
  /// Meets the others at `place`. Throws as init_process_group.
  static std::shared_ptr<World> join(std::string_view backend, const Rendezvous& place, InitOptions options,
                                     const Environment& environment);
  ~World();

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  Duration timeout() const { return options_.timeout; }
  /// Whether the `number`th store is still the one, and answers.
  bool has_store(int number) const;
  /// The store that is served now; it outlives its successors.
  Store& store() const;
  /// Waits until a store is served that is at least the `number`th, from 0: its number. Throws Unavailable
  /// when there will be none, Timeout.
  int wait_for_store(int number, Duration limit) const;

  /// Forms a group of `members` (ranks of the world, ascending, this one among them), who all call it.
  /// `prefix`: of its keys in the store, used once. `name`: of the group. Throws as init_process_group;
  /// CollectiveAborted on every member or on none.
  std::shared_ptr<ProcessGroup> form(const std::string& prefix, const std::vector<int>& members,
                                     const std::string& name, const std::string& purpose);

  /// How a rank went, or empty while it is there.
  std::string how_it_went(int rank) const;

 private:
  class GroupStore;
  struct Gone {
    bool died = false;
    std::string who;
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
  void enter(std::unique_ptr<StoreClient> client, std::unique_ptr<StoreClient> watching);
  void watch();
  void watch_events();
  std::string standby();
  std::string strangers() const;
  void learn_standbys(const std::vector<std::string>& infos);
  bool succeed(bool died);
  bool join_successor(int rank, bool died);
  void serve_as_successor();
  void adopt_store(std::unique_ptr<StoreClient> client, std::unique_ptr<StoreClient> watching,
                   std::unique_ptr<StoreServer> server, int rank);
  void find_the_dead(bool died);
  void on_event(const std::string& event);
  void on_gone(int rank, const Gone& gone);
  /// A sentence on the first of `members` that is not there any more; empty: all are.
  std::string missing_member(const std::vector<int>& members) const;
  Generation next_generation(Store& store);
  std::shared_ptr<ProcessGroup> adopt(std::shared_ptr<ProcessGroup> group, const std::vector<int>& members);
  std::unique_ptr<StoreClient> take_client(int& number);
  void give_client(std::unique_ptr<StoreClient> client, int number);
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
  std::unique_ptr<StoreServer> server_;  ///< of the rank that serves the store
  std::unique_ptr<StoreClient> client_;
  std::unique_ptr<StoreClient> watching_;
  StoreClient::Options connect_;  ///< how the others reach the store
  std::thread watcher_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;  ///< of what follows, and of the store above once the watcher runs
  mutable std::condition_variable store_changed_;
  bool store_good_ = true;
  bool store_over_ = false;  ///< there will be no other
  int stores_ = 0;           ///< so many successors served one
  int server_rank_ = 0;
  std::optional<DataListener> standby_;                ///< where this rank would serve it
  std::vector<std::string> endpoints_;                 ///< of everybody's standby_, by rank
  std::vector<std::unique_ptr<StoreClient>> retired_;  ///< of stores that are gone; groups may hold them
  Generation latest_;                                  ///< of the groups of this rank
  std::condition_variable aborted_one_;
  ProcessGroup* aborting_ = nullptr;                  ///< the watcher is in it
  std::vector<std::unique_ptr<StoreClient>> idle_;    ///< of threads that formed groups
  int clients_ = 0;                                   ///< so many were made for that
  std::map<int, Gone> gone_;                          ///< by rank
  std::map<ProcessGroup*, std::vector<int>> groups_;  ///< alive, with their members
};

}  // namespace troupe::collectives
