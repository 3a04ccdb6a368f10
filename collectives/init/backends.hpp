/// Which backends there are, by name, and what each gets to form a group with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/init/store_server.hpp"
#include "collectives/process_group.hpp"

namespace troupe::collectives {

namespace nccl {
struct Api;
}

/// A rank's place in a group that is to be formed, and the means to form it. Lives as long as the factory
/// runs.
struct BackendContext {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  ///< as the launcher says; -1: it does not
  int device = -1;      ///< of nccl: InitOptions::device, and the same for share_gpu
  bool share_gpu = false;
  /// Keys of this group alone. While the group is formed its calls throw CollectiveAborted once a member is
  /// gone.
  Store& store;
  /// The same keys for as long as the group lives, without that care for its members.
  std::shared_ptr<Store> lasting_store;
  std::string group;                     ///< its name, for errors
  Generation generation;                 ///< the same on every rank, and no other group of the job has it
  Duration timeout{};                    ///< for forming the group
  Duration operation_timeout{};          ///< for an operation without progress
  std::size_t data_bytes = 0;            ///< of memory that operations use without a copy
  JobKey key{};                          ///< for connections between ranks
  std::string address;                   ///< numeric: where other machines reach this one
  std::string host;                      ///< host_identity(): the same where ranks can share memory
  std::function<bool()> aborted;         ///< whether a member is gone, so that the wait is in vain
  std::string purpose;                   ///< what errors begin with
  std::function<std::string(int)> name;  ///< how a rank is called in errors
};

using BackendFactory = std::function<std::shared_ptr<ProcessGroup>(const BackendContext&)>;

/// Adds a backend, or takes the place of one. Thread-safe.
void register_backend(const std::string& name, BackendFactory factory);
/// Throws BadConfig, which lists the backends of this build.
BackendFactory find_backend(std::string_view name);

/// The backend of this repository: one region a machine, one connection a pair of ranks on different
/// machines.
std::shared_ptr<ProcessGroup> join_native_group(const BackendContext& context);

/// NCCL's, for ranks with GPUs. Aborts are told by a word in shared memory on one machine, else by the store.
/// Throws Unavailable where this program was built without NCCL, or there is no GPU. `api`: tests.
std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context);
std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context, const nccl::Api& api);

}  // namespace troupe::collectives
