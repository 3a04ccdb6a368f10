/// The connections of one rank with ranks of other hosts: what its host sends and takes there in the rounds
/// of collectives, where this rank is a gateway (host_layout.hpp), and messages.
///
/// On the connection of two gateways each side sends, for every round that the connection takes, in order,
/// what its host has for the other (kPartials) and, where sums go back, the slices that its ranks own
/// (kResult). Nothing is sent of a round in which the host has nothing for the other. A host that has sent
/// its results has received all partials, so results may be stored over the slices that they answer.
///
/// Always drain every connection: a message that somebody waits for may be queued behind a frame of a round
/// that this rank has not launched. Such a frame is kept until it does. There are few of them: a host sends
/// the frames of at most kLandings rounds that the other has not reduced. Each says how many rounds it has
/// reduced with every frame, and with a frame of its own (kFreed) where it sends few others.
///
/// A rank that gets nothing says what it called (kCalled) after a while, so that ranks that called different
/// operations, of which neither has anything for the other, learn it.
///
/// Invariant: of a connection that carries rounds, the counts of partials and results pass over no round in
/// which something goes over it, and a frame is taken only for the round that its count is at.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/native/connector.hpp"
#include "collectives/native/link.hpp"
#include "collectives/native/mailbox.hpp"
#include "collectives/native/rounds.hpp"

namespace troupe::collectives {

/// Not thread-safe. What aborts the group throws, as RankView::fail.
class Gateways {
 public:
  /// `connector` is null where there is one host: then nothing here is called but what says that there are no
  /// connections. All references outlive it.
  Gateways(const RankView& view, RoundData& data, Rounds& rounds, AnyReceives& any_receives,
           std::map<int, PeerConnection> connections, std::unique_ptr<Connector> connector);

  /// Right after a launch: takes what came before it.
  void on_launch();
  /// Moves what can be moved without waiting, and tells the rounds; whether anything moved.
  bool exchange();
  /// Waits for something on a connection, for up to `limit`.
  void poll(Duration limit);
  /// Readable once there is something: an epoll.
  int fd() const { return sockets_.get(); }

  /// The messages with a rank of another host, which are sent once the two are connected: this asks for it.
  Mailbox& mailbox_of(int rank) { return peer_of(rank).mailbox; }
  bool knows(int rank) const { return peers_.contains(rank); }
  bool any() const { return !peers_.empty(); }
  /// Whether a rank destroyed its group, or died. REQUIRES: knows(rank).
  bool has_left(int rank) const { return peers_.at(rank).left; }
  bool is_gone(int rank) const { return has_left(rank) || !peers_.at(rank).link.broken().empty(); }
  /// Gives a receive from any rank a message that has come; whether there was one.
  bool take(const std::shared_ptr<Transfer>& receive);
  std::shared_ptr<const Transfer> oldest_message() const;

  /// Other hosts that have not sent, or not taken, what is due in a round: inputs, or sums.
  std::set<int> missing_hosts(std::uint32_t round, bool inputs) const;
  /// No rank made progress for a while, and which ranks of this host have not called the oldest operation (as
  /// bits): the other hosts are told.
  void set_stalled(bool stalled, std::uint64_t missing) {
    stalled_ = stalled;
    missing_here_ = missing;
  }
  bool carry_rounds() const { return !gates_.empty(); }

  /// The group is aborted: the others are told why, once, for as long as that takes little time. Nobody
  /// connects any more, and nothing is received.
  void tell_abort();
  bool has_told_abort() const { return told_abort_; }
  /// The rank leaves: says so, or why the group is aborted. Half a frame may lie in buffers that are gone by
  /// now: then it stays unsent, and the reason with it.
  void leave();
  /// After leave(): waits until the other hosts have what this rank sent, for as long as that takes little
  /// time. A socket that is closed before throws the rest away as soon as anything comes.
  void linger();

