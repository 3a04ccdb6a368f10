/// What direct connections stand on: TCP, or a simulation's own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/objects/direct_plan.hpp"
#include "runtime/objects/object_bytes.hpp"

namespace troupe::objects {

/// Both ends in one process. Called with a lock held: it calls nothing back before it has returned.
class DirectConnections {
 public:
  struct Wanted {
    ObjectName name;
    std::uint64_t bytes = 0;
    DirectAddress at;
    int memory = -1;  ///< stays open until `then` is called; holds `bytes`
  };
  /// Called once, in a thread of this, when nothing is written to the memory any more.
  using Then = std::function<void(Result<void>)>;
  /// An object's bytes; null where they are not in memory. Held while they are given.
  using Find = std::function<std::shared_ptr<const ObjectBytes>(std::uint64_t number)>;

  /// Ends what is under way; all `then` are called before it returns.
  virtual ~DirectConnections() = default;
  /// Where this process gives what it owns, from the first call on. `host`: a numeric address of this host.
  /// Empty: nowhere.
  virtual DirectAddress address(const std::string& host, const Find& find) = 0;
  /// False: it cannot, and `then` is not called.
  virtual bool fetch(Wanted wanted, Then then) = 0;
  /// These owners are gone: what comes from them ends.
  virtual void abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason) = 0;
};

/// Over TCP. Null where objects are to be encrypted (TROUPE_ENCRYPT_OBJECTS): over the links, they are.
std::unique_ptr<DirectConnections> tcp_connections();

}  // namespace troupe::objects
