/// Copies of objects on their way to another node: what must be true of them, and faults in their middle.
#pragma once

#include <map>
#include <utility>

#include "runtime/objects/object_name.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Cluster;
struct Hosted;

class Copies {
 public:
  explicit Copies(Cluster& cluster) : cluster_(cluster) {}
  /// `by` asks for a part of it, or got one. Of a node one process does at a time.
  void under_way(const objects::ObjectName& of, Hosted& by);
  /// `by` waits for so many parts of one object.
  void window(std::size_t parts, const Hosted& by);
  /// `by` says that it has made its node's copy, or failed to.
  void ended(const objects::ObjectName& of, const Hosted& by, bool ok);
  /// The next copy is hit when some of it is there: who makes it, who owns it, or what is between them.
  void hit_one() { hits_ = true; }
  void hit_none() { hits_ = false; }

  long made = 0;
  long failed = 0;
  long hit = 0;
  long full_windows = 0;  ///< so often were as many parts under way as may be
  long direct = 0;        ///< of them over direct connections
  long direct_broken = 0;

 private:
  void hit_this(const objects::ObjectName& of, Hosted& by);
  Cluster& cluster_;
  std::map<std::pair<NodeId, objects::ObjectName>, const Hosted*> makers_;
  bool hits_ = false;
};

}  // namespace troupe::sim
