/// troupe::init: a program's way into a cluster. It stands here because it joins the runtime with the
/// standard placement policy, which the runtime does not know.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/client/session.hpp"
#include "scheduler/init/embedded_processes.hpp"

namespace troupe {

struct InitOptions {
  int nodes = 1;             ///< nodes of an embedded cluster; more than one on a machine is for tests
  double cpus_per_node = 0;  ///< of an embedded cluster; 0: the cores this process may use
  /// Of an embedded cluster: GPUs that actors may hold. Below 0: all that CUDA finds (see
  /// CUDA_VISIBLE_DEVICES); several nodes share them out. More than there are: init() throws.
  int gpus_per_node = -1;
  std::int64_t memory_per_node =
      -1;  ///< bytes of an embedded cluster; below 0: 7/10 of what there is, shared out
  std::map<std::string, double> resources_per_node{};  ///< custom ones of an embedded cluster: {{"tpu", 2}}
  std::map<std::string, std::string> labels{};         ///< of the nodes of an embedded cluster
  /// HOST:PORT of a running cluster's head: the program joins that instead. `--address` in argv says the
  /// same. A program that was submitted to a cluster (troupe job submit) joins that one, and needs no
  /// address.
  std::string address{};
  std::string folder{};      ///< of the keys; default: ClusterFolder::default_path()
  std::string token_file{};  ///< join token for a folder that no head knows yet; default: $TROUPE_TOKEN_FILE
  /// Name of the job. A program that starts under the name of a running job takes it over and ends the old
  /// one. Default: the program's name and a random suffix.
  std::string job{};
};

class DriverPlace;
class EmbeddedCluster;
class Gateway;

/// A session that owns the process's place in the cluster: when it goes, every actor it started goes.
///
/// When the driver's own node dies, every actor of the job dies with it and what is under way fails
/// (ActorDied, Unavailable). The driver then gets another node, as soon as the head answers, and this session
/// and its copies lead there: spawns work again, and `incarnation()` has grown by one. Until then they fail
/// with Unavailable, which says why.
///
/// It may end anywhere: in a callback or an actor's method of its own it ends beside that, and the program's
/// end waits for it.
class DriverSession : public Session {
 public:
  DriverSession(DriverSession&&) noexcept;
  ~DriverSession();

  /// The embedded cluster's processes, for tests and chaos. Null when the program joined a running cluster.
  const EmbeddedProcesses* embedded() const;

  /// Expires when the session ends: for what keeps a handle to it.
  std::weak_ptr<const void> life() const { return life_; }

 private:
  friend DriverSession init(int argc, char** argv, const InitOptions& options);
  DriverSession(std::unique_ptr<EmbeddedCluster> cluster, std::unique_ptr<Gateway> gateway,
                std::unique_ptr<DriverPlace> place);

  std::unique_ptr<EmbeddedCluster> cluster_;
  std::unique_ptr<Gateway> gateway_;  ///< in a running cluster: the node that carries us
  std::unique_ptr<DriverPlace> place_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
};

/// Call first in main. In a process that troupe started as head, node or worker it takes over and never
/// returns. In the user's program it starts an embedded cluster on this machine, which ends with the session;
/// or, with an address, joins a running one through a node of its own, and its executable travels to the
/// nodes that run its actors. In a program that a node of a cluster started (troupe job submit) it joins that
/// cluster through that node, without an address or a key. Throws BadConfig for options that make no sense,
/// IoError or Unavailable when the cluster does not come up, Refused when it does not let us in.
DriverSession init(int argc, char** argv, const InitOptions& options = {});

}  // namespace troupe
