// Who owns, borrows and copies which object, without a process.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "runtime/core/random.hpp"
#include "runtime/objects/borrow_table.hpp"
#include "runtime/objects/owner_table.hpp"

using namespace troupe;
using namespace troupe::objects;

namespace {

const ProcessAddress kReader{{1}, {5}};
const ProcessAddress kFar{{2}, {6}};
const ProcessAddress kFarToo{{2}, {7}};

struct Owner {
  OwnerTable table{{1}};
  OwnerTable::Actions out;

  /// The answers that have come, by ticket.
  std::map<std::uint64_t, Where> answers() {
    std::map<std::uint64_t, Where> found;
    for (const auto& action : out) {
      if (const auto* answer = std::get_if<OwnerTable::Answer>(&action))
        found[answer->ticket] = answer->where;
    }
    return found;
  }
  std::optional<OwnerTable::Free> freed() {
    for (const auto& action : out) {
      if (const auto* free = std::get_if<OwnerTable::Free>(&action)) return *free;
    }
    return std::nullopt;
  }
};

OwnerTable::IsDown is(ProcessAddress process) {
  return [process](ProcessAddress p) { return p == process; };
}

}  // namespace

TEST_CASE("A large object in its owner's own memory has a copy on each node, its owner's too") {
  Owner o;
  o.table.add(1, 100, false, true);
  CHECK(o.table.inline_bytes() == 100);
  o.table.locate(1, kReader, false, 1, o.out);
  CHECK(o.answers().at(1) == Where::kFetch);
  o.table.locate(1, kFar, false, 2, o.out);
  CHECK(o.answers().at(2) == Where::kFetch);
  o.table.locate(1, kFarToo, false, 3, o.out);
  CHECK_FALSE(o.answers().contains(3));  // until that copy is made
  o.table.copied({1, 2}, kFar, true, o.out);
  CHECK(o.answers().at(3) == Where::kHere);
  o.table.copied({1, 1}, kReader, true, o.out);
  o.table.locate(1, {{1}, {6}}, false, 4, o.out);
  CHECK(o.answers().at(4) == Where::kHere);
  o.table.drop(1, o.out);
  REQUIRE(o.freed());
  CHECK(o.freed()->readers.size() == 4);
  CHECK(o.table.inline_bytes() == 0);
}

TEST_CASE("An object lives while its owner or a borrower holds it, and its readers are told of its end") {
  Owner o;
  o.table.add(1, 100, true);
  o.table.locate(1, kReader, false, 1, o.out);
  CHECK(o.answers().at(1) == Where::kHere);
  REQUIRE(o.table.borrow(1, kFar));
  REQUIRE(o.table.borrow(1, kFar));  // said twice
  o.table.drop(1, o.out);
  CHECK_FALSE(o.freed());
  o.table.give_back(1, kFar, o.out);
  REQUIRE(o.freed());
  CHECK(o.freed()->readers == std::set<ProcessAddress>{kReader, kFar});
  CHECK_FALSE(o.table.borrow(1, kFar));
  o.table.locate(1, kFar, false, 2, o.out);
  CHECK(o.answers().at(2) == Where::kGone);
}

TEST_CASE("A node gets an object once: others of it wait for the first") {
  Owner o;
  o.table.add(1, 100, true);
  o.table.locate(1, kFar, false, 1, o.out);
  o.table.locate(1, kFarToo, false, 2, o.out);
  CHECK(o.answers() == std::map<std::uint64_t, Where>{{1, Where::kFetch}});
  SECTION("which makes it") {
    o.table.copied({1, 1}, kFar, true, o.out);
    CHECK(o.answers().at(2) == Where::kHere);
    // The memory goes with its last holder: who finds it gone makes it again.
    o.table.readers_down(is(kFar), o.out);
    o.table.locate(1, kFarToo, true, 3, o.out);
    CHECK(o.answers().at(3) == Where::kFetch);
  }
  SECTION("which fails") {
    o.table.copied({1, 1}, kFar, false, o.out);
    CHECK(o.answers().at(2) == Where::kFetch);
  }
  SECTION("which dies") {
    o.table.readers_down(is(kFar), o.out);
    CHECK(o.answers().at(2) == Where::kFetch);
  }
  // Was: its question stayed with the owner for good (seed 201 of the simulator).
  SECTION("and who waits dies: its question is over") {
    o.table.readers_down(is(kFarToo), o.out);
    const auto* over = std::get_if<OwnerTable::Broken>(&o.out.back());
    REQUIRE(over != nullptr);
    CHECK(over->ticket == 2);
  }
  SECTION("and is freed meanwhile") {
    o.table.drop(1, o.out);
    CHECK(o.answers().at(2) == Where::kGone);
  }
}

