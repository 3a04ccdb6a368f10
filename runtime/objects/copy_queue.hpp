/// Copies of arguments that have no memory yet: who gets the next, and who waits no longer. Pure.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

#include "runtime/core/clock.hpp"
#include "runtime/objects/references.hpp"

namespace troupe::objects {

/// What the arguments of one call take here together, as far as it is known.
struct CallBytes {
  /// They wait for room so long, from when the call came: others of its node may have tried to make the copy
  /// before, one after another.
  static constexpr Duration kWaits = std::chrono::seconds(60);

  std::uint64_t known = 0;
  Instant came{};    ///< the call, here
  Duration apart{};  ///< of the time since then, what does not count

  /// No link reaches the owner of one of them, until then at least: so long none of them wants room. That is
  /// given on top, once: a call fails two minutes after it came at the latest.
  void is_apart_until(Instant then) { apart = std::max(apart, std::min(then - came, kWaits)); }
  Instant waits_until() const { return came + apart + kWaits; }
};

/// In the order in which their calls came: those of later calls would else hold what an earlier one, which is
/// carried out first, waits for. One, the first, is asked for at a time. Not thread-safe.
class CopyQueue {
 public:
  struct Copy {
    ObjectName name;
    std::shared_ptr<Fetch> fetch;
    std::uint64_t bytes = 0;  ///< with all that lies beside the object
    std::shared_ptr<CallBytes> of_call;
  };
  /// True: it is the first, and is to be asked for. REQUIRES: it is of a call.
  bool add(Copy copy);
  /// Nothing: no copy waits.
  std::optional<Copy> first() const;
  /// The store had no room for the first one. Nothing: it is asked for again after a while; else it fails so.
  std::optional<ErrorInfo> full(std::uint64_t store_bytes, Instant now) const;
  /// It has memory, or failed. True: there is another first one, and it is to be asked for. One that is added
  /// later is asked for by who adds it. REQUIRES: there is one.
  bool end_first();

 private:
  std::deque<Copy> copies_;
};

}  // namespace troupe::objects
