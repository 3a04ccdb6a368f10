/// Which backends there are, by name, and what each gets to form a group with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/process_group.hpp"
#include "collectives/rendezvous/connect/region_share.hpp"
#include "collectives/rendezvous/init.hpp"
#include "collectives/rendezvous/store/store_server.hpp"

namespace troupe::collectives {

namespace nccl {
struct Api;
}

/// Where the ranks of a group find one of them.
struct PeerInfo {
  std::string host;      ///< the same where ranks can share memory
  std::string token;     ///< of its RegionOffer; empty: it has none
  std::string endpoint;  ///< of its DataListener; empty: it has none
};

/// A rank's place in a group that is to be formed, and the means to form it. Lives as long as the factory
/// runs.
struct BackendContext {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  ///< as the launcher says; -1: it does not
  InitOptions
      options;  ///< as this rank gave them; `device` of nccl is that of the group that this is made of
  /// Of rebuild: the generation before, which was aborted, and its ranks that are gone, ascending. Null in a
  /// group that is nobody's next generation.
  ProcessGroup* predecessor = nullptr;
  std::vector<int> gone{};
  /// Keys of this formation alone, of which nothing is left once the group is there. Its waits throw
  /// CollectiveAborted once a member is gone or gives up.
  Store& store;
  std::string group;             ///< its name, for errors
  Generation generation;         ///< the same on every rank, and no other group of the job has it
  Instant until{};               ///< when it has to be formed
  JobKey key{};                  ///< for connections between ranks
  std::string address;           ///< numeric: where other machines reach this one
  std::vector<PeerInfo> peers;   ///< by rank, this one too
  RegionOffer* offer = nullptr;  ///< this rank's, if it is the first of several on its host
  std::shared_ptr<const DataListener> listener;  ///< this rank's, if there are several hosts
  std::function<bool()> aborted;         ///< whether the formation has failed, so that the wait is in vain
  int abort_fd = -1;                     ///< readable once `aborted` is true
  std::string purpose;                   ///< what errors begin with
  std::function<std::string(int)> name;  ///< how a rank is called in errors

  Duration left() const { return std::max(until - MonotonicClock().now(), Duration::zero()); }
  WaitOptions wait() const { return {.timeout = left(), .aborted = aborted, .abort_fd = abort_fd}; }
};

/// By rank: the first rank that is on the same host.
std::vector<int> numbered_hosts(const std::vector<PeerInfo>& peers);

using BackendFactory = std::function<std::shared_ptr<ProcessGroup>(const BackendContext&)>;

/// Adds a backend, or takes the place of one. Thread-safe.
void register_backend(const std::string& name, BackendFactory factory);
/// Throws BadConfig, which lists the backends of this build.
BackendFactory find_backend(std::string_view name);

/// The backend of this repository: one region a host, connections between hosts, and between ranks that talk.
std::shared_ptr<ProcessGroup> join_native_group(const BackendContext& context);

/// NCCL's, for ranks with GPUs, with a native group beside it (ProcessGroup::host_group). Throws Unavailable
/// where this program was built without NCCL, or there is no GPU, and BadConfig for a GPU that does not
/// exist. `api`: tests.
std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context);
std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context, const nccl::Api& api);

}  // namespace troupe::collectives
