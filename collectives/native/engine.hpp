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
///              has reduced it: what others read of its input is in its stage.
///
/// Between hosts, adjacent ranks on one host act as one host group (host_layout.hpp). For a sum, each of them
/// is the leader for some remote ranks: it sends these the group's partial sums and stores their results to
/// the whole group. Input that every rank of a host copies is *relayed*: one rank receives it into its stage,
/// and the others read it there once its `delivered` counts the round.
///
/// The first two counts are words of the region that the others watch. Several rounds can be between these
/// states, so buckets that are launched during a backward are reduced one after another without waiting for
/// the last rank in between. A rank of another host takes part by frames (engine_remote.cpp). Sends and
/// receives have their own order, by pair of ranks (mailbox.hpp, engine_messages.cpp), and move whenever a
/// rank waits for anything.
///
/// Thread-safety: a mutex; a thread in wait() keeps it, and leaves within a slice of sleep once the group
/// aborts.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/native/backoff.hpp"
#include "collectives/native/cost_model.hpp"
#include "collectives/native/fixed_queue.hpp"
#include "collectives/native/host_layout.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/leaf_sums.hpp"
#include "collectives/native/link.hpp"
#include "collectives/native/mailbox.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/native/plan.hpp"
#include "collectives/native/region.hpp"

namespace troupe::collectives {

/// What somebody waits for: a send or receive, or that so many rounds are complete.
struct Token {
  std::uint32_t rounds = 0;
  std::shared_ptr<const Transfer> transfer;  ///< null: rounds
  Duration timeout{};                        ///< 0: the group's
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
  /// The group is destroyed: others must not wait for this rank.
  void leave();

 private:
  struct Tree {
    std::size_t offset = 0;  ///< of slot 0 in each rank's data
    std::size_t slot_bytes = 0;
  };
  struct Pending {
    Op call;
    OpWords words{};  ///< of the call
    Plan plan;
    std::size_t element = 4;  ///< bytes
    std::uint32_t sequence = 0;
    std::uint32_t first_round = 0;
    std::uint32_t rounds = 1;
    Kernel kernel;
    bool copies_in = false;             ///< other local ranks read this rank's input from its stage
    bool gated = false;                 ///< a round has to wait for this rank's stage
    bool agreed = false;                ///< the local ranks' calls are compared
    bool by_host_group = false;         ///< a host group sends one partial sum and receives one result
    bool relayed = false;               ///< inputs go to one rank of a machine, for all there
    std::vector<Op> packed;             ///< calls that this one stands for, and
    std::unique_ptr<std::byte[]> pack;  ///< its buffer
    std::uint32_t slot = 0;             ///< its published call
    std::vector<std::uint64_t> places;  ///< by local rank: offset of its input in its data + 1, or 0
    bool is(OpKind kind) const { return call.kind == kind; }
  };
  /// The partials of one round from a rank of another machine.
  struct ReceivedPartial {
    FrameHeader header;
    std::vector<std::byte> bytes;
    bool placed = false;  ///< they went straight to the output
  };
  /// A rank of another machine. Counts are of rounds, as launched_ and the like.
  struct Remote {
    explicit Remote(Link made, int self) : link(std::move(made)), mailbox(self, link.rank(), {}) {}
    Link link;
    Mailbox mailbox;
    enum class Sending { kNothing, kReady, kPartials, kResult, kMessage } sending = Sending::kNothing;
    bool message_first = false;   ///< whose turn it is, so that neither starves the other
    std::uint32_t ready_out = 0;  ///< rounds of which it knows that there is room for its partials
    std::uint32_t partials_out = 0;
    std::uint32_t results_out = 0;
    std::uint32_t ready_in = 0;
    std::uint32_t results_in = 0;
    std::deque<ReceivedPartial> received;  ///< rounds from reduced_ on
    ReceivedPartial coming;                ///< is coming in
    std::vector<std::vector<std::byte>> spare;
    std::vector<std::byte> added_up;  ///< what this rank sends of its host group's inputs
  };
  /// A rank of this machine (or this one itself) with which there were messages.
  struct Neighbour {
    Mailbox mailbox;
    std::unique_ptr<Link> link;  ///< null for this rank itself
    bool sending = false;
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
  bool by_host_group(const Pending& op, int rank) const { return op.by_host_group && !layout_.alone(rank); }
  std::size_t partials_sent(const Pending& op, int from, int to) const;
  bool takes_result(const Pending& op, int to, int owner) const;
  int reader_of(const Pending& op, int to) const;
  std::byte* slot(const Pending& op, int rank, std::size_t partial) const;
  const std::byte* own_input(const Pending& op, std::size_t partial) const;
  std::byte* own_output(const Pending& op) const;
  const std::byte* source(const Pending& op, std::uint32_t round, int from, int to, std::size_t partial);
  std::byte* target(const Pending& op, std::uint32_t round, int owner, int to) const;
  std::byte* own_sum(const Pending& op, std::uint32_t round) const;
  int origin_of(const Pending& op, int sender) const;
  bool into_stage(const Pending& op) const { return op.relayed && locals_.size() > 1; }
  std::byte* landing(const Pending& op, std::uint32_t round, int from) const;
  void prepare(Pending& op) const;
  void stage(const Pending& op, std::uint32_t round) const;
  void unstage(const Pending& op, std::uint32_t round) const;
  void sum(const Pending& op, std::uint32_t round);
  std::span<const std::byte> add_up_host_group(Remote& remote, const Pending& op, std::uint32_t round);
  void pass_on(const Pending& op, std::uint32_t round, int owner) const;
  void copy(const Pending& op, std::uint32_t round);

