/// What moves the operations of one rank forward.
///
/// Collectives are done in rounds, numbered through all operations of a group: as many as plan.hpp says. A
/// rank carries each round through three counts, in order:
///
///   arrived    its input can be read (in place: at launch; a private buffer: once it is in a free stage)
///   reduced    all had arrived: it has compared calls, read its part of the others' input and copied it
///              to its output, or added it up and stored the sum to all who get it
///   completed  all have reduced: the result is in place (and copied out, for a private buffer), and nobody
///              reads this rank's input any more. One-shot (cost_model.hpp), a rank completes a round once it
///              has reduced it: what others read of its input is in its stage. On one host it then waits,
///              too, only for those that it reads: the root of a broadcast for nobody, the others for the
///              root.
///
/// Between hosts, the gateways (host_layout.hpp) send what the ranks of their host have for those of another
/// (host_plan.hpp), and store what comes to the region, where a rank adds it up or copies it as it does what
/// the ranks of its host left there. A gateway has reduced a round once it has also sent and received the
/// inputs of its connections, and it counts a round as `delivered` once it has stored the sums that came to
/// all of its host, and sent those that go.
///
/// The first two counts are words of the region that the others watch. Several rounds can be between these
/// states, so buckets that are launched during a backward are reduced one after another without waiting for
/// the last rank in between. Other hosts take part by frames (engine_remote.cpp). Sends and
/// receives have their own order, by pair of ranks (mailbox.hpp, engine_messages.cpp), and move whenever a
/// rank waits for anything, in another group of its process too (process_engines.hpp).
///
/// Thread-safety: a lock; a thread in wait() keeps it, and leaves within a slice of sleep once the group
/// aborts.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/native/backoff.hpp"
#include "collectives/native/cost_model.hpp"
#include "collectives/native/fixed_queue.hpp"
#include "collectives/native/float_mode.hpp"
#include "collectives/native/host_layout.hpp"
#include "collectives/native/host_plan.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/leaf_sums.hpp"
#include "collectives/native/link.hpp"
#include "collectives/native/mailbox.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/native/plan.hpp"
#include "collectives/native/process_engines.hpp"
#include "collectives/native/region.hpp"
#include "collectives/native/spin_lock.hpp"
#include "runtime/core/fork_guard.hpp"

namespace troupe::collectives {

/// What somebody waits for: a send or receive, or that so many rounds are complete.
struct Token {
  std::uint32_t rounds = 0;
  std::shared_ptr<const Transfer> transfer;  ///< null: rounds
  Duration timeout{};                        ///< 0: the group's
  bool complete = false;                     ///< at its launch
};

class Engine {
 public:
  /// `options` are valid (native_group.cpp); `region` is attached.
  Engine(NativeGroupOptions options, Region region);

  /// See ProcessGroup::reserve.
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree);

  /// Starts an operation, which was completed, checked and numbered (check_op.hpp).
  Token launch(const Op& call) { return is_message(call.kind) ? post(call) : launch_rounds(call); }
  /// The messages of an all_to_all_v, which was launched.
  std::vector<Token> post_parts(const Op& call);
  /// Starts all_reduces of one dtype, reduction and timeout as one, whose output is copied to theirs at its
  /// end.
  Token launch_packed(std::span<const Op> calls);

  /// Moves everything until `token` is complete, for up to `limit` (zero: does what can be done without
  /// waiting); whether it is complete. Throws CollectiveAborted and Timeout.
  bool wait(const Token& token, Duration limit);

  void abort(AbortKind kind, const std::string& reason);
  std::string abort_reason();
  /// Returns once no thread moves an operation of this rank.
  void await_quiet() { const std::lock_guard lock(mutex_); }
  /// The group is destroyed: others must not wait for this rank.
  void leave();
  /// For a thread that waits in another group: does what can be done without waiting, unless another thread
  /// is at it; whether anything moved. `all`: takes what was sent eagerly, too. An error is in the abort
  /// word.
  bool move_beside(bool all);

  /// Starts the thread that moves everything while nobody waits (engine_serve.cpp).
  void start_serving();

