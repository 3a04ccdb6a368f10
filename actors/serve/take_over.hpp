/// A program that takes the place of another one of this user on this machine: new code for the same
/// deployments. The other one hands over the sockets that it listens on, so that no connection is refused or
/// reset, answers what it has accepted, and ends.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/link/socket/serving_sockets.hpp"

namespace troupe::serve {

/// Whose place is taken: a program's, or that of a proxy of it on this machine.
struct Predecessor {
  int pid = 0;
  int port = 0;
  std::vector<std::string> names;  ///< that it serves at that port
  std::string fleet{};             ///< that its proxies are of, on other nodes; empty: it has none
  Serving who = Serving::kProgram;
  /// It serves what is replaced, or is the job that is. If not, it only has the port, and one of its names
  /// must come to be served here.
  bool is_certain = true;
};

/// Answers to {"do":"status"}, each with its process.
using ServingStatus = std::vector<std::pair<int, std::string>>;

/// Which program is replaced.
struct Replaced {
  std::string name;  ///< a deployment that it serves
  std::string host;  ///< where it listens
  int port = 0;      ///< 0: any
  std::string job;   ///< that it is, as it was submitted; empty: whatever it is
};

/// Of the programs the one that serves `name`, at `port` unless that is 0, or else the one that has `port` of
/// `host`: its successor may come with a deployment more. None where nobody does. Errors: kBadConfig where
/// several do. Pure.
Result<std::optional<Predecessor>> predecessor_among(const ServingStatus& programs, const Replaced& what);
/// The same of the programs of this user on this machine, but for this one. One that does not answer is
/// passed over; `silent` gets it.
Result<std::optional<Predecessor>> find_predecessor(const Replaced& what, std::vector<int>& silent);
/// Why this program cannot listen, where none of those that answered was its predecessor. Pure.
ErrorInfo with_silent(ErrorInfo error, const std::vector<int>& silent);

/// Of the proxies one that is of the fleet and listens: that of `node` (as text), if there is one. Pure.
std::optional<Predecessor> proxy_among(const ServingStatus& proxies, const std::string& fleet,
                                       const std::string& node);
/// The same of the proxies on this machine.
std::optional<Predecessor> find_former_proxy(const std::string& fleet, const std::string& node);

/// The sockets that it listens on. It goes on accepting until tell_taken().
Result<std::vector<UniqueFd>> ask_for_sockets(const Predecessor& predecessor);
/// Somebody accepts there now: it is to answer what it has, and to end.
Result<void> tell_taken(const Predecessor& predecessor);
/// This process does not listen on the sockets that it asked for: another one may have them.
void tell_not_taken(const Predecessor& predecessor);

}  // namespace troupe::serve
