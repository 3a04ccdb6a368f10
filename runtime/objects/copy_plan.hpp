/// How a copy of an object comes to this node: straight from its owner or over the links, which part is asked
/// for when, and when it is over; and whether what was not found is looked for again. Pure.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/error.hpp"
#include "runtime/host/object_limits.hpp"
#include "runtime/objects/direct_plan.hpp"

namespace troupe::objects {

/// Not thread-safe. REQUIRES: the copy's memory is there.
///
///     begin --its owner's address is not known: AskAddress--> addressed
///       |                                                         |
///       |--FetchDirect--> direct_ended: it is there, or <--FetchDirect
///       '--AskPart, AskPart, ...--> over the links: each part that comes has the next one asked for
///     End, once nothing is under way any more
///
/// A part that does not come is not asked for again: the copy fails with its error, and whoever reads the
/// object asks its owner anew, which knows what became of it.
class CopyPlan {
 public:
  struct AskAddress {};
  struct FetchDirect {
    DirectAddress at;
  };
  struct AskPart {
    Part part;
  };
  struct End {
    std::optional<ErrorInfo> failed;
  };
  using Action = std::variant<AskAddress, FetchDirect, AskPart, End>;
  using Actions = std::vector<Action>;

  CopyPlan(std::uint64_t bytes, const ObjectLimits& limits) : bytes_(bytes), limits_(limits) {}

  /// How its owner is reached now.
  void begin(DirectOwners::Choice choice, Actions& out);
  /// And once it was asked for its address.
  void addressed(DirectOwners::Choice choice, Actions& out);
  /// The connection brought all of it, or did not.
  void direct_ended(const Result<void>& result, Actions& out);
  /// A part that was asked for is written, or does not come.
  void part_ended(std::optional<ErrorInfo> failed, Actions& out);

  std::uint64_t bytes() const { return bytes_; }

 private:
  void go_on(Actions& out);

  const std::uint64_t bytes_;
  const ObjectLimits limits_;
  std::uint64_t next_ = 0;  ///< what was not asked for begins there
  std::size_t under_way_ = 0;
  std::optional<ErrorInfo> failed_;
};

/// Whether what was not found is looked for again, after what pause, and why (not).
struct LookAgain {
  bool again = false;
  Duration after{};
  std::string reason;
};
/// No link reached who was asked, `times` times before this.
LookAgain after_broken_link(int times, const ObjectLimits& limits);
/// The object had left the memory where its owner said that it is, `times` times before this: its owner is
/// asked twice at once, then after longer and longer pauses. `waits`: on and on, for room.
LookAgain after_gone_memory(int times, const ObjectLimits& limits, bool waits = false);

}  // namespace troupe::objects
