// What waits in a process that has objects: copies of arguments for memory, offers for those that take them.
#include <catch2/catch.hpp>

#include "runtime/objects/copy_queue.hpp"
#include "runtime/objects/objects.hpp"
#include "runtime/objects/offer_table.hpp"

using namespace troupe;
using namespace troupe::objects;
using namespace std::chrono_literals;

namespace {

constexpr ProcessAddress kTaker{{1}, {2}};
constexpr ProcessAddress kBystander{{1}, {3}};

CopyQueue::Copy copy_of(std::uint64_t number, std::uint64_t bytes,
                        const std::shared_ptr<CallBytes>& of_call) {
  return {{kTaker, number}, nullptr, bytes, of_call};
}
HandlePtr handle_of(std::uint64_t number) {
  return std::make_shared<const Handle>(std::weak_ptr<Objects>(), ObjectName{kTaker, number});
}

}  // namespace

TEST_CASE("Copies of arguments are asked for one at a time, in the order of their calls") {
  // Was: one that was added just after the last one ended was asked for twice, so the next one after it was
  // taken off the queue without memory, and its call never began.
  CopyQueue queue;
  const auto call = std::make_shared<CallBytes>();
  CHECK_FALSE(queue.first());
  CHECK(queue.add(copy_of(1, 10, call)));
  CHECK_FALSE(queue.add(copy_of(2, 20, std::make_shared<CallBytes>())));
  CHECK(queue.first()->name.number == 1);
  CHECK(queue.end_first());
  CHECK(queue.first()->name.number == 2);
  CHECK_FALSE(queue.end_first());
  CHECK_FALSE(queue.first());
  CHECK(queue.add(copy_of(3, 10, call)));
}

TEST_CASE("A copy waits a minute for room that others hold, and not at all for what its own call holds") {
  // Was: a call whose arguments were larger than its callee's store together failed after a minute.
  CopyQueue queue;
  const auto call = std::make_shared<CallBytes>(CallBytes{0, 1s});
  queue.add(copy_of(1, 600, call));
  CHECK_FALSE(queue.full(1000, 1s));
  CHECK_FALSE(queue.full(1000, 1s + CallBytes::kWaits - 1ms));
  const auto late = queue.full(1000, 1s + CallBytes::kWaits);
  REQUIRE(late);
  CHECK(late->code == ErrorCode::kLimit);
  CHECK(late->why.find("its call has waited for a minute, and") == 0);
  queue.end_first();
  queue.add(copy_of(2, 600, call));  // the first one is there
  const auto never = queue.full(1000, 1s);
  REQUIRE(never);
  CHECK(never->code == ErrorCode::kLimit);
  CHECK(never->why == "those of its call take 1200 bytes together, and the callee's node lends 1000");
}

// Was: of a node one process after another tried for a minute to make the copy, so a call behind the third of
// them waited for three minutes. The simulator found it (seed 100729).
TEST_CASE("A copy whose turn comes late has what is left of its call's minute") {
  CopyQueue queue;
  const auto call = std::make_shared<CallBytes>(CallBytes{0, 1s});
  queue.add(copy_of(1, 600, std::make_shared<CallBytes>(CallBytes{0, 50s})));
  queue.add(copy_of(2, 600, call));
  CHECK_FALSE(queue.full(1000, 62s));  // it came later than the one behind it
  queue.end_first();
  CHECK_FALSE(queue.full(1000, 60s));
  CHECK(queue.full(1000, 61s));
}

// Was: the time in which no link reached the argument's owner was part of its minute, so one whose owner came
// back late had none left, and failed at the first look at a full store.
TEST_CASE("A call whose argument no link reached waits for room from then on, a minute later at the latest") {
  CopyQueue queue;
  const auto call = std::make_shared<CallBytes>(CallBytes{0, 1s});
  call->is_apart_until(31s);
  call->is_apart_until(21s);  // another argument of it
  queue.add(copy_of(1, 600, call));
  CHECK_FALSE(queue.full(1000, 90s));
  CHECK(queue.full(1000, 91s));
  call->is_apart_until(90s);
  CHECK_FALSE(queue.full(1000, 120s));
  CHECK(queue.full(1000, 121s));
}

TEST_CASE("What was offered is taken by the one that it was offered to, once") {
  OfferTable offers;
  offers.add(1, {kTaker, handle_of(1)});
  CHECK(offers.take(1, kBystander) == nullptr);
  CHECK(offers.take(2, kTaker) == nullptr);
  const auto taken = offers.take(1, kTaker);
  REQUIRE(taken != nullptr);
  CHECK(taken->name().number == 1);
  CHECK(offers.take(1, kTaker) == nullptr);
  CHECK(offers.size() == 0);
}

TEST_CASE("Offers to those that are gone are withdrawn, and who asks again for a copy gets the same one") {
  OfferTable offers;
  const ObjectName original{kBystander, 9};
  offers.add(1, {kTaker, handle_of(1)});
  offers.add(2, {kBystander, handle_of(2), original});
  CHECK(offers.copy_for(kTaker, original) == nullptr);
  CHECK(offers.copy_for(kBystander, original)->name().number == 2);
  const auto gone = offers.withdraw([](ProcessAddress p) { return p == kBystander; });
  REQUIRE(gone.size() == 1);
  CHECK(gone[0]->name().number == 2);
  CHECK(offers.copy_for(kBystander, original) == nullptr);
  CHECK(offers.clear().size() == 1);
  CHECK(offers.size() == 0);
}

TEST_CASE("An answer is waited for until nobody refers to it, and an offer of another kind is not") {
  OfferTable offers;
  offers.add(1, {kTaker, handle_of(1)});
  CHECK_FALSE(offers.has_answers());
  offers.add_answer(2, {kTaker, handle_of(2)});
  CHECK(offers.has_answers());
  offers.take(2, kTaker);  // who took it still copies it
  CHECK(offers.has_answers());
  offers.ended(2);
  CHECK_FALSE(offers.has_answers());
}
