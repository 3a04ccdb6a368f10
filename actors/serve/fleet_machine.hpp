/// Which nodes have a proxy: one each, started again where it dies. Pure.
#pragma once

#include <map>
#include <vector>

#include "actors/serve/deployment_types.hpp"
#include "runtime/wire/address.hpp"

namespace troupe::serve {

struct StartProxy {
  NodeId node;
  ProxyId proxy = 0;
  std::uint16_t port = 0;  ///< that the one before it had there; 0: none had one
};

/// Not thread-safe. `now` never goes back.
class FleetMachine {
 public:
  explicit FleetMachine(const train::RestartPolicy& restart = {}) : restart_(restart) {}

  /// The nodes that something new can go to. A node that drains is not among them, and its proxy answers what
  /// it has: a proxy ends by itself, by its node's drain or by its node's death. REQUIRES: called about once
  /// a second.
  std::vector<StartProxy> nodes(const std::vector<NodeId>& there, Instant now);
  /// `port`: that it chose. Who comes after it has the same one, unless that is taken: clients know it.
  void listens(ProxyId proxy, std::uint16_t port, Instant now);
  /// It listens itself, and not some other one whose place it is to take.
  void placed(ProxyId proxy);
  /// It did not start, or died.
  void failed(ProxyId proxy, Instant now);
  /// Its node drains: it ends, and no other starts there. `stays`: it does not any more.
  void leaves(ProxyId proxy, bool stays);
  /// The nodes are known, and each that does not drain has one that is placed.
  bool all_placed() const;
  /// It is one that nobody has ended.
  bool is_wanted(ProxyId proxy) const;
  /// Its node drains.
  bool is_leaving(ProxyId proxy) const;

 private:
  struct Place {
    ProxyId proxy = 0;  ///< 0: none
    bool listens = false, is_placed = false, leaves = false;
    Instant since{};  ///< it listens
    std::uint16_t port = 0;
    int missed = 0;  ///< in a row, that did not listen
    int failures = 0;
    Instant not_before{};
  };
  Place* place_of(ProxyId proxy);

  train::RestartPolicy restart_;
  std::map<NodeId, Place> places_;
  bool knows_nodes_ = false;
  ProxyId last_ = 0;
};

}  // namespace troupe::serve
