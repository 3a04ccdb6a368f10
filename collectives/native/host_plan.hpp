/// What one host sends another in an operation, on the plan of what its ranks read of each other. Pure, so
/// that both ends know what comes, how long it is and where in it everything lies, and nobody has to say.
///
/// A *blob* is what one host, its origin, has for the ranks of another in a round: its partial sums of the
/// elements that they own, or the parts of its ranks' input that they copy. It lies in the landing of its
/// origin, in the order of receivers, and for each of these in the order of senders. What every receiver
/// reads alike is in it once. On its way it may pass through other hosts (Route). A frame between two hosts
/// has all blobs that take this hop in the round, and there is none where it would be empty, but for a
/// barrier's.
///
/// Results, the sums of one host's ranks, go to other hosts directly, in a frame of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/native/cost_model.hpp"
#include "collectives/native/leaf_sums.hpp"
#include "collectives/native/plan.hpp"

namespace troupe::collectives {

class HostPlan {
 public:
  HostPlan() = default;
  /// `layout`, `sums` and `plan` outlive it. Hosts, senders and receivers are other than each other's below.
  HostPlan(const HostLayout& layout, const LeafSums& sums, const Plan& plan, const Op& op, Route route);

  /// Whether a host adds up its ranks' input for others. Otherwise each rank's goes as it is: copies, and
  /// what is scaled before it is added.
  bool adds_up() const { return sums_ && !apart_; }
  /// Partial sums, or parts, that `origin` has for each receiver.
  std::size_t parts_of(int origin) const;

  /// Whether `origin` has something for the ranks of `to`.
  bool wants(std::uint32_t round, int origin, int to) const;
  /// The ranks of `to` for whom there is a part in the blob, ascending; one of them where all read alike.
  std::vector<int> receivers(std::uint32_t round, int origin, int to) const;
  std::size_t bytes(std::uint32_t round, int origin, int to) const;
  /// Bytes of the blob that comes to `at`, to be passed on from there or not.
  std::size_t blob_bytes(std::uint32_t round, int origin, int at) const {
    return bytes(round, origin, readers(origin, at));
  }
  /// The host whose ranks read the blob of `origin` that is sent to `at`: of several that read alike, one.
  int readers(int origin, int at) const { return route_ == Route::kDirect ? at : taker(origin); }
  /// Where in the blob begins what `receiver` reads of rank `sender`, in bytes. Of sums `part` says which of
  /// parts_of(origin).
  std::size_t offset(std::uint32_t round, int sender, int receiver, std::size_t part) const;

  /// Whether `from` sends `to` a frame of blobs, and whose are in it, in order.
  bool sends(std::uint32_t round, int from, int to) const { return !origins(round, from, to).empty(); }
  std::vector<int> origins(std::uint32_t round, int from, int to) const;
  /// The host from which `at` has the blob of `origin`.
  int via(int origin, int at) const;

  /// The sums of the ranks of `from` for `to`: bytes of the frame; 0: there is none.
  std::size_t result_bytes(std::uint32_t round, int from, int to) const;

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::size_t part_bytes(std::uint32_t round, int sender, int receiver) const;
  std::size_t block_bytes(std::uint32_t round, int origin, int receiver) const;
  bool made(std::uint32_t round, int origin) const;
  /// A host that takes what is passed on: all take the same.
  int taker(int origin) const { return to_root_ ? root_ : (origin + 1) % layout_->hosts(); }

  const HostLayout* layout_ = nullptr;
  const LeafSums* leaf_sums_ = nullptr;
  const Plan* plan_ = nullptr;
  OpKind kind_ = OpKind::kBarrier;
  Route route_ = Route::kDirect;
  std::size_t element_ = 4;
  int root_ = -1;       ///< host of the root
  bool sums_ = false;   ///< receivers add up
  bool apart_ = false;  ///< every rank's partial sums, scaled by the receiver
  bool alike_ = false;  ///< receivers read the same
  bool to_root_ = false;
};

}  // namespace troupe::collectives
