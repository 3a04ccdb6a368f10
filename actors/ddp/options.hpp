/// Options of DistributedDataParallel, with PyTorch's names and defaults where the comment says nothing else.
#pragma once

#include <cstddef>

#include "runtime/core/error.hpp"

namespace troupe::train {

struct DdpOptions {
  std::size_t bucket_cap_mb = 25;       ///< MiB; a bucket closes when it reaches this
  std::size_t first_bucket_cap_mb = 1;  ///< MiB; the first one sooner, so that reduction starts early
  /// Before a forward every rank takes rank 0's buffers.
  bool broadcast_buffers = true;
  /// false: a parameter without a gradient is an error that names it. true: it counts as zeros, and one that
  /// no rank used keeps its `.grad`; costs one more small reduction a step.
  bool find_unused_parameters = false;
  /// Every backward uses the same parameters as the first, which may leave some out.
  bool static_graph = false;
  /// `.grad` lies in the group's memory, and the next backward writes there: clone what you keep. (PyTorch's
  /// default is false: two more copies of every gradient a step.)
  bool gradient_as_bucket_view = true;
  /// false: the caller vouches that parameters and buffers are the same on every rank.
  bool init_sync = true;
};

struct JoinOptions {
  /// The mean is over all ranks, as if those without input gave zeros. false: over those that still have
  /// input.
  bool divide_by_initial_world_size = true;
  /// When the first rank has no input left, every rank throws EarlyTermination; the group stays good.
  bool throw_on_early_termination = false;
};

/// Some rank has no input left.
struct EarlyTermination : BadConfig {
  using BadConfig::BadConfig;
};

}  // namespace troupe::train
