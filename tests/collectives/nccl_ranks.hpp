/// Ranks of an NCCL group over the double, as threads: each a process with a device and a stream of its own.
#pragma once

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/nccl_double.hpp"
#include "tests/collectives/word_group.hpp"

namespace troupe::collectives::testing {

/// What ranks of several generations share: the library, and a channel and an abort word a generation.
class NcclCluster {
 public:
  explicit NcclCluster(int version = 23003) : library(version) {}

  /// Rank `rank` of `size` in generation 1.`counter`, on device `p`.
  NcclGroupOptions options(int p, int rank, int size, std::uint32_t counter = 1);
  /// The abort word of a generation.
  std::shared_ptr<SharedMemory> region(std::uint32_t counter);

  NcclDouble library;

 private:
  struct Bulletin {
    std::map<int, std::string> said;  ///< by rank
    std::optional<std::string> answer;
    bool closed = false;  ///< rank 0 does not answer
    std::shared_ptr<SharedMemory> region;
  };
  Bulletin& bulletin(std::uint32_t counter);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Bulletin> bulletins_;
};

/// A rank's thread: its device, its stream, its group.
class NcclRank {
 public:
  NcclRank(NcclCluster& of, int process);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  void make(const NcclGroupOptions& options);
  /// Elements on the device, written there by this rank's stream, late.
  template <class T>
  Buffer put(const std::vector<T>& values) {
    return put_bytes(values.data(), values.size(), sizeof(T), collectives::dtype_of<T>());
  }
  Buffer put_bytes(const void* data, std::size_t count, std::size_t element, DType dtype);
  /// What a kernel on this rank's stream would read now.
  std::vector<std::byte> get_bytes(const void* data, std::size_t bytes);
  template <class T>
  std::vector<T> get(const Buffer& buffer) {
    const auto bytes = get_bytes(buffer.data, buffer.count * sizeof(T));
    std::vector<T> values(buffer.count);
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// Returns when everything on this rank's stream is done.
  void synchronize();

  NcclCluster& cluster;
  const int p;
  nccl::Stream stream = nullptr;
  std::unique_ptr<ProcessGroup> group;

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

/// Waits on the host until it has ended. Throws what it ended with.
void finish(Work& work);
/// As run_specs of every_op.hpp: one after the other, with buffers on the device, in place where that is
/// allowed and `in_place`.
void run_specs(NcclRank& rank, const std::vector<OpSpec>& specs, bool in_place = false);
/// One all_reduce of 100 ones, to its end on the host.
void reduce(NcclRank& rank);

using NcclBody = std::function<void(NcclRank& rank)>;

/// Runs `body` on a thread for each of `ranks` processes; `adjust` changes its options. Returns what each
/// threw.
std::vector<std::string> run_nccl_threads(NcclCluster& cluster, int ranks, const NcclBody& body,
                                          const std::function<void(NcclGroupOptions&)>& adjust = nullptr);
/// As run_nccl_threads in a cluster of its own; throws the first failure, and what the double says about
/// misuse and leaks.
void run_nccl(int ranks, const NcclBody& body,
              const std::function<void(NcclGroupOptions&)>& adjust = nullptr);
/// As run_nccl_threads, two ranks; throws what the double says about misuse and leaks.
std::vector<std::string> run_two(NcclCluster& cluster, const NcclBody& body,
                                 const std::function<void(NcclGroupOptions&)>& adjust = nullptr);
/// Nothing was thrown.
void check_none(const std::vector<std::string>& thrown);
/// Throws what the double says.
void check_double(const NcclDouble& library);

/// On device 0, the current one from here on, and alone in its world.
std::shared_ptr<nccl::Communicator> lone_communicator(NcclDouble& library);

}  // namespace troupe::collectives::testing
