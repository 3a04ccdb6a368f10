/// Where the ranks of a group tell each other that it is over, and why. NCCL has no channel for that: a rank
/// whose peer gave up hangs, or gets an error without a reason.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/core/abort_word.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

/// Thread-safe. Neither call may wait for another rank. `read` is a look at memory, about once a millisecond
/// while an operation is in flight: a board behind a network answers from what it was told.
class AbortBoard {
 public:
  virtual ~AbortBoard() = default;
  /// Tells every rank. The first reason stays; later ones are dropped.
  virtual void post(AbortKind kind, const std::string& reason) = 0;
  /// The first reason; empty while the group is good.
  virtual std::optional<AbortReason> read() = 0;
};

/// The abort word at the start of `region` (runtime/core/abort_word.hpp), for ranks of one machine that map
/// the same memory; a node process may set it, too. A fresh region a generation. Throws Refused where it
/// belongs to another one. Null: memory of this process alone, for a group of one rank.
std::shared_ptr<AbortBoard> make_word_board(std::shared_ptr<SharedMemory> region, Generation generation);

}  // namespace troupe::collectives