 private:
  /// A frame of a round that this rank has not launched yet.
  struct EarlyFrame {
    FrameHeader header;
    std::vector<std::byte> bytes;
  };
  /// Where the two are gateways, the counts are of rounds: all before have been sent or received, or go
  /// another way.
  struct Peer {
    Peer(int self, int peer, int its_host, AnyReceives* any)
        : link(peer), mailbox(self, peer, {}, any), host(its_host) {}
    Link link;
    Mailbox mailbox;
    const int host;
    bool may_read = true, may_write = true;  ///< until the socket says that it would block
    bool left = false;                       ///< it destroyed its group
    bool gate = false;
    std::uint32_t lane = 0, lanes = 1;  ///< of the rounds between the two hosts, which it takes
    enum class Sending { kNothing, kTold, kPartials, kResult, kMessage } sending = Sending::kNothing;
    bool message_first = false;  ///< whose turn it is, so that neither starves the other
    std::uint32_t partials_out = 0, partials_in = 0;
    std::uint32_t results_out = 0, results_in = 0;
    std::uint32_t freed_there = 0;        ///< rounds that its host has reduced
    std::uint32_t freed_told = 0;         ///< what it knows of this one
    std::uint32_t called_told = 0;        ///< the number of the last call that it was told of, and
    std::uint64_t missing_told = 0;       ///< who was missing
    std::optional<FrameHeader> its_call;  ///< what it called and waits for, which this rank has not called
    std::uint64_t its_missing = 0;        ///< and who is missing there, as in GateCell
    std::deque<EarlyFrame> early;
    EarlyFrame coming;
    bool comes_early = false;
    std::vector<std::byte> added_up;  ///< what this host sends of its ranks' sums
    bool takes(std::uint32_t round) const { return gate && round % lanes == lane; }
    bool inputs_past(std::uint32_t round) const {
      return is_before(round, partials_in) && is_before(round, partials_out);
    }
    bool results_past(std::uint32_t round) const {
      return is_before(round, results_in) && is_before(round, results_out);
    }
  };
  using Targets = std::vector<std::span<std::byte>>;

  Peer& add(int rank);
  Peer& peer_of(int rank);
  void adopt(int rank, PeerConnection connection);
  bool take_connections();
  bool needs(const Peer& peer) const;
  void skip_rounds(Peer& peer);
  void count();

  bool send_to(Peer& peer);
  bool start_frame(Peer& peer);
  bool start_freed(Peer& peer);
  bool start_call(Peer& peer);
  bool start_result(Peer& peer);
  bool start_partials(Peer& peer);
  bool start_message(Peer& peer);
  void sent(Peer& peer);
  FrameHeader header_for(Peer& peer, const PendingCall& op, std::uint32_t round, FrameKind kind,
                         std::size_t bytes) const;

  bool receive_from(Peer& peer);
  Targets target_of(Peer& peer);
  Targets partials_target(Peer& peer);
  Targets result_target(Peer& peer);
  Targets early_target(Peer& peer);
  Targets blobs_from(Peer& peer, const FrameHeader& header);
  void received(Peer& peer);
  void landed(Peer& peer);
  void place_early(Peer& peer);
  void compare_its_call(Peer& peer);
  void check_call(const Peer& peer, const FrameHeader& header, const PendingCall& op);
  void check(const Mailbox& mailbox) const;
  [[noreturn]] void refuse(const Peer& peer, const FrameHeader& header);
  bool wait_to_send();

  const RankView& view_;
  RoundData& data_;
  Rounds& rounds_;
  AnyReceives& any_receives_;
  std::map<int, Peer> peers_;
  std::vector<Peer*> gates_;              ///< those that carry rounds
  std::unique_ptr<Connector> connector_;  ///< until this rank leaves, or the group is aborted
  bool connections_due_ = false;          ///< the connector has something to do
  UniqueFd sockets_;                      ///< epoll, of the peers and the connector
  bool told_abort_ = false;               ///< other hosts know of the abort
  bool stalled_ = false;
  std::uint64_t missing_here_ = 0;
  std::uint32_t delivered_ = 0;
};

}  // namespace troupe::collectives
