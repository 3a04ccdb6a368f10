/// Plain calls beside the job: callers that hold some under way at every moment, to light actors and isolated
/// ones that come and go. Every call ends once, in order at its receiver; every death is told once; whoever
/// is killed dies; and nobody is called dead who lives.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/client/session.hpp"
#include "runtime/wire/messages.hpp"
#include "tests/simulation/saves.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Hosted;

/// What is true of the actors that are called, whoever knows it.
class Load {
 public:
  explicit Load(Cluster& cluster) : saved(cluster), cluster_(cluster) {}

  SavedCounts saved;

  std::uint64_t new_echo() { return ++echoes_; }
  /// It is started again when it dies, so often (-1: without end). `retries`: its calls may run twice.
  void restarts(std::uint64_t echo, int most, bool retries) {
    all_[echo].retries = retries, all_[echo].restarts = true, all_[echo].max_restarts = most;
  }
  /// It outlives the program that spawned it.
  void detached(std::uint64_t echo) {
    all_[echo].detached = true;
    saved.detached(echo);
  }
  bool holds_detached(const Hosted& who) const;
  /// A program has it.
  void found_detached(ActorId id, const Hosted& by);
  bool retries(std::uint64_t echo) { return all_[echo].retries; }
  bool has_other_lives(std::uint64_t echo) { return all_[echo].restarts; }
  void up(std::uint64_t echo, ActorId id);
  /// That life of it is to go on elsewhere, since its node drains.
  void moves(ActorId id, std::uint32_t incarnation) { moves_[id].insert(incarnation); }
  /// How many lives it has had.
  std::uint64_t life(std::uint64_t echo) { return all_[echo].lives; }
  void constructed(std::uint64_t echo, Hosted& in);
  void destroyed(std::uint64_t echo, const Hosted& in);
  /// It is to end, if it ever lives.
  void killed(std::uint64_t echo, const Hosted& by) { unwanted_[echo].try_emplace(&by, cluster_now()); }
  void watched(std::uint64_t echo, const Hosted& by);
  void told(std::uint64_t echo, const Hosted& by);
  /// An error that a caller got. `about`: the actors that it may be about.
  void failed(const ErrorInfo& error, const std::vector<std::uint64_t>& about);
  void answered() { ++answers; }
  /// Every now and then: nothing is owed for longer than `bound` after the last fault.
  void look(Duration bound);

  long answers = 0;
  long errors = 0;
  long deaths_told = 0;
  long restarted = 0;  ///< lives but the first
  long groups_ready = 0;
  long groups_removed = 0;
  long taken_over = 0;  ///< detached actors that another program had before

 private:
  struct Echo {
    Hosted* in = nullptr;
    bool destroyed = false;
    Instant gone_at{};  ///< first seen to be gone
    ActorId id{};       ///< once it is up
    bool restarts = false;
    bool retries = false;
    bool detached = false;
    std::uint64_t lives = 0;
    int max_restarts = -1;
    std::uint64_t lives_at_up = 0;  ///< a first life that nobody heard of may have begun on several nodes
    std::map<const Hosted*, int> watchers;  ///< words of the death that are owed
  };
  Instant cluster_now() const;
  bool has_no_life(const Echo& echo) const;
  /// And there will be no other.
  bool is_gone(const Echo& echo) const;
  Cluster& cluster_;
  std::map<std::uint64_t, Echo> all_;
  std::map<std::uint64_t, std::map<const Hosted*, Instant>> unwanted_;  ///< by whom, since when
  std::map<ActorId, const Hosted*> found_;  ///< detached ones, and who had them last
  std::map<ActorId, std::set<std::uint32_t>> moves_;
  std::uint64_t echoes_ = 0;
};

struct EchoAnswer {
  std::uint64_t sequence = 0;
  Known known;
};

/// Is called. Light or isolated. Saves how many calls it has carried out.
class EchoActor {
 public:
  explicit EchoActor(std::uint64_t number);
  ~EchoActor();
  EchoActor(const EchoActor&) = delete;
  EchoActor& operator=(const EchoActor&) = delete;

  /// Answers `sequence` after a while, and tells of itself. The calls of one caller come in order.
  Future<EchoAnswer> echo(std::uint64_t caller, std::uint64_t sequence, std::string padding);
  /// Answers what `next` answers.
  Future<EchoAnswer> relay(std::uint64_t caller, std::uint64_t sequence, ActorHandle<EchoActor> next);
  /// Wants no answer.
  void note(std::uint64_t caller, std::uint64_t sequence, std::string padding);

  std::uint64_t save() const { return count_; }
  void load(std::uint64_t saved) { count_ = saved; }

 private:
  void in_order(std::uint64_t caller, std::uint64_t sequence);
  const std::uint64_t number_;
  std::uint64_t life_ = 0;
  std::uint64_t count_ = 0;
  bool has_begun_ = false;
  std::map<std::uint64_t, std::uint64_t> last_;  ///< sequence by caller
  std::map<ActorId, std::uint64_t> sequences_;   ///< of its own calls
};

/// Calls, makes placement groups, and has some of those whom it calls in them. A light actor of its process.
class CallerActor {
 public:
  CallerActor();

 private:
  struct Callee {
    std::uint64_t number = 0;
    ActorHandle<EchoActor> handle;
    std::uint64_t sequence = 0;
    std::uint64_t life = 0;  ///< the last that an answer came from
  };
  void make_group_later();
  void make_group();
  void remove_group(GroupId group);
  void submit_into(GroupId group);
  Future<wire::GroupAnswer> ask(cluster::GroupVerb verb, GroupId group, cluster::GroupSpec spec = {});
  void fill(std::size_t at);
  void up(std::size_t at, std::uint64_t number, const ActorHandle<EchoActor>& handle);
  void call(std::size_t at);
  void ended(std::size_t at, std::uint64_t number, std::uint64_t expectation,
             const Result<EchoAnswer>& answer, std::uint64_t sequence, std::uint64_t other);

  ActorContext& me_;
  Hosted& process_;
  Cluster& cluster_;
  const std::uint64_t number_;
  std::vector<Callee> callees_;
  std::map<GroupId, std::vector<std::uint64_t>> groups_;  ///< that were made: who was spawned into them
};

}  // namespace troupe::sim
