/// The sends and receives of one rank. Those with ranks of its host go through the rings of the region, those
/// with others over their connections (gateways.hpp). They have their own order, by pair of ranks
/// (mailbox.hpp), and move whenever a rank waits for anything.
///
/// Invariant: there is a ring for each pair of ranks of this host of which one has sent or asked for
/// anything, and both have said so in talks_to before anything lies in it.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "collectives/native/gateways.hpp"

namespace troupe::collectives {

/// Not thread-safe. What aborts the group throws, as RankView::fail.
class Messages {
 public:
  /// All outlive it.
  Messages(const RankView& view, Gateways& gateways, AnyReceives& any_receives)
      : view_(view), gateways_(gateways), any_receives_(any_receives) {}

  /// Starts a send or a receive.
  std::shared_ptr<Transfer> post(const Op& call);
  /// The messages of an all_to_all_v, each receive before the send to the same rank. Copies what the rank
  /// keeps.
  std::vector<Op> parts_of(const Op& call) const;

  /// Moves those with ranks of this host in which something waits, or all; whether anything moved.
  bool exchange(bool all = false);
  /// Takes what others of this host sent and this rank has not asked for, from those too with which it had
  /// nothing to do: a ring is small, and a small send is done once it is out.
  bool take_unasked();
  /// Whether a rank sends nothing any more. Of one on another host only its connection tells.
  bool is_gone(int peer) const;
  /// What is not done, of all ranks; null: all is.
  std::shared_ptr<const Transfer> oldest() const;
  /// Sleeps until `peer`, a rank of this host, has sent or taken something, for a slice at most.
  void sleep_on(int peer) const;

 private:
  /// A rank of this host, with which there were messages.
  struct Neighbour {
    Neighbour(int self, int peer, std::span<const std::byte> shared, AnyReceives* any)
        : link(peer), mailbox(self, peer, shared, any) {}
    Link link;
    Mailbox mailbox;
    bool sends = false;  ///< a frame is on its way out
  };
  std::shared_ptr<Transfer> post_any(const Op& call);
  Mailbox& mailbox_of(int peer);
  bool exchange(Neighbour& neighbour) const;
  void check(const Mailbox& mailbox) const;

  const RankView& view_;
  Gateways& gateways_;
  AnyReceives& any_receives_;
  std::map<int, Neighbour> neighbours_;
};

}  // namespace troupe::collectives
