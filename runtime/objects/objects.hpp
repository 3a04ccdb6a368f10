/// The objects of a process: those it owns, those it uses, and the talk with other processes about both.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "runtime/core/condition.hpp"
#include "runtime/host/bounded_memory.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/responder.hpp"
#include "runtime/objects/borrow_table.hpp"
#include "runtime/objects/copy_plan.hpp"
#include "runtime/objects/copy_queue.hpp"
#include "runtime/objects/direct_connections.hpp"
#include "runtime/objects/offer_table.hpp"
#include "runtime/objects/owner_table.hpp"
#include "runtime/objects/references.hpp"
#include "runtime/objects/segment_pool.hpp"
#include "runtime/objects/spill_files.hpp"
#include "runtime/objects/spill_table.hpp"
#include "runtime/package/work_thread.hpp"
#include "runtime/wire/region_answer.hpp"

namespace troupe::objects {

class Objects;
struct Location;
struct PartAsk;
struct LocateAsk;
struct MakingTell;

/// One reference to an object, held by this process while this lives.
class Handle {
 public:
  Handle(std::weak_ptr<Objects> objects, const ObjectName& name)
      : objects_(std::move(objects)), name_(name) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  const ObjectName& name() const { return name_; }
  /// Of its process; null once that has ended.
  std::shared_ptr<Objects> objects() const { return objects_.lock(); }

 private:
  const std::weak_ptr<Objects> objects_;
  const ObjectName name_;
};

/// Of a process's own small objects together.
inline constexpr std::uint64_t kMostInlineBytes = std::uint64_t{1} << 30;

/// Thread-safe. Other processes ask by calls of its process's actor 0; the method is the operation.
class Objects : public std::enable_shared_from_this<Objects> {
 public:
  /// Memory, or none and `answer.full`.
  struct Lent {
    UniqueFd fd;
    wire::RegionAnswer answer;
  };
  using OnRegion = std::function<void(Result<Lent>)>;
  /// Asks this node for shared memory.
  using AskRegion = std::function<void(const std::string& key, std::uint64_t bytes, OnRegion then)>;
  using Ask = std::function<void(OnRegion then)>;

  /// `gate` must outlive the use of it, which close() ends. `direct`: null: copies come over the links alone.
  Objects(ProcessGate& gate, Waiter* waiter, AskRegion ask_region,
          std::unique_ptr<DirectConnections> direct = nullptr,
          std::shared_ptr<SpillDisk> spill_disk = std::make_shared<SpillDisk>(),
          const ObjectLimits& limits = {});
  /// Nothing is asked or told any more. `why`: its node is gone so; empty: the process ends.
  void close(const std::string& why = {});
  /// Waits for what is under way on the disk; whoever waits for an object or for memory hears that the
  /// process ends. REQUIRES: close() came before; the node's answers still come.
  void stop();
  /// Its node is gone: nothing more goes to or comes from another one by a connection of its own, or from and
  /// to a disk. REQUIRES: close() came before.
  void end_threads();
  /// After close(): what is asked from now on fails with `why`, since there will be no other node.
  void no_other_node(const std::string& why);

  /// A new object with a copy of these bytes. Waits for shared memory if they are many: others are spilled
  /// for it when the store is full. Throws LimitExceeded when that makes no room; first, where what is in use
  /// may go, it waits for that so long. `of_call`: bytes of the same call's arguments that are there.
  HandlePtr put(wire::ByteView bytes, Duration for_room = Duration::zero(), std::uint64_t of_call = 0);
  HandlePtr put(wire::Bytes&& bytes);
  /// Of two parts, written one behind the other. Null, unless it `waits` for memory that others read: the
  /// store is full of what is in use. REQUIRES: they are many bytes, and this thread may wait.
  HandlePtr put_answer(wire::ByteView head, wire::ByteView rest, bool waits);
  /// A reference that arrived, or another one to what is held already.
  HandlePtr hold(const ObjectName& name);
  /// The node where most of these objects' bytes are, as far as this process knows; none: they are small.
  NodeId mostly_on(const wire::Kept& handles) const;
  /// The object's bytes, fetched if they are not here. `waits`: for one that is being computed.
  /// `of_call`: it is an argument of that one.
  std::shared_ptr<Fetch> fetch(const ObjectName& name, bool waits = true,
                               const std::shared_ptr<CallBytes>& of_call = nullptr);
  /// Other shared memory of `bytes`, in a store that is full: `ask` is tried again as objects make room. In a
  /// thread that may wait.
  Result<Lent> lend(const Ask& ask, std::uint64_t bytes) { return lend(ask, bytes, Full::kMakesRoom, {}); }
  /// What a call's body says of objects; taken off it.
  Result<std::shared_ptr<const References>> references(wire::Bytes& body, bool waits = true);

