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

namespace troupe::serve {

/// Whose place is taken.
struct Predecessor {
  int pid = 0;
  int port = 0;
  std::vector<std::string> names;  ///< that it serves at that port
};

/// Of the programs' answers to {"do":"status"}, each with its process, the one that serves `name`, at `port`
/// unless that is 0. None where nobody does. Errors: kBadConfig where several do. Pure.
Result<std::optional<Predecessor>> predecessor_among(const std::vector<std::pair<int, std::string>>& answers,
                                                     const std::string& name, int port);

/// The same of the programs of this user on this machine, but for this one. One that does not answer is
/// passed over.
Result<std::optional<Predecessor>> find_predecessor(const std::string& name, int port);
/// The sockets that it listens on. It goes on accepting until tell_taken().
Result<std::vector<UniqueFd>> ask_for_sockets(const Predecessor& predecessor);
/// Somebody accepts there now: it is to answer what it has, and to end.
Result<void> tell_taken(const Predecessor& predecessor);

}  // namespace troupe::serve