TEST_CASE("A dead borrower holds nothing") {
  Owner o;
  o.table.add(1, 100, false);
  CHECK(o.table.inline_bytes() == 100);
  o.table.borrow(1, kFar);
  o.table.drop(1, o.out);
  o.table.readers_down(is(kFar), o.out);
  CHECK_FALSE(o.freed());  // what it passed on may be on its way
  o.table.borrowers_down(is(kFar), o.out);
  CHECK(o.freed());
  CHECK(o.table.inline_bytes() == 0);
}

TEST_CASE("What the owner knows follows what is held, whatever is lost on the way") {
  const ObjectName name{{{1}, {5}}, 1};
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    SeededRandom random(seed);
    BorrowTable table;
    std::optional<BorrowTable::Action::Kind> under_way;
    bool owner_knows = false;
    std::uint64_t held = 0;
    bool waits = false;  // somebody, until it is settled
    BorrowTable::Actions out;
    const auto take = [&] {
      for (const auto& action : std::exchange(out, {})) {
        if (action.kind == BorrowTable::Action::kSettled) {
          waits = false;
          continue;
        }
        CHECK_FALSE(under_way);  // one at a time: they cannot overtake each other
        under_way = action.kind;
      }
    };
    const auto answer = [&](bool may_break) {
      if (!under_way) return;
      const auto kind = *std::exchange(under_way, std::nullopt);
      const bool broke = may_break && random.next() % 3 == 0;
      if (!broke || random.next() % 2 == 0)
        owner_knows = kind == BorrowTable::Action::kAdd;  // it may have arrived
      table.answered(name, broke ? BorrowTable::Said::kAgain : BorrowTable::Said::kDone, out);
      take();
    };
    for (int step = 0; step < 60; ++step) {
      switch (random.next() % 3) {
        case 0:
          table.hold(name, out), ++held;
          waits = waits || !table.is_settled(name);
          break;
        case 1:
          if (held > 0) table.drop(name, out), --held;
          break;
        default:
          answer(true);
      }
      take();
      if (held > 0 && table.is_settled(name)) CHECK(owner_knows);
    }
    while (under_way) answer(false);
    CHECK(owner_knows == (held > 0));
    CHECK_FALSE(waits);  // a call's answer, for one
    while (held > 0) table.drop(name, out), --held, take();
    while (under_way) answer(false);
    CHECK_FALSE(owner_knows);
    CHECK(table.size() == 0);
  }
}

namespace {

/// One object of process 0, to which these processes give each other references in answers: who answered
/// holds one until the caller says that the owner knows of it. Links break and processes die.
class Answering {
 public:
  explicit Answering(std::uint64_t seed) : random_(seed) {
    own_.add(kName.number, 1, false);
    peers_[0].held = 1;
  }

  /// Something happens. `is_calm`: no link breaks, nobody dies, and what is held is let go.
  void step(bool is_calm) {
    switch (random_.next() % (is_calm ? 5 : 7)) {
      case 0:
        if (!is_calm) answer(any_peer(), any_peer());
        break;
      case 1: {
        const int peer = any_peer();
        if (peers_[peer].alive && peers_[peer].held > 0) drop(peer);
        break;
      }
      case 2:
      case 3:
        deliver();
        break;
      case 4:
        ask_again(any_peer());
        break;
      case 5:
        if (random_.next() % 4 == 0) break_link(any_peer(), any_peer());
        break;
      case 6:
        if (random_.next() % 40 == 0) kill(1 + int(random_.next() % 3));
        break;
    }
    forget_dead();
    for (const auto& peer : peers_) {
      if (peer.alive && peer.held > 0) CHECK(own_.contains(kName.number));
    }
  }
  bool is_over() const {
    for (const auto& peer : peers_) {
      if (peer.alive && (peer.held > 0 || !peer.pins.empty() || peer.borrows.size() > 0)) return false;
    }
    return own_.size() == 0;
  }

