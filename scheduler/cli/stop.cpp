// troupe stop: ends what runs from a folder, nodes before the head, so that it hears them leave.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "runtime/core/escape.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/wait_readable.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/init/cluster_folder.hpp"

namespace troupe::cli {
namespace {

constexpr Duration kStops = std::chrono::seconds(15);

/// At once: SIGTERM would have a node drain. The supervisor ends its children itself; they also go when it is
/// killed.
void end(const ClusterFolder& folder, const RunningProcess& process) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  // The number may belong to another process by now: the lock says whether it is still ours.
  const auto now = folder.running();
  const bool still = std::any_of(
      now.begin(), now.end(), [&](const auto& r) { return r.name == process.name && r.pid == process.pid; });
  if (!pidfd || !still) return;
  if (::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGINT, nullptr, 0) != 0) {
    throw_error(io_error("cannot end process " + std::to_string(process.pid), errno, "run as its owner"));
  }
  if (!wait_readable(pidfd.get(), kStops)) {
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
    wait_readable(pidfd.get(), kStops);
    std::printf("killed %s (process %d): it did not end within 15 s\n", process.name.c_str(), process.pid);
    return;
  }
  std::printf("ended %s (process %d)\n", process.name.c_str(), process.pid);
}

}  // namespace

int stop(const std::string& path) {
  const std::string where = path.empty() ? ClusterFolder::default_path() : path;
  if (std::error_code error; !std::filesystem::exists(where, error) && !error) {
    std::printf("nothing runs from %s\n", escape_name(where).c_str());
    return 0;
  }
  const auto folder = ClusterFolder::open(where).value();
  auto running = folder.running();
  if (running.empty()) std::printf("nothing runs from %s\n", escape_name(folder.path()).c_str());
  std::stable_partition(running.begin(), running.end(),
                        [](const auto& process) { return process.name != "head"; });
  for (const auto& process : running) end(folder, process);
  folder.running();  // removes the files of those that were killed
  return 0;
}

}  // namespace troupe::cli