  // Objects that tasks compute (computed.cpp).
  /// Called without a lock, in any thread.
  struct Hooks {
    std::function<void(std::uint64_t)> wanted;  ///< somebody reads it, and it has no value
    std::function<void(std::uint64_t, const std::string& why)> lost;
    std::function<void(std::uint64_t)> freed;  ///< nobody refers to it
    std::function<std::string(std::uint64_t)> why_waits;
  };
  void set_hooks(Hooks hooks);
  std::uint64_t next_number();
  /// A new object whose value comes later.
  HandlePtr reserve();
  /// One of these, in being again if it was freed: then without a value.
  HandlePtr hold_computed(std::uint64_t number);
  /// Its value is that object's, or there is none.
  void computed(std::uint64_t number, Result<HandlePtr> at);
  /// Calls `then` once another process's has a value, or an error when it gets none.
  void when_computed(const ObjectName& name, std::function<void(Result<void>)> then, int broken = 0);
  using OnPlace = std::function<void(Result<HandlePtr>)>;
  /// A copy of another process's object, as one of `keeper`'s.
  void keep_at(ProcessAddress keeper, const ObjectName& of, OnPlace then);
  const ObjectLimits& limits() const { return limits_; }
  /// What an own one waits for that has no value yet; empty: nothing is known.
  std::string why_waits(const ObjectName& name) const;
  /// What was offered to this process.
  HandlePtr accept(const ObjectName& name);

  // Large arguments of calls.
  /// The object, which counts as one of them until the last copy of this goes.
  HandlePtr argument(HandlePtr object);

  // Large answers of calls.
  /// `to` takes the object over: it lives until that process says that it holds it, or is gone, or the link
  /// to it broke. `copy_of`: what it is a copy of, if that is asked for.
  void offer(HandlePtr object, ProcessAddress to, const ObjectName& copy_of = {});
  /// The same of an answer, which `to` has before long: wait_until_taken() waits for that.
  void offer_answer(HandlePtr object, ProcessAddress to);
  /// Calls `then` with a copy of what was offered to this process, in a thread of the runtime.
  void take(const ObjectName& name, std::function<void(Outcome)> then);
  /// With `load` it lies in an object of this process; else `outcome` has it, or says why there is none.
  using OnStored = std::function<void(Outcome outcome, CallState::Load load)>;
  /// The same for an answer that nobody waits for: it becomes an object of this process, which is spilled as
  /// others are; the process that made it may end. Where the store has no room, a copy in this process's
  /// memory.
  void store(const ObjectName& name, OnStored then);
  void store(wire::Bytes answer, OnStored then);
  /// The link to that node broke: what was on its way is lost, and what happens there is not told.
  void node_lost(NodeId node);
  /// Until those that were called from here have all answers, or `most` is over. In a thread that may wait.
  void wait_until_taken(Duration most);

  // References in answers.
  /// Holds these, whose names are in the answer of that call, until its caller does or is gone. REQUIRES: the
  /// answer was sent.
  void hand_over(wire::Kept references, ProcessAddress to, std::uint64_t call);
  /// References to what an answer of `from` names: held from now on, and said to be once their owners know.
  wire::Kept received(const std::vector<ObjectName>& names, ProcessAddress from, std::uint64_t call);

  /// A question of another process.
  void asked(ProcessAddress from, std::uint64_t operation, const wire::Bytes& body, Responder responder);
  void process_down(ProcessAddress process, const std::string& reason);
  void node_down(NodeId node, const std::string& reason);

  /// Owned, borrowed, and here as copies: for tests and status.
  struct Counts {
    std::size_t owned = 0;
    std::size_t borrowed = 0;
    std::size_t here = 0;
    std::size_t offered = 0;  ///< to others that do not hold them yet
    std::size_t asked = 0;    ///< for by others that have no answer yet
    std::size_t spilled = 0;  ///< of the owned ones: on disk and not in memory
    std::size_t direct = 0;   ///< copies that came over direct connections so far
  };
  Counts counts() const;

