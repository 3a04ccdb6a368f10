/// A process of a user: the production runtime/host in one thread, over a simulated socket to its node and
/// simulated rings. CAF's test coordinator holds its actors; which of them has its turn next, the seed says.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "runtime/client/session.hpp"
#include "runtime/host/process.hpp"
#include "tests/simulation/pipe.hpp"
#include "tests/simulation/spill_disk.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Node;
class SimDirect;
class SimRings;

struct Hosted : Process {
  Hosted(Cluster& in, Node& on, ProcessId as, std::string process_name, int on_host);
  ~Hosted() override;
  /// Events of this process run in here: in its name, without waiting; its actors then take their turns.
  void run(const std::function<void()>& what) override;
  /// The process whose event runs now.
  static Hosted& current();
  static Hosted* running();  ///< null: none

  /// From its node's socket.
  void receive(Message message);
  /// Broken on purpose: what it asks others is answered by nobody.
  bool answers_itself(const wire::FrameHeader& header);
  /// The node's end of the socket has closed.
  void node_closed();
  /// The memory goes without another word to anybody. Once it is gone this does nothing.
  void tear_down();

  ProcessAddress address() const;
  bool has_lost_node() const { return lost_node_; }
  Session session() { return Session(*runtime); }
  Instant now() const;

  /// Something that has to come within `bound`: an answer, a word of a death. Must be met once.
  std::uint64_t expect(std::string what, Duration bound);
  void met(std::uint64_t expectation);
  struct Expected {
    std::string what;
    Instant since{};
    Duration bound{};
  };
  std::map<std::uint64_t, Expected> expected;

  /// It dies when it has said so many more frames to its node: also in the middle of what it does.
  int die_after_frames = -1;

  Cluster& cluster;
  Node* node;
  ProcessId process;
  std::unique_ptr<troupe::Process> runtime;  ///< once it was told who it is, and has loaded its libraries
  std::shared_ptr<Pipe> to_node;
  std::shared_ptr<Pipe> from_node;
  const std::shared_ptr<SimSpillDisk> spill_disk;
  SimDirect* direct = nullptr;  ///< while it is up
  bool has_waited = false;      ///< a task of it has left its CPUs to others: they may be held twice since

 protected:
  /// The runtime is up.
  virtual void up() {}
  /// It is taken down: its own threads end.
  virtual void ended() {}
  /// Its node says to leave, or is gone.
  virtual void told_to_leave();
  bool lost_node_ = false;

 private:
  class Channel;
  void boot(const wire::Configure& configure);
  void take_turns();
  void take_turn();
  void wake_for_timers();

  std::deque<Message> inbox_;  ///< what came before it was up
  Channel* channel_ = nullptr;
  bool turn_is_due_ = false;
  bool torn_down_ = false;
  std::uint64_t rounds_ = 0;  ///< of turns: one that waits in the middle of them is left behind
  Instant woken_at_{-1};
  caf::actor_clock::time_point first_{};
  std::uint64_t expectations_ = 0;
  std::set<ActorId> monitored_;
};

}  // namespace troupe::sim