 private:
  enum class Kind { kAdd, kGiveBack, kDone, kGone, kAnswer, kAskHeld, kIsHeld };
  struct Message {
    Kind kind;
    std::uint64_t call = 0;
  };
  struct Pin {
    int to = 0;
    bool broke = false;
  };
  struct Peer {
    bool alive = true;
    std::uint64_t held = 0;  ///< by the program
    BorrowTable borrows;
    std::optional<BorrowTable::Action::Kind> asked;  ///< of the owner
    bool broke = false;                              ///< that was
    std::map<std::uint64_t, Pin> pins;               ///< by call: of answers
    std::map<std::uint64_t, int> unknown;  ///< by call: answers whose reference the owner may not know
    std::set<std::uint64_t> asked_for;     ///< of these
  };
  static constexpr ObjectName kName{{{1}, {5}}, 1};
  static ProcessAddress address(int peer) { return {{1}, {5 + std::uint64_t(peer)}}; }
  int any_peer() { return int(random_.next() % 4); }
  void send(int from, int to, Message message) {
    if (peers_[from].alive && peers_[to].alive) links_[{from, to}].push_back(message);
  }

  void hold(int peer) {
    if (peer == 0) return own_.hold(kName.number);
    BorrowTable::Actions out;
    peers_[peer].borrows.hold(kName, out);
    carry_out(peer, out);
  }
  void let_go(int peer) {
    OwnerTable::Actions freed;
    if (peer == 0) return own_.drop(kName.number, freed);
    BorrowTable::Actions out;
    peers_[peer].borrows.drop(kName, out);
    carry_out(peer, out);
  }
  void drop(int peer) {
    --peers_[peer].held;
    let_go(peer);
  }
  void carry_out(int peer, const BorrowTable::Actions& actions) {
    for (const auto& action : actions) {
      if (action.kind == BorrowTable::Action::kSettled) {
        for (const std::uint64_t call : std::exchange(peers_[peer].asked_for, {})) {
          send(peer, peers_[peer].unknown.at(call), {Kind::kIsHeld, call});
        }
        peers_[peer].unknown.clear();
      } else {
        peers_[peer].asked = action.kind;
        send(peer, 0, {action.kind == BorrowTable::Action::kAdd ? Kind::kAdd : Kind::kGiveBack});
      }
    }
  }
  void said(int peer, BorrowTable::Said what) {
    BorrowTable::Actions out;
    peers_[peer].asked.reset();
    peers_[peer].broke = false;
    peers_[peer].borrows.answered(kName, what, out);
    carry_out(peer, out);
  }

  void answer(int from, int to) {
    if (from == to || !peers_[from].alive || !peers_[to].alive || peers_[from].held == 0) return;
    const std::uint64_t call = ++calls_;
    hold(from);
    peers_[from].pins[call] = {to};
    send(from, to, {Kind::kAnswer, call});
    send(from, to, {Kind::kAskHeld, call});
    if (random_.next() % 2 == 0) drop(from);
  }
  void deliver() {
    std::vector<std::pair<int, int>> full;
    for (const auto& [link, messages] : links_) {
      if (!messages.empty()) full.push_back(link);
    }
    if (full.empty()) return;
    const auto link = full[random_.next() % full.size()];
    const Message message = links_[link].front();
    links_[link].pop_front();
    const auto [from, to] = link;
    Peer& peer = peers_[to];
    OwnerTable::Actions freed;
    if (!peer.alive) return;
    switch (message.kind) {
      case Kind::kAdd:
        return send(0, from, {own_.borrow(kName.number, address(from)) ? Kind::kDone : Kind::kGone});
      case Kind::kGiveBack:
        own_.give_back(kName.number, address(from), freed);
        return send(0, from, {Kind::kDone});
      case Kind::kDone:
        return said(to, BorrowTable::Said::kDone);
      case Kind::kGone:
        return said(to, BorrowTable::Said::kLost);
      case Kind::kAnswer:
        ++peer.held;
        hold(to);
        if (to != 0 && !peer.borrows.is_settled(kName)) peer.unknown[message.call] = from;
        return;
      case Kind::kAskHeld:
        if (peer.unknown.contains(message.call)) {
          peer.asked_for.insert(message.call);
        } else {
          send(to, from, {Kind::kIsHeld, message.call});
        }
        return;
      case Kind::kIsHeld:
        if (peer.pins.erase(message.call) != 0) let_go(to);
        return;
    }
  }