 private:
  friend class Handle;
  class Argument;
  using FetchPtr = std::shared_ptr<Fetch>;
  /// A copy on its way to this node.
  struct Pull {
    const ObjectName name;
    const FetchPtr fetch;
    const std::uint64_t bytes = 0;
    const bool in_store = true;  ///< else `fd` is memory of this process alone
    UniqueFd fd{};
    std::mutex mutex{};  ///< guards `plan`
    CopyPlan plan;
  };
  using PullPtr = std::shared_ptr<Pull>;

  bool is_closed() const;
  /// Whoever was asked has died so: an owner, or its node.
  ErrorInfo lost_by_death(const ObjectName& name, const std::string& why) const;
  // Once it is closed: what becomes of an object on its way, and of an own one.
  ErrorInfo is_over() const;
  ErrorInfo lost_at_end(std::uint64_t number, const Fetch& known) const;
  void dropped(const ObjectName& name);
  /// Of what is owned.
  struct Own {
    FetchPtr value;      ///< not ready while a large one is not in memory
    SegmentPtr segment;  ///< of a large one that is
    std::uint64_t bytes = 0;
    std::optional<SpillFiles::Place> place;  ///< on disk
    bool is_answer = false;                  ///< of a call: its caller alone reads it
  };
  using BytesPtr = std::shared_ptr<const ObjectBytes>;
  struct Placed {
    BytesPtr bytes;
    SegmentPtr segment;
  };
  HandlePtr own(std::uint64_t number, BytesPtr bytes, SegmentPtr segment);
  // Memory of one's own objects.
  enum class Full { kSaysSo, kSpills, kMakesRoom };
  static constexpr int kMostRounds = 20;  ///< others may take the room that was made
  /// `full_of`: the bytes of a store that is full of what is in use; else 0.
  Result<Placed> place(std::uint64_t number, std::uint64_t bytes, const Source& from, std::uint64_t& full_of,
                       Full full);
  HandlePtr own_placed(std::uint64_t number, std::uint64_t bytes, Result<Placed> placed);
  HandlePtr put_shared(std::uint64_t bytes, const Source& from, Duration for_room, std::uint64_t of_call);
  Result<Placed> place_in_time(std::uint64_t number, std::uint64_t bytes, const Source& from,
                               Duration for_room, std::uint64_t of_call);
  bool wait_for_room(std::uint64_t seen, std::uint64_t of_call, bool may_fit, Instant until);
  std::uint64_t looked_at_here() const;
  std::optional<Result<Placed>> place_again(std::uint64_t number, std::uint64_t bytes, const Source& from);
  Result<Lent> lend(const std::string& key, std::uint64_t bytes, Full full) {
    return lend(ask_for(key, bytes), bytes, full, key);
  }
  Result<Lent> lend(const Ask& ask, std::uint64_t bytes, Full full, const std::string& key);
  Ask ask_for(const std::string& key, std::uint64_t bytes) {
    return [this, key, bytes](OnRegion then) { ask_region_(key, bytes, std::move(then)); };
  }
  void retire(std::vector<SegmentPtr> segments);
  void give_back(std::vector<SegmentPtr> segments);
  std::vector<SegmentPtr> all_kept();
  void sweep_later();

  // Room in the store (room.cpp).
  struct Room {
    std::uint64_t freed = 0;
    std::string why_not_more;
    bool is_read = false;  ///< of what stayed some is read by other processes
  };
  struct Leaving {
    SpillTable::Spill spill;
    std::uint64_t bytes = 0;
    SegmentPtr segment;
    std::optional<SpillFiles::Place> place;
    bool is_read = false;
  };
  /// `why_not`: null, or why it is not done: it ends with that, and leaves the files alone.
  using OnDisk = std::function<void(Objects& self, const ErrorInfo* why_not)>;
  /// Does it in the thread that waits for the disk, in order; or ends it, here and at once, when the process
  /// is over (that thread may still be at work on the files) or has no such thread, and can start none.
  void on_disk(OnDisk work);
  void do_next();
  /// Asks for memory, and makes room if there is none: with all processes of the node that can.
  void obtain(const Ask& ask, std::uint64_t bytes, OnRegion then, int round = 0);
  std::string what_stays() const;
  void obtain_later(const Ask& ask, std::uint64_t bytes, const OnRegion& then, int round);
  void ask_others(std::vector<ProcessId> holders, std::uint64_t bytes, Room room,
                  std::function<void(Objects&, Room)> then);
  Room make_room(std::uint64_t wanted);
  std::uint64_t let_go();
  std::vector<Leaving> choose(std::uint64_t wanted, const std::set<std::uint64_t>& stuck);
  Result<void> spill(Leaving& one);
  void left(Leaving& one);
  void stay(Leaving& one);
  void restore(std::uint64_t number);
  Result<BytesPtr> read_beside(const SpillFiles::Place& place) const;
  void restored(std::uint64_t number, std::uint64_t region, Result<Lent> lent);
  void give_room(std::uint64_t bytes, Responder responder);
  ObjectName own_name(std::uint64_t number) const { return {gate_.address(), number}; }