 private:
  struct Tree {
    std::size_t offset = 0;  ///< of slot 0 in each rank's data
    std::size_t slot_bytes = 0;
  };
  /// What follows from a call's words and counts alone. Most calls are as the one before, and have the same.
  struct Known {
    OpWords words{};
    std::vector<std::size_t> counts;
    bool opens = false;  ///< it is of a group's first call
    std::uint64_t hash = 0;
    Choice choice;
    Plan plan;
    std::uint64_t rounds = 1;
    std::size_t element = 4;  ///< bytes
    Kernel kernel;
    std::vector<int> awaits;  ///< local ranks that have to arrive before a round is reduced
    bool is_read = false;     ///< by other ranks of this host, or for those of others
  };
  struct Pending {
    Op call;
    std::shared_ptr<const Known> known;
    std::uint32_t hash = 0;  ///< of the words and the round
    std::uint32_t sequence = 0;
    std::uint32_t first_round = 0;
    std::uint32_t rounds = 1;
    bool copies_in = false;             ///< other local ranks read this rank's input from its stage
    bool gated = false;                 ///< a round has to wait for this rank's stage
    bool agreed = false;                ///< the calls of those that it awaits are compared
    HostPlan hosts;                     ///< where there are several
    std::vector<Op> packed;             ///< calls that this one stands for, and
    std::unique_ptr<std::byte[]> pack;  ///< its buffer
    std::uint32_t slot = 0;             ///< its published call
    std::vector<std::uint64_t> places;  ///< by local rank: offset of its input in its data + 1, or 0
    bool is(OpKind kind) const { return call.kind == kind; }
    const Plan& plan() const { return known->plan; }
    const OpWords& words() const { return known->words; }
    std::size_t element() const { return known->element; }
  };
  /// A call that was not compared with those of all local ranks, since it did not wait for all.
  struct Unseen {
    std::uint32_t round = 0;
    std::uint32_t slot = 0;
    std::uint32_t hash = 0;
    std::uint32_t sequence = 0;
    OpWords words{};
    bool gave = false;  ///< this rank waited for nobody
  };
  /// A frame of a round that this rank has not launched yet.
  struct EarlyFrame {
    FrameHeader header;
    std::vector<std::byte> bytes;
  };
  /// A rank with which this one exchanges frames. With one of its host, or itself, these are messages alone.
  /// Where the two are gateways, the counts are of rounds, as launched_ and the like: all before have been
  /// sent or received, or go another way.
  struct Peer {
    Peer(int self, int peer, int its_host, std::span<const std::byte> shared, AnyReceives* any)
        : link(peer), mailbox(self, peer, shared, any), host(its_host) {}
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
  };