  // The three counts. Each returns whether it moved.
  bool advance();
  bool arrive();
  bool relay();
  bool reduce();
  bool complete();
  bool locals_arrived(std::uint32_t round) const;
  bool all_arrived(std::uint32_t round) const;
  bool locals_reduced(std::uint32_t round) const;
  bool locals_delivered(std::uint32_t round) const;
  bool remotes_reduced(std::uint32_t round) const;
  void agree(Pending& op);
  void trace(const Pending& op, const Choice& choice);
  Token launch_rounds(const Op& call, std::span<const Op> packed = {},
                      std::unique_ptr<std::byte[]> pack = nullptr);
  static void unpack(const Pending& op);
  Token post(const Op& call);

  // Waiting and failing (engine_wait.cpp).
  struct Awaited {
    enum What { kArrival, kReduction, kStage } what;
    std::uint32_t round;
  };
  Awaited awaited() const;
  bool done(const Token& token) const;
  Duration timeout_of(const Token& token) const {
    return token.timeout > Duration::zero() ? token.timeout : timeout_;
  }
  bool drive(const Token& token, Duration limit = Duration::max());
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

  // Other machines (engine_remote.cpp).
  bool exchange();
  bool needs(const Remote& remote) const;
  bool send_to(Remote& remote);
  bool start_frame(Remote& remote);
  bool start_ready(Remote& remote);
  bool start_result(Remote& remote);
  bool start_partials(Remote& remote);
  bool start_message(Remote& remote);
  void sent(Remote& remote);
  bool receive_from(Remote& remote);
  std::span<std::byte> target_of(Remote& remote);
  std::span<std::byte> partials_target(Remote& remote);
  std::span<std::byte> result_target(Remote& remote);
  void received(Remote& remote);
  void skip_results(Remote& remote);
  void count_delivered();
  void check_call(const Remote& remote, const FrameHeader& header, const Pending& op);
  void check_received(const Pending& op);
  [[noreturn]] void out_of_turn(const Remote& remote);
  FrameHeader header_for(const Pending& op, std::uint32_t round, FrameKind kind, std::size_t bytes) const;
  std::size_t partials_bytes(const Pending& op, std::uint32_t round, int from, int to) const;
  bool has_partials(const Remote& remote, std::uint32_t round) const;
  bool has_arrived(const Remote& remote, std::uint32_t round) const;
  void sleep_on_sockets();
  bool wait_to_send();

  // Messages (engine_messages.cpp).
  Mailbox& mailbox_of(int peer);
  bool exchange_messages();
  bool serve_any_receives();
  void check(const Mailbox& mailbox);
  bool left(int peer) const;
  void sleep_on_messages(int peer);
  std::shared_ptr<const Transfer> oldest_transfer() const;

  const int rank_;
  const int size_;
  const std::string name_;
  const Duration timeout_;
  const bool trace_;
  std::set<OpWords> traced_;
  const std::vector<LeafInterval> intervals_;
  const HostLayout layout_;
  const std::vector<int> locals_;
  std::vector<int> local_index_;  ///< by rank: its place among the local ranks, or -1
  Region region_;
  RankCell& mine_;
  const bool crowded_;
  LeafSums leaf_sums_;
  LeafSums rank_sums_;  ///< of the tree on which a leaf is a rank

  mutable std::mutex mutex_;
  std::vector<Tree> trees_;
  std::size_t allocated_bytes_ = 0;
  bool staging_populated_ = false;
  std::map<int, Remote> remotes_;
  std::map<int, Neighbour> neighbours_;
  std::vector<std::shared_ptr<Transfer>>
      any_receives_;   ///< from any rank, without a message yet, oldest first
  bool told_ = false;  ///< other machines know of the abort

  FixedQueue<Pending, kMaxInFlight> ops_;  ///< launched and not complete, oldest first
  std::uint32_t calls_ = 0;                ///< operations launched
  std::uint32_t launched_ = 0;             ///< rounds, as the following
  std::uint32_t arrived_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t relayed_ = 0;  ///< of which what came for all of this machine is in the stage
  std::uint32_t delivered_ = 0;

  MonotonicClock clock_;
  bool moved_ = false;  ///< since check_on_others() looked: it reads the clock, and not every step
  std::uint64_t seen_progress_ = 0;
  Instant progress_at_{0};

  std::vector<const std::byte*> sources_;  ///< scratch of sum()
  std::vector<std::byte*> targets_;
};

}  // namespace troupe::collectives