  // The owner's side.
  void carry_out(OwnerTable::Actions actions);
  void answer(const OwnerTable::Answer& answer);
  void broken(std::uint64_t ticket);
  void check(const OwnerTable::Check& what);
  void check_again(ProcessAddress process);
  std::vector<ObjectName> copies_of(const OwnerTable::IsDown& is_owner) const;  ///< REQUIRES: the lock
  void checked(ProcessAddress process, const std::vector<OwnerTable::Making>& making, const Outcome& outcome);
  MakingTell not_made(ProcessAddress owner, const MakingTell& asked) const;
  void give_part(const PartAsk& part, Responder responder);
  Outcome read_part(const PartAsk& part);
  // The borrower's.
  void carry_out(BorrowTable::Actions actions);
  void borrow_answered(const ObjectName& name, const Outcome& outcome);
  // The reader's.
  FetchPtr fetch_shared(const ObjectName& name, bool waits, const std::shared_ptr<CallBytes>& of_call,
                        bool is_answer = false);
  void read_argument(const ObjectName& name, const FetchPtr& argument, const FetchPtr& shared);
  bool is_wanted_still(const FetchPtr& argument);
  void locate(const ObjectName& name, FetchPtr fetch, int tries, const ObjectName& unread = {},
              const std::string& why = {});
  void located(const ObjectName& name, const FetchPtr& fetch, int tries, const Outcome& outcome);
  void locate_after(Duration pause, const ObjectName& name, const FetchPtr& fetch, int tries);
  bool waits_for_room(const Fetch& fetch) const;
  void open_copy(const ObjectName& name, const FetchPtr& fetch, const Location& at, int tries);
  void make_copy(const ObjectName& name, const FetchPtr& fetch, const Location& at);
  /// Whose argument it is; null: nobody's.
  static std::shared_ptr<CallBytes> call_of(const Fetch& fetch);
  /// The first of copies_.
  void next_copy();
  void copy_into(const ObjectName& name, const FetchPtr& fetch, std::uint64_t bytes, Result<Lent> lent);
  /// What the plan has to be told, and then what it says.
  void pull(const PullPtr& pull, const std::function<void(CopyPlan&, CopyPlan::Actions&)>& change);
  void act(const PullPtr& pull, const CopyPlan::AskPart& ask);
  void act(const PullPtr& pull, const CopyPlan::AskAddress& ask);
  void act(const PullPtr& pull, const CopyPlan::FetchDirect& fetch);
  void act(const PullPtr& pull, const CopyPlan::End& end);
  void pulled(const PullPtr& pull, const Part& part, const Outcome& outcome);
  /// What it was told to make is here, or fails.
  void end_copy(const ObjectName& name, const FetchPtr& fetch, Result<BytesPtr> mapped, bool in_store);
  // Direct connections (direct.cpp).
  DirectOwners::Choice choose_way(const ObjectName& name, std::uint64_t bytes) const;
  void pulled_direct(const PullPtr& pull, const Result<void>& result);
  DirectAddress direct_address();
  BytesPtr in_memory(std::uint64_t number) const;
  void done(const ObjectName& name, const FetchPtr& fetch, Result<BytesPtr> bytes);
  void forget(const ObjectName& name);
  // Computed ones.
  std::shared_ptr<const Hooks> hooks() const;
  using Again = std::function<void(Objects& self, const std::string& why_lost, int broken)>;
  void lose(std::uint64_t number, const ObjectName& place, const std::string& why);
  void lose_those_at(const OwnerTable::IsDown& is_down, const std::string& why);
  void place_of(std::uint64_t number, bool waits, OnPlace then);
  void locate_computed(const LocateAsk& ask, Responder responder);
  void read_at(const ObjectName& name, const ObjectName& place, const FetchPtr& fetch, int broken,
               Again again);
  FetchPtr value_here(const ObjectName& name) const;
  void follow_own(std::uint64_t number, const FetchPtr& fetch, int broken);
  void follow(const ObjectName& name, const FetchPtr& fetch, const ObjectName& place, int broken);
  LookAgain after_broken(const Outcome& outcome, int times) const;
  bool locates_again(const ObjectName& name, const FetchPtr& fetch, int broken, const Outcome& outcome);
  void keep_copy(const ObjectName& of, OnPlace then);
  void own_copy(FetchPtr there, std::shared_ptr<const void> held, OnPlace then);
  CallState::Load load_of(HandlePtr answer);
  HandlePtr offered_copy(const ObjectName& of, ProcessAddress to) const;
  Result<HandlePtr> copy_small(const Fetch& from);
  Result<HandlePtr> write_copy(std::uint64_t number, const Fetch& from, Result<Lent> lent);
  void keep_for(const ObjectName& of, ProcessAddress from, Responder responder);
  void withdraw(const OwnerTable::IsDown& is_down);
  void when_held(ProcessAddress from, std::uint64_t call, Responder responder);
  bool may_offer(ProcessAddress to) const;  ///< REQUIRES: the lock
  void owners_down(const OwnerTable::IsDown& is_down, const std::string& reason);

