/// What facts of a machine mean for troupe. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cli {

struct MachineFacts {
  std::uint64_t open_files = 0, open_files_most = 0;  ///< RLIMIT_NOFILE, soft and hard; 0: no limit
  std::uint64_t processes = 0;                        ///< RLIMIT_NPROC; 0: no limit
  std::uint64_t file_bytes = 0;                       ///< RLIMIT_FSIZE; 0: no limit
  double cores = 0;                                   ///< that this process may use
  std::uint64_t memory = 0, memory_available = 0;     ///< bytes
  int overcommit = 0;                                 ///< vm.overcommit_memory
  std::string shared_memory_error;                    ///< of a sealed memfd; empty: it works
  std::string packages_error;                         ///< of an executable memfd; empty: it works
  std::string loopback_error;                         ///< of a connection to 127.0.0.1; empty: it works
  bool is_clock_synchronised = true;
  std::string temporary_folder, temporary_error;
  std::uint64_t temporary_free = 0;
  std::string folder;        ///< of keys and state
  std::string folder_error;  ///< why it cannot be used; empty: it can, or is not there yet
  std::uint64_t folder_free = 0;
  bool knows_cluster = false;
  std::string head, head_error;  ///< where it is; why it does not answer
  std::size_t head_nodes = 0;
  std::string program;                      ///< path, whose libraries were looked for; empty: none
  std::string program_error, program_todo;  ///< why they were not, and what to do
  std::string libraries_error;
  std::size_t libraries = 0;
  std::string port_holder_error;  ///< empty: the port that a head takes by default is free
};

struct Finding {
  enum Kind { kGood, kWarning, kBad } kind = kGood;
  std::string what;  ///< "open files"
  std::string is;    ///< "1,024"
  std::string todo;  ///< empty where it is good
};

/// One for each fact, in an order that a person reads: limits, memory, network, folders, the cluster.
std::vector<Finding> findings_of(const MachineFacts& facts);

}  // namespace troupe::cli
