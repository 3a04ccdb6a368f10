// Who owns, borrows and copies which object, without a process.
#include <catch2/catch.hpp>
#include <deque>
#include <optional>

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
  o.table.copied(1, kFar, true, o.out);
  CHECK(o.answers().at(3) == Where::kHere);
  o.table.copied(1, kReader, true, o.out);
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
    o.table.copied(1, kFar, true, o.out);
    CHECK(o.answers().at(2) == Where::kHere);
    // The memory goes with its last holder: who finds it gone makes it again.
    o.table.readers_down(is(kFar), o.out);
    o.table.locate(1, kFarToo, true, 3, o.out);
    CHECK(o.answers().at(3) == Where::kFetch);
  }
  SECTION("which fails") {
    o.table.copied(1, kFar, false, o.out);
    CHECK(o.answers().at(2) == Where::kFetch);
  }
  SECTION("which dies") {
    o.table.readers_down(is(kFar), o.out);
    CHECK(o.answers().at(2) == Where::kFetch);
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
