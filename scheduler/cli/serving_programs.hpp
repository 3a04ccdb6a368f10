/// Programs of this user on this machine that serve: found by their sockets, asked one question each.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"

namespace troupe::cli {

/// The pids in the names of sockets of /proc/net/unix that are of programs of this user that serve. Pure.
std::vector<int> serving_pids(std::string_view sockets, unsigned user);
/// Those that there are now.
std::vector<int> serving_pids();

/// What it answers. Errors: kUnavailable where it is gone, kTimeout; kRefused with what it says is wrong.
Result<nlohmann::ordered_json> ask_program(int pid, const nlohmann::ordered_json& question, Duration timeout);

}  // namespace troupe::cli