  // What an operation is made of (engine_data.cpp).
  static std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }
  bool is_local(int rank) const { return local_index_[index_of(rank)] >= 0; }
  std::size_t local(int rank) const { return static_cast<std::size_t>(local_index_[index_of(rank)]); }
  Pending& op_of(std::uint32_t round);
  const Pending& op_of(std::uint32_t round) const;
  LeafSums& sums_of(const Pending& op) { return op.is(OpKind::kAllReduceTree) ? leaf_sums_ : rank_sums_; }
  const LeafSums& sums_of(const Pending& op) const { return const_cast<Engine*>(this)->sums_of(op); }
  std::size_t partials_of(const Pending& op, int rank) const { return sums_of(op).of_rank[index_of(rank)]; }
  bool alone() const { return locals_.size() == 1; }
  Shape shape_of(const Op& call) const;
  std::byte* slot(const Pending& op, int rank, std::size_t partial) const;
  const std::byte* own_input(const Pending& op, std::size_t partial) const;
  std::byte* own_output(const Pending& op) const;
  const std::byte* source(const Pending& op, std::uint32_t round, int from, int to,
                          std::size_t partial) const;
  std::byte* target(const Pending& op, std::uint32_t round, int owner, int to) const;
  std::byte* own_sum(const Pending& op, std::uint32_t round, int owner) const;
  const std::byte* landed_part(const Pending& op, std::uint32_t round, int from, std::size_t part) const;
  std::vector<std::span<std::byte>> blob(const Pending& op, std::uint32_t round, int origin) const;
  std::vector<std::span<const std::byte>> own_blob(Peer& remote, const Pending& op, std::uint32_t round);
  void prepare(Pending& op) const;
  void learn_partners(Known& known) const;
  void stage(const Pending& op, std::uint32_t round) const;
  void unstage(const Pending& op, std::uint32_t round) const;
  void sum(const Pending& op, std::uint32_t round);
  void add_up(Peer& remote, const Pending& op, std::uint32_t round, int receiver, std::size_t at);
  void pass_on(const Pending& op, std::uint32_t round, int owner) const;
  void copy(const Pending& op, std::uint32_t round);

  // The three counts. Each returns whether it moved.
  bool advance();
  bool arrive();
  bool reduce();
  bool complete();
  bool have_arrived(const std::vector<int>& ranks, std::uint32_t round) const;
  bool all_arrived(const Pending& op, std::uint32_t round);
  bool locals_reduced(std::uint32_t round) const {
    return is_before(round, freed_) || is_before(round, freed());
  }
  bool locals_delivered(std::uint32_t round) const;
  std::uint32_t freed() const;
  void agree(Pending& op);
  OpWords published(int peer, std::uint32_t slot) const;
  [[noreturn]] void fail_mismatch(int peer, std::uint32_t slot, std::uint32_t sequence,
                                  const std::string& mine);
  void compare_unseen(const std::vector<int>& peers, std::uint32_t until);
  void compare_arrived();
  bool has_called(int peer, std::uint32_t round, std::uint32_t hash) const;
  void trace(const Pending& op, const Choice& choice);
  const std::shared_ptr<const Known>& know(const Op& call);
  Token launch_rounds(const Op& call, std::span<const Op> packed = {},
                      std::unique_ptr<std::byte[]> pack = nullptr);
  static void unpack(const Pending& op);
  Token post(const Op& call);
  Token post_any(const Op& call);

  // Waiting and failing (engine_wait.cpp).
  struct Awaited {
    enum What { kArrival, kReduction, kStage } what;
    std::uint32_t round;
    const std::vector<int>& ranks;  ///< of this host, whose words are waited for
  };
  Awaited awaited() const;
  bool waits_beside(const Token& token) const;
  bool done(const Token& token) const;
  Duration timeout_of(const Token& token) const {
    return token.timeout > Duration::zero() ? token.timeout : timeout_;
  }
  bool drive(const Token& token, Duration limit = Duration::max());
  bool is_busy() const { return !ops_.empty() || oldest_transfer() != nullptr; }
  void check_on_others(const Token& token);
  void sleep(const Token& token);
  std::vector<int> missing(const Token& token) const;
  int behind(const std::vector<int>& ranks) const;
  std::uint64_t progress_of_all() const;
  void throw_if_aborted();
  [[noreturn]] void fail(AbortKind kind, const std::string& reason);
  [[noreturn]] void throw_aborted();
  [[noreturn]] void fail_timeout(const Token& token);
  void tell_other_machines();
  std::string name_of(const Transfer& transfer) const;
  std::string name_of(const Token& token);
  std::string name_of_oldest() const;

  // Other hosts (engine_remote.cpp).
  Peer& remote_of(int rank);
  void adopt(int rank, PeerConnection connection);
  bool take_connections();
  bool exchange();
  bool needs(const Peer& remote) const;
  void skip_rounds(Peer& remote);
  bool send_to(Peer& remote);
  bool start_frame(Peer& remote);
  bool start_freed(Peer& remote);
  bool start_call(Peer& remote);
  bool start_result(Peer& remote);
  bool start_partials(Peer& remote);
  bool start_message(Peer& remote);
  void sent(Peer& remote);
  bool receive_from(Peer& remote);
  std::vector<std::span<std::byte>> target_of(Peer& remote);
  std::vector<std::span<std::byte>> partials_target(Peer& remote);
  std::vector<std::span<std::byte>> result_target(Peer& remote);
  std::vector<std::span<std::byte>> early_target(Peer& remote);
  std::vector<std::span<std::byte>> blobs_from(Peer& remote, const FrameHeader& header);
  void received(Peer& remote);
  void landed(Peer& remote);
  void place_early(Peer& remote);
  void compare_its_call(Peer& remote);
  void count_delivered();
  void check_call(const Peer& remote, const FrameHeader& header, const Pending& op);
  [[noreturn]] void refuse(const Peer& remote, const FrameHeader& header);
  FrameHeader header_for(Peer& remote, const Pending& op, std::uint32_t round, FrameKind kind,
                         std::size_t bytes) const;
  bool has_landed(const Pending& op, std::uint32_t round, int origin) const;
  bool gates_are_past(std::uint32_t round) const;
  void poll_sockets(Duration limit);
  bool wait_to_send();

  void serve();
  void wake_server();
  void note_launch();

  // Messages (engine_messages.cpp).
  Mailbox& mailbox_of(int peer);
  bool exchange_messages(bool all = false);
  bool take_unasked();
  void check(const Mailbox& mailbox);
  bool left(int peer) const;
  bool is_gone(int peer) const;
  void check_senders(const Token& token);
  void sleep_on_messages(int peer);
  std::shared_ptr<const Transfer> oldest_transfer() const;

  const ForkGuard fork_guard_;
  const int rank_;
  const int size_;
  const std::string name_;
  const Duration timeout_;
  const bool trace_;
  std::set<OpWords> traced_;
  const std::vector<LeafInterval> intervals_;
  const HostLayout layout_;
  const int host_;
  const std::vector<int> locals_;
  std::vector<int> local_index_;  ///< by rank: its place among the local ranks, or -1
  Region region_;
  RankCell& mine_;
  bool crowded_ = false;  ///< there are fewer cores than ranks of this host; known from the first round on
  Backoff::Credit spin_credit_;
  LeafSums leaf_sums_;
  LeafSums rank_sums_;  ///< of the tree on which a leaf is a rank

  std::atomic<std::uint32_t> waiting_{0};  ///< threads in wait(): they serve
  UniqueFd wake_;                          ///< written to wake the server
  std::atomic<bool> stops_{false};         ///< the server ends
  std::atomic<bool> dozes_{false};         ///< the server looks seldom, and wants to hear of a launch
  std::thread server_;
  Instant served_at_{0};                      ///< when something last moved there, or was launched
  FloatMode float_mode_ = FloatMode::here();  ///< of the thread that launched last

  SpinLock mutex_;
  std::vector<Tree> trees_;
  std::size_t allocated_bytes_ = 0;
  bool staging_populated_ = false;
  AnyReceives any_receives_;
  std::map<int, Peer> remotes_;           ///< of other hosts
  std::vector<Peer*> gates_;              ///< those that carry rounds
  std::unique_ptr<Connector> connector_;  ///< until this rank leaves, or the group is aborted
  bool connections_due_ = false;          ///< the connector has something to do
  UniqueFd sockets_;                      ///< epoll, of the remotes and the connector
  std::map<int, Peer> neighbours_;        ///< of this host, with which there were messages
  bool told_ = false;                     ///< other machines know of the abort

  std::shared_ptr<const Known> known_;     ///< of the last call; null before the first
  FixedQueue<Pending, kMaxInFlight> ops_;  ///< launched and not complete, oldest first
  FixedQueue<Unseen, 2 * kStages> unseen_;
  std::uint32_t calls_ = 0;     ///< operations launched
  std::uint32_t launched_ = 0;  ///< rounds, as the following
  std::uint32_t arrived_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t delivered_ = 0;
  mutable std::uint32_t freed_ = 0;  ///< of which all of this host have reduced, when it was last looked at

  MonotonicClock clock_;
  bool stalled_ = false;            ///< no rank made progress for a while
  std::uint64_t missing_here_ = 0;  ///< who of this host is missing then
  bool moved_ = false;  ///< since check_on_others() looked: it reads the clock, and not every step
  std::uint64_t seen_progress_ = 0;
  Instant progress_at_{0};
  Instant looked_at_{0};  ///< in this wait; 0: not yet

  std::vector<const std::byte*> sources_;  ///< scratch of sum()
  std::vector<std::byte*> targets_;
  std::vector<std::size_t> next_part_;  ///< by host
  int landed_hosts_ = 0;  ///< of the next round to reduce: of all before it everything has landed
  /// The last calls, by number, to name what another rank's does not match.
  std::array<std::pair<std::uint32_t, OpWords>, kMaxInFlight> recent_{};

  std::optional<EngineEntry> entry_;  ///< last, and opened and closed under mutex_
};

}  // namespace troupe::collectives