  /// Whatever is under way on it is lost, and whoever waits for a word hears that.
  void break_link(int a, int b) {
    if (a == b) return;
    links_[{a, b}].clear();
    links_[{b, a}].clear();
    for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
      if (other == 0 && peers_[one].asked) peers_[one].broke = true;
      for (auto& [call, pin] : peers_[one].pins) pin.broke = pin.broke || pin.to == other;
    }
  }
  void ask_again(int peer) {
    if (!peers_[peer].alive) return;
    if (peers_[peer].broke) said(peer, BorrowTable::Said::kAgain);
    for (auto& [call, pin] : peers_[peer].pins) {
      if (std::exchange(pin.broke, false)) send(peer, pin.to, {Kind::kAskHeld, call});
    }
  }
  /// What it sent before arrives yet.
  void kill(int dead) {
    if (!std::exchange(peers_[dead].alive, false)) return;
    dead_.insert(dead);
    for (int i = 0; i < 4; ++i) links_[{i, dead}].clear();
  }
  /// The grace: whoever got a reference of it has told the owner by then. It may have died before the owner
  /// knew of it, so answers to it are held as long.
  void forget_dead() {
    if (dead_.empty()) return;
    for (const int dead : dead_) {
      for (int i = 0; i < 4; ++i) {
        if (!links_[{dead, i}].empty()) return;
      }
    }
    for (const auto& peer : peers_) {
      if (peer.alive && !peer.borrows.is_settled(kName)) return;
    }
    OwnerTable::Actions freed;
    own_.borrowers_down(
        [&](ProcessAddress p) {
          return std::any_of(dead_.begin(), dead_.end(), [p](int dead) { return address(dead) == p; });
        },
        freed);
    for (int i = 0; i < 4; ++i) {
      for (auto at = peers_[i].pins.begin(); at != peers_[i].pins.end();) {
        const bool was_for_it = dead_.contains(at->second.to);
        at = was_for_it ? peers_[i].pins.erase(at) : std::next(at);
        if (was_for_it && peers_[i].alive) let_go(i);
      }
    }
    dead_.clear();
  }

  SeededRandom random_;
  OwnerTable own_{{1}};
  std::array<Peer, 4> peers_;
  std::map<std::pair<int, int>, std::deque<Message>> links_;
  std::uint64_t calls_ = 0;
  std::set<int> dead_;
};

}  // namespace

TEST_CASE("A reference in an answer holds its object, whatever breaks or dies, and nothing is left") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    INFO("seed " << seed);
    Answering world(seed);
    for (int i = 0; i < 200; ++i) world.step(false);
    for (int i = 0; i < 5'000 && !world.is_over(); ++i) world.step(true);
    CHECK(world.is_over());
  }
}

TEST_CASE("A reference whose owner is gone is settled, and forgotten when it is dropped") {
  const ObjectName name{{{1}, {5}}, 1};
  BorrowTable table;
  BorrowTable::Actions out;
  table.hold(name, out);
  table.answered(name, BorrowTable::Said::kLost, out);
  CHECK(table.is_settled(name));
  table.drop(name, out);
  CHECK(table.size() == 0);
}
