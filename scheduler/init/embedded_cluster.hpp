/// An embedded cluster: head and nodes started from the driver's own executable, supervised, and gone with
/// it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/node/child.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// The cores that this process may use.
double usable_cores();

/// Waits for the first word of a head or node that was configured, and returns the address on which it
/// listens. Throws the reason when it does not come up; the child is killed then.
std::string wait_until_ready(Child& child, const std::string& role);

struct EmbeddedOptions {
  int nodes = 1;             ///< nodes on this machine; more than one is for tests
  double cpus_per_node = 0;  ///< 0: the cores this process may use
};

/// Thread-safe after the constructor. The destructor ends everything within seconds and removes the head's
/// folder.
class EmbeddedCluster {
 public:
  /// Starts the head and the nodes. Throws with the reason when one of them does not come up.
  explicit EmbeddedCluster(const EmbeddedOptions& options);
  ~EmbeddedCluster();
  EmbeddedCluster(const EmbeddedCluster&) = delete;
  EmbeddedCluster& operator=(const EmbeddedCluster&) = delete;

  /// The driver's link: to the first node. Once.
  transport::LocalLink take_driver_link();
  pid_t head_pid() const;
  /// The processes of the nodes, in order: tests and chaos kill them.
  std::vector<pid_t> node_pids() const;
  /// Everybody has said goodbye: ends what is still there. Called by the destructor.
  void stop();

 private:
  struct NodeChild {
    NodeId id;
    Child child;
    bool ended = false;
  };

  void start_head(const std::string& address);
  void start_node(int index);
  void supervise();

  EmbeddedOptions options_;
  std::string folder_;
  CurveKeyPair head_keys_;
  std::vector<CurveKeyPair> node_keys_;
  std::string head_address_;
  mutable std::mutex mutex_;
  Child head_;
  std::vector<NodeChild> nodes_;
  transport::LocalLink driver_link_;
  UniqueFd wake_;
  bool stopping_ = false;
  std::thread supervisor_;
};

}  // namespace troupe
