/// What the test on GPUs stands on: ranks as processes, what they share, device memory, and a check.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_group.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::gpu {

/// Counts and prints what does not hold; the process goes on.
extern int failures;
void check(bool holds, const std::string& what);
/// As check, naming the exception that `call` throws instead of an `Exception`.
template <class Exception>
void check_throws(const std::string& what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& e) {
    return;
  } catch (const std::exception& e) {
    return check(false, what + ": instead " + e.what());
  }
  check(false, what + ": nothing was thrown");
}
/// Throws where a CUDA call of the test itself fails.
void cuda(cudaError_t code);

/// How many GPUs there are; asks in a process that ends, so that this one may fork.
int count_gpus();

/// Memory of all ranks: for every generation an abort word and the exchange.
class Shared {
 public:
  explicit Shared(bool shares_gpus);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  collectives::NcclGroupOptions options(int rank, int size, int device, std::uint32_t counter) const;

  /// Where init_process_group lets the ranks meet, once.
  const std::string& url() const { return url_; }
  bool shares_gpus() const { return shares_gpus_; }

 private:
  bool shares_gpus_;
  std::string folder_, url_;
  std::vector<std::shared_ptr<SharedMemory>> generations_;
};

/// One rank, in its process.
struct Rank {
  int rank = 0;
  int size = 1;
  int device = 0;
  const Shared* shared = nullptr;
  cudaStream_t stream = nullptr;
  std::unique_ptr<collectives::ProcessGroup> group;

  void make(std::uint32_t counter);
  /// Elements on the device, written by the rank's stream. Freed at the end of the process.
  collectives::Buffer put(const std::vector<std::byte>& bytes, collectives::DType dtype);
  std::vector<std::byte> get(const collectives::Buffer& buffer);
};

/// Waits on the host, for as long as it takes: the group has a deadline.
void finish(collectives::Work& work);

/// Runs `body` in `size` processes, and returns how many of them failed; `killed`: the last one has to be
/// killed.
int run_ranks(int size, int gpus, const std::function<void(Rank&)>& body, bool killed = false);

// The cases (cases.cpp), for every rank. `make` was called with generation 1.
void check_reductions(Rank& rank);
void check_tree(Rank& rank);
void check_moves(Rank& rank);
void check_streams(Rank& rank);
void check_membership(Rank& rank);
// How fast (bandwidth.cpp).
void print_bandwidth(Rank& rank);
void print_fold(Rank& rank);  ///< of one rank, which has the GPU to itself
// When something goes wrong, and graphs (failures.cpp).
void check_killed(Rank& rank);  ///< the last rank does not return
void check_abort_with_receive(Rank& rank);
void check_mismatch(Rank& rank);
void check_graph(Rank& rank);
void check_large(Rank& rank);
void check_rebuilds(Rank& rank);
// init_process_group("nccl", ...) (by_name.cpp); without libsodium a line says that it was left out.
void check_by_name(Rank& rank);

}  // namespace troupe::gpu
