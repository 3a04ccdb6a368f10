// How a trainer takes the state beside the steps.
#include "actors/train/driver/following.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

bool all_count(ActorId) {
  return true;
}

Following begun() {
  Following following;
  following.begin(kA, {1, 2}, {kB, kC}, seconds(10));
  return following;
}

}  // namespace

TEST_CASE("followers take from the source once it has shared, and join when all have caught up") {
  Following following = begun();
  CHECK_FALSE(following.takes_from_source(kB));
  CHECK_FALSE(following.share(kB, seconds(20)));
  CHECK(following.share(kA, seconds(20)));
  CHECK_FALSE(following.share(kA, seconds(20)));
  CHECK(following.takes_from_source(kB));
  CHECK_FALSE(following.takes_from_source(kA));
  CHECK_FALSE(following.all_caught_up(all_count));
  CHECK_FALSE(following.catch_up(kA));
  CHECK(following.catch_up(kC));
  CHECK(following.has_caught_up(kC));
  CHECK_FALSE(following.all_caught_up(all_count));
  CHECK(following.all_caught_up([](ActorId follower) { return follower != kB; }));  // it is dead
  CHECK(following.catch_up(kB));
  CHECK(following.all_caught_up(all_count));
  CHECK(following.first_caught_up() == kB);
  CHECK_FALSE(following.join_at());
  following.join_at(7);
  CHECK(following.join_at() == 7);
  following.begin_generation();
  CHECK_FALSE(following.is_on());
  CHECK_FALSE(following.join_at());
}

TEST_CASE("it ends with its source, or with its last follower") {
  Following source_gone = begun();
  CHECK(source_gone.drop(kA));
  CHECK_FALSE(source_gone.is_on());
  Following followers_gone = begun();
  CHECK_FALSE(followers_gone.drop(ActorId{7}));
  CHECK_FALSE(followers_gone.drop(kB));
  CHECK(followers_gone.drop(kC));
  CHECK_FALSE(followers_gone.drop(kC));
}

TEST_CASE("after two failures in a generation the others wait for copies") {
  Following following = begun();
  CHECK_FALSE(following.fail(ActorId{7}));
  CHECK(following.fail(kB));
  CHECK_FALSE(following.must_wait_for_copies());
  CHECK(following.fail(kA));
  CHECK(following.must_wait_for_copies());
  following.begin_generation();
  CHECK_FALSE(following.must_wait_for_copies());
}

TEST_CASE("it is overdue when no follower has come further, and then the others wait") {
  Following following = begun();
  following.note_progress(kA, seconds(90));  // its source does more than this
  CHECK(following.is_overdue(seconds(10)));
  following.note_progress(kB, seconds(15));
  CHECK_FALSE(following.is_overdue(seconds(14)));
  following.shift(seconds(5));
  CHECK_FALSE(following.is_overdue(seconds(19)));
  CHECK(following.is_overdue(seconds(20)));
  following.give_up();
  CHECK_FALSE(following.is_on());
  CHECK_FALSE(following.is_overdue(seconds(99)));
  CHECK(following.must_wait_for_copies());
}
