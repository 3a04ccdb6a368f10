/// What a process owns: which of its objects live, who holds a reference, and which nodes have a copy. Pure:
/// what happens comes in by a method, what is to be done about it goes out as actions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/wire/address.hpp"

namespace troupe::objects {

/// Where a process finds an object.
enum class Where : std::uint8_t {
  kInline,     ///< its bytes are in the answer
  kHere,       ///< in the shared memory of its node
  kFetch,      ///< nowhere on its node: it makes the copy there, and says by `copied` how that went
  kGone,       ///< nowhere
  kElsewhere,  ///< it is what another object is
};
constexpr Where troupe_last(Where) {
  return Where::kElsewhere;
}

/// Not thread-safe.
///
/// An object lives while its owner holds a reference to it or a borrower does. Borrowers are a set of
/// processes: to add one twice is to add it once. Of one object, a node has at most one copy, made by one
/// process; others of the node wait until that is there.
class OwnerTable {
 public:
  /// Answers the question `ticket`.
  struct Answer {
    std::uint64_t ticket = 0;
    Where where = Where::kGone;
    std::uint64_t number = 0;
    bool in_segment = false;  ///< kHere is the owner's own memory, and no copy
  };
  /// The link on which the question `ticket` came has broken: whoever asked is to ask again. Or it is gone.
  struct Broken {
    std::uint64_t ticket = 0;
  };
  /// Ask that process which of makes() it makes: what it does not has failed. `unheard`: also whether it
  /// lives, since its death may not have been told.
  struct Check {
    ProcessAddress process;
    bool unheard = false;
  };
  /// Nobody holds a reference any more: drop the object's bytes, and tell who may have a copy.
  struct Free {
    std::uint64_t number = 0;
    bool shared = false;
    std::set<ProcessAddress> readers;
  };
  using Action = std::variant<Answer, Broken, Check, Free>;
  using Actions = std::vector<Action>;
  using IsDown = std::function<bool(ProcessAddress)>;

  explicit OwnerTable(NodeId home) : home_(home) {}

  /// A new object, held once by its owner. `shared`: its bytes are in the shared memory of its owner's node.
  /// `large`: they are in its owner's own memory, and no answer can hold them: its own node has a copy, too.
  void add(std::uint64_t number, std::uint64_t bytes, bool shared, bool large = false);
  /// The owner's own references. REQUIRES of drop: held.
  void hold(std::uint64_t number);
  void drop(std::uint64_t number, Actions& out);

  /// `from` asks where the object is. `again`: it was sent to its node's shared memory, and that was not
  /// there.
  void locate(std::uint64_t number, ProcessAddress from, bool again, std::uint64_t ticket, Actions& out);
  /// A copy that a process makes, and its question that was answered so: what it says of an earlier one comes
  /// late.
  struct Making {
    std::uint64_t number = 0;
    std::uint64_t ticket = 0;
    bool operator==(const Making&) const = default;
  };
  /// `from` has made its node's copy, or failed to, or makes none.
  void copied(const Making& making, ProcessAddress from, bool ok, Actions& out);

  /// Nobody can tell what was under way: questions that wait have no asker any more, a maker may not know
  /// that it is one, and the deaths of that node's processes were not told.
  void link_lost(NodeId node, Actions& out);
  /// The copies that it makes, as far as is known.
  std::vector<Making> makes(ProcessAddress process) const;

  /// False: the object is gone.
  bool borrow(std::uint64_t number, ProcessAddress from);
  /// False: it did not hold one.
  bool give_back(std::uint64_t number, ProcessAddress from, Actions& out);

  /// Processes that ended make no copy any more.
  void readers_down(const IsDown& is_down, Actions& out);
  /// And hold no reference any more.
  void borrowers_down(const IsDown& is_down, Actions& out);

  bool contains(std::uint64_t number) const { return objects_.contains(number); }
  /// Whether it has to do with an object that lives.
  bool knows(ProcessAddress process) const { return known_.contains(process); }
  std::size_t size() const { return objects_.size(); }
  /// Of the objects that are not shared.
  std::uint64_t inline_bytes() const { return inline_bytes_; }

 private:
  struct Waiting {
    ProcessAddress from;
    std::uint64_t ticket = 0;
  };
  /// Invariant: it is being made by `maker`, or is there and has holders.
  struct Copy {
    bool there = false;
    ProcessAddress maker;
    std::uint64_t made_for = 0;  ///< the maker's question
    std::set<ProcessAddress> holders;
    std::deque<Waiting> waiting;
  };
  struct Object {
    std::uint64_t bytes = 0;
    bool shared = false;
    bool large = false;
    std::uint64_t held = 0;  ///< references of the owner's own
    std::set<ProcessAddress> borrowers;
    std::set<ProcessAddress> readers;
    std::map<NodeId, Copy> copies;  ///< on other nodes; of a large one on its own, too
  };
  using Objects = std::unordered_map<std::uint64_t, Object>;

  void free_if_unused(Objects::iterator at, Actions& out);
  static void wait(Copy& copy, const Waiting& asks, Actions& out);
  void make_next(std::uint64_t number, Object& object, NodeId node, Actions& out);
  std::vector<std::uint64_t> known_to(const IsDown& is_down) const;

  const NodeId home_;
  Objects objects_;
  std::uint64_t inline_bytes_ = 0;
  /// Which objects a process has to do with: so that a death costs what it touches.
  std::map<ProcessAddress, std::set<std::uint64_t>> known_;
};

}  // namespace troupe::objects
