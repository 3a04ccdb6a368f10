/// What a node says of its processes, and of the dumps that it had them write. It travels as the bytes of a
/// LogPart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/ids.hpp"

namespace troupe::node {

/// What stands in LogAsk::id before a node's id of who wants its processes (ProcessList), or has them dumped
/// (DumpList); behind the latter's id may stand "/" and the id of the job whose workers are meant.
inline constexpr std::string_view kProcesses = "processes:";
inline constexpr std::string_view kDump = "dump:";
/// The first of a process's notes: for how many seconds it has run.
inline constexpr std::string_view kUpNote = "up_s";

struct ProcessStatus {
  std::int64_t pid = 0;
  std::string title;         ///< as `ps` shows it, without "troupe: "
  std::string submission{};  ///< of the job whose program it is; empty: it is a worker
  std::vector<ActorId> actors{};
  std::vector<std::pair<std::string, std::string>> notes{};  ///< "rank", "step", ...
  JobId job{};  ///< of a worker, which may have light actors alone: none that the head knows
};
/// A job that starts here once its package is.
struct PackageOnItsWay {
  std::string submission;
  std::uint64_t bytes = 0;  ///< that are here
  std::uint64_t total = 0;  ///< 0: not known yet
};
struct ProcessList {
  std::vector<ProcessStatus> processes;
  std::vector<PackageOnItsWay> packages{};
};

struct DumpList {
  struct Process {
    std::int64_t pid = 0;
    std::string title;
    bool answered = false;
  };
  std::string folder;
  std::vector<Process> processes;
  std::vector<std::string> files;  ///< paths below `folder`
};

}  // namespace troupe::node
