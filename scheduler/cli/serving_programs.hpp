/// Questions of the command line to programs that serve (runtime/link/socket/serving_sockets.hpp), as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"
#include "runtime/link/socket/serving_sockets.hpp"

namespace troupe::cli {

using troupe::serving_pids;

/// Its answer. Errors: those of ask_serving, kBadInput for what is none, kRefused with what the program says
/// of a question that it could not do.
Result<nlohmann::ordered_json> ask_program(int pid, const nlohmann::ordered_json& question, Duration timeout);
/// The same of several, all at once: they have `timeout` together.
std::vector<Result<nlohmann::ordered_json>> ask_programs(std::span<const int> pids,
                                                         const nlohmann::ordered_json& question,
                                                         Duration timeout);

}  // namespace troupe::cli
