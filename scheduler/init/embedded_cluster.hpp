/// An embedded cluster: head and nodes started from the driver's own executable, supervised, and gone with
/// it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/node/fork_server.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/wire/resources.hpp"
#include "scheduler/init/embedded_processes.hpp"
#include "scheduler/init/supervisor.hpp"

namespace troupe {

/// The cores that this process may use.
double usable_cores();

struct EmbeddedOptions {
  int nodes = 1;                      ///< nodes on this machine; more than one is for tests
  double cpus_per_node = 0;           ///< 0: the cores this process may use
  int gpus_per_node = -1;             ///< below 0: the machine's, shared out
  std::int64_t memory_per_node = -1;  ///< the same
  cluster::OtherResources other{};    ///< custom resources and labels of each node
};

/// Thread-safe after the constructor. The destructor ends everything within seconds and removes the head's
/// folder.
///
/// What dies is started again: the head from its store, under the same address; a node as a new one, with an
/// id and a key that the head is told. A head that gives no sign of life for 10 s is killed. The node that
/// carries the driver, too: whoever waits for it gets a link to the new one by next_driver_link().
class EmbeddedCluster final : public EmbeddedProcesses {
 public:
  /// Starts the head and the nodes. Throws with the reason when one of them does not come up.
  explicit EmbeddedCluster(const EmbeddedOptions& options);
  ~EmbeddedCluster() override;
  EmbeddedCluster(const EmbeddedCluster&) = delete;
  EmbeddedCluster& operator=(const EmbeddedCluster&) = delete;

  /// Waits for a link to the first node that was not given out yet: one for each life of that node. Whoever
  /// asks again has lost the former one: a node that does not end by itself then hangs, and is killed. An
  /// error once stop() was called, or when the cluster does not stay up.
  Result<SocketLink> next_driver_link();
  pid_t head_pid() const override;
  std::vector<pid_t> node_pids() const override;
  /// The driver says goodbye: its node ends, and is not started again.
  void expect_end() { supervisor_.expect_end(); }
  /// Everybody has said goodbye: ends what is still there. Called by the destructor.
  void stop();

 private:
  /// A node's identity in its present life.
  struct NodeLife {
    NodeId id;
    CurveKeyPair keys;
    bool admitted = false;            ///< the living head knows the key
    std::uint64_t admit_request = 0;  ///< of the question to the head; 0: not asked
    std::size_t role = 0;
  };
  static NodeLife new_life(std::size_t role);

  // In the supervising thread.
  void supervise();
  void add_head();
  void add_node(std::size_t index);
  Child start_copy(const std::string& role);
  void drop_copies(const ErrorInfo& why);
  Child start_head();
  Child start_node(std::size_t index);
  void head_is_up(const std::string& address);
  bool may_start_node(std::size_t index);
  void node_died(std::size_t index, const std::string& how);
  void publish();

  const EmbeddedOptions options_;
  const std::string base_;    ///< of folder_, and of those of other programs
  const std::string folder_;  ///< made by the head
  const CurveKeyPair head_keys_;
  UniqueFd wake_;

  // Of the supervising thread.
  bool others_removed_ = false;
  UniqueFd held_;  ///< folder_ is in use
  bool copies_tried_ = false;
  std::optional<ForkServer> copies_;  ///< whom the head and nodes are forked by
  Supervisor supervisor_;
  std::size_t head_role_ = 0;
  std::string head_address_ = "127.0.0.1:0";  ///< with the port of its first life
  bool head_up_ = false;
  std::vector<NodeLife> nodes_;
  std::vector<cluster::NodeLeft> departed_;  ///< told to every head that comes up: it may not have heard
  std::uint64_t next_request_ = 1;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  bool all_up_ = false;
  bool stopping_ = false;
  std::optional<ErrorInfo> failure_;
  std::optional<SocketLink> driver_link_;
  UniqueFd driver_node_;  ///< pidfd of the node that carries the driver; none: it is dead
  pid_t head_pid_ = -1;
  std::vector<pid_t> node_pids_;

  std::thread thread_;
};

}  // namespace troupe