  std::shared_ptr<CallState> ask(ProcessAddress to, std::uint64_t operation, wire::Bytes body);
  /// Until it has arrived, or the other process is gone.
  void tell_surely(ProcessAddress to, std::uint64_t operation, wire::Bytes body);

  ProcessGate& gate_;
  Waiter* const waiter_;
  const AskRegion ask_region_;
  const ObjectLimits limits_;

  mutable std::mutex mutex_;  ///< guards all below
  bool closed_ = false;
  std::string why_closed_;
  bool is_for_good_ = false;  ///< there will be no other node
  std::uint64_t last_number_ = 0;
  std::uint64_t last_ticket_ = 0;
  OwnerTable owned_;
  std::unordered_map<std::uint64_t, Own> values_;
  SegmentPool pool_;
  std::uint64_t kept_limit_ = 0;
  bool sweeps_ = false;  ///< a sweep of the pool is to come
  SpillTable spills_;
  std::unordered_map<std::uint64_t, Responder> questions_;  ///< by ticket
  OfferTable offers_;
  std::uint64_t argument_bytes_ = 0;  ///< of calls that have no answer yet
  std::uint64_t arguments_gone_ = 0;  ///< so far
  Condition argument_gone_;           ///< one more, or this is closed
  Condition taken_;                   ///< an answer that was offered has gone, or this is closed
  struct Computed {
    FetchPtr known;          ///< ready: where the value is, or why there is none
    HandlePtr at;            ///< the object that has it
    bool is_wanted = false;  ///< somebody waits for `known`
  };
  std::unordered_map<std::uint64_t, Computed> computed_;
  std::unordered_map<std::uint64_t, ErrorInfo> at_end_;  ///< once it is closed: why those have no value
  std::shared_ptr<const Hooks> hooks_;
  std::unordered_map<ObjectName, ObjectName> places_;  ///< of others' computed ones, as they were said last
  BorrowTable borrowed_;
  std::unordered_map<ObjectName, std::vector<std::shared_ptr<CallState>>> unsettled_;
  /// Resolved once the owners know of what an answer referred to. By who answered, and which call.
  std::map<std::pair<ProcessAddress, std::uint64_t>, std::shared_ptr<CallState>> received_;
  std::unordered_map<ObjectName, FetchPtr> here_;  ///< of others, until their owners free them
  std::set<FetchPtr> apart_;     ///< arguments whose owner no link reached, until asked again
  std::set<ObjectName> let_go_;  ///< of those: copies that the node keeps for other readers
  CopyQueue copies_;
  /// Copies that this process was told to make, until they end: by which question of its own.
  std::unordered_map<ObjectName, std::uint64_t> making_;
  std::map<ProcessAddress, bool> checked_;  ///< processes that are being asked; whether they live, too
  BoundedMemory<ProcessAddress, std::string> dead_;
  BoundedMemory<NodeId, std::string> dead_nodes_;
  bool stopped_ = false;
  std::unique_ptr<WorkThread> disk_;                         ///< started when it is needed
  std::set<std::shared_ptr<OnRegion>> waiting_for_readers_;  ///< in a full store
  std::deque<OnDisk> to_do_;                         ///< in that thread, which drops what it has not begun
  std::set<std::shared_ptr<CallState>> borrowings_;  ///< threads wait for them (lend)
  DirectOwners direct_owners_;
  std::size_t direct_copies_ = 0;
  std::unique_ptr<DirectConnections> direct_;

  SpillFiles files_;  ///< of the disk's thread alone
};

}  // namespace troupe::objects
