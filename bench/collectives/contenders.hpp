/// The contenders that run in forked processes of the benchmark itself.
#pragma once

#include <memory>
#include <string>

#include "bench/collectives/stage.hpp"
#include "runtime/core/fd.hpp"

namespace bench {

/// Bytes of shared memory that ours needs for `ranks` and `bytes`.
std::size_t region_bytes(int ranks, std::size_t bytes);
/// Ours, on memory that the group allocated.
void perform_ours(Stage& stage, int rank, const std::shared_ptr<troupe::SharedMemory>& region);
/// Ours, on private buffers that begin `offset` bytes behind a page's begin.
void perform_private(Stage& stage, Contender who, int rank, std::size_t offset,
                     const std::shared_ptr<troupe::SharedMemory>& region);
/// A copy of the buffer in every process at once: what the memory gives.
void perform_copy(Stage& stage, int rank);
/// Ours, between the two machines of machines.hpp; in one of which this process is.
void perform_ours_over_tcp(Stage& stage, int rank);
/// Gloo over TCP on the interface; `folder` is for its rendezvous.
void perform_gloo(Stage& stage, int rank, const std::string& folder, const std::string& interface);
/// As many bytes as the operation has to move between two machines, both ways at once over one connection.
void perform_wire(Stage& stage, int rank);

}  // namespace bench
