/// Messages (send, recv) between this rank and one other: what is waiting for what, and which frames go out.
/// Pure: no socket, no clock, no thread.
///
/// A message of up to kEagerBytes goes out whole (kMessage) and is kept by the receiver until a receive with
/// its tag is posted; kEagerWindow of them may be on the way, and kCredit says how many were received. A
/// larger one is announced (kRequestToSend), asked for once its receive is posted (kClearToSend), and comes
/// in pieces (kPayload) straight into the receiver's buffer. The receiver copies
/// it instead (kCopied) where it sees the sender's memory. So a rank keeps at most 2 MiB for another one, and
/// nobody waits for a buffer while it fills another's.
///
/// A receive takes the oldest message with its tag. Count and dtype are the same on both sides, or the group
/// is aborted with both named.
///
/// The parts of an all_to_all_v are messages with a tag space of their own, in which the tag is the
/// operation's number (of_collective).
///
/// Errors that the other rank caused are returned as the reason for which to abort the group.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/native/link.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kEagerBytes = 32 * 1024;     ///< what a rank may send without being asked
inline constexpr std::size_t kEagerWindow = 64;           ///< small messages sent and not yet received
inline constexpr std::size_t kPayloadBytes = 256 * 1024;  ///< of a piece, so that other frames get between
inline constexpr std::size_t kMaxMessages = 4096;         ///< in flight with a rank, or from any rank
inline constexpr std::size_t kMaxSelfBytes = 64 << 20;    ///< what a rank may send itself before it receives

/// One send or receive.
struct Transfer {
  Op call;                   ///< a send or a receive
  std::uint32_t number = 0;  ///< of the sends to that rank, or of the receives from it, from 1
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t place = 0;  ///< of a send: where it lies in the shared memory of this rank, + 1; 0: elsewhere
  std::size_t moved = 0;    ///< bytes of a large message that are out or in
  bool done = false;
};

/// Whether a send or receive is a part of a collective: told by a bit of the call that messages do not use,
/// as op.cpp knows.
inline bool of_collective(const Op& call) {
  return !call.how.exact;
}

/// The call, with its number where it is not a part of a collective.
std::string to_string(const Transfer& transfer);

/// Receives from any rank for which no message has come, oldest first.
using AnyReceives = std::list<std::shared_ptr<Transfer>>;

/// A receive from any rank, which is in no mailbox yet. Throws kLimit with too many of them `open`.
std::shared_ptr<Transfer> start_any(const Op& call, const AnyReceives& open);

/// Not thread-safe.
class Mailbox {
 public:
  /// `shared`: the memory of `peer` that this rank sees; empty if none. `peer` may be `self`. `any`: of the
  /// rank; a message that no receive from `peer` waits for goes to the oldest of these with its tag.
  Mailbox(int self, int peer, std::span<const std::byte> shared, AnyReceives* any = nullptr);

  /// Starts a send or a receive; numbers it. `place`: Transfer::place. Throws kLimit with too many in flight.
  /// The reason to abort is in `failure()` afterwards.
  std::shared_ptr<Transfer> post(const Op& call, std::uint64_t place = 0);

  /// Gives the oldest message with its tag that no receive asked for to `receive`, which is from any rank;
  /// false: there is none.
  bool take(const std::shared_ptr<Transfer>& receive);

  /// Whether anything here waits for the other rank, or a frame has to go out.
  bool busy() const { return in_flight_ != 0 || !controls_.empty(); }
  /// The number of sends and receives that are not done.
  std::size_t in_flight() const { return in_flight_; }
  /// Any that is not done; null if there is none.
  std::shared_ptr<const Transfer> oldest() const;

  struct Frame {
    FrameHeader header;
    std::vector<std::span<const std::byte>> pieces;
  };
  /// The next frame to send, if there is one; its pieces stay until it is sent().
  std::optional<Frame> next();
  /// The frame of the last next() is out.
  void sent();

  /// Where the payload of a frame goes. REQUIRES: its kind is one from kMessage to kCopied.
  std::span<std::byte> begin(const FrameHeader& header);
  /// The payload of the last begin() is there.
  void end();

  /// Why the group has to be aborted, or empty.
  const std::string& failure() const { return failure_; }

 private:
  using Ref = std::shared_ptr<Transfer>;
  /// A message that no receive asked for yet.
  struct Arrival {
    FrameHeader header;
    std::vector<std::byte> data;
    std::uint64_t place = 0;
  };
  struct Control {
    FrameHeader header;
    Ref ends;  ///< is done with this frame
  };

  void claim(Transfer& any);
  void finish(Transfer& transfer);
  void send_to_self(const Ref& send);
  void match(const Ref& receive, Arrival& arrival);
  void arrive(Arrival arrival);
  void taken_one();
  bool agree(const Transfer& receive, const FrameHeader& header);
  std::list<Arrival>::iterator arrival_for(const Op& receive);
  Ref waiting_for(const FrameHeader& header);
  void fail(std::string reason);
  void out_of_turn() { fail("rank " + std::to_string(peer_) + " sent a frame of a message out of turn"); }

  const int self_;
  const int peer_;
  const std::span<const std::byte> shared_;
  AnyReceives* const any_;
  std::string failure_;
  std::size_t in_flight_ = 0;

  // Sends.
  std::uint32_t sends_ = 0;
  std::deque<Ref> unannounced_;                  ///< to be announced
  std::map<std::uint32_t, Ref> awaiting_clear_;  ///< by number
  std::deque<Ref> streaming_;                    ///< asked for, in that order
  std::uint32_t eager_sent_ = 0;
  std::uint32_t eager_taken_ = 0;
  std::deque<Control> controls_;
  Ref sending_;                    ///< of the frame that is on its way out; null for a control
  std::size_t sending_bytes_ = 0;  ///< of its payload
  std::uint64_t place_ = 0;        ///< payload of an offer
  bool sends_control_ = false;
  FrameKind sent_kind_ = FrameKind::kMessage;

  // Receives.
  std::uint32_t receives_ = 0;
  std::uint32_t announced_ = 0;                 ///< messages of the other rank
  std::list<Ref> receives_waiting_;             ///< no message yet, oldest first
  std::list<Arrival> arrivals_;                 ///< no receive yet, oldest first
  std::map<std::uint32_t, Ref> clear_to_send_;  ///< by number
  std::uint32_t eager_come_ = 0;                ///< eager messages received so far
  std::uint32_t eager_received_ = 0;
  std::uint32_t eager_told_ = 0;
  std::size_t self_bytes_ = 0;
  Arrival coming_;  ///< the frame that is coming in
  Ref target_;      ///< where it goes, if not to coming_.data
};

}  // namespace troupe::collectives
