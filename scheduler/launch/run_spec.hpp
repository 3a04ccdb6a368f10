/// What a run starts, the same for every node and attempt. Data: it travels to agents as it is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::launch {

/// Streams of local ranks, as torchrun's --redirects and --tee name them: 1 standard output, 2 standard
/// error, 3 both.
struct StreamChoice {
  int of_all = 0;
  std::map<int, int> of_rank;

  int of(int local_rank) const {
    const auto at = of_rank.find(local_rank);
    return at == of_rank.end() ? of_all : at->second;
  }
  bool is_empty() const { return of_all == 0 && of_rank.empty(); }
};
/// Reads "3" or "0:3,1:1". Errors: kBadConfig.
Result<StreamChoice> parse_streams(std::string_view text);

struct RunSpec {
  std::vector<std::string> command;  ///< program and arguments (ProgramWords::command)
  std::string folder;                ///< where it is started
  std::string role = "default";
  std::string run_id;
  std::string log_folder;                                   ///< --log-dir; empty: a temporary one
  StreamChoice redirects;                                   ///< go to files instead of the console
  StreamChoice tee;                                         ///< go to files, and to the console with a prefix
  std::uint64_t log_limit_bytes = std::uint64_t{64} << 20;  ///< kept of each file: the newest
  std::vector<int> shown;  ///< local ranks whose output reaches the console; empty: all
  std::string job_key;     ///< TROUPE_JOB_KEY of the ranks; empty: what this process has
  bool keeps_logs() const { return !log_folder.empty() || !redirects.is_empty() || !tee.is_empty(); }
};

/// How the user named the program.
struct ProgramWords {
  std::vector<std::string> words;  ///< program and its arguments
  bool is_module = false;          ///< -m: a Python module
  bool no_python = false;          ///< run a .py file itself
};
/// The words to execute: a .py file or a module under `python3 -u` ($PYTHON_EXEC instead of python3, as with
/// torchrun), anything else itself. Errors: kBadConfig.
Result<std::vector<std::string>> command_of(const ProgramWords& program);
/// Whether this machine can execute it, seen from `folder`: says what is missing. Errors: kBadConfig.
Result<void> check_command(const std::vector<std::string>& command, const std::string& folder);

}  // namespace troupe::launch
