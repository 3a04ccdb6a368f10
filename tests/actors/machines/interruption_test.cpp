// From a fault to the first step after it, for the log.
#include "actors/train/driver/interruption.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

constexpr Generation kResumedIn{1, 2};

std::string cause_of(Interruption& of) {
  const auto told = of.end(kResumedIn, 1, seconds(9));
  return told ? told->cause : "nothing";
}

}  // namespace

TEST_CASE("what interrupted the job is told once, with when it was seen, left and over") {
  Interruption interruption;
  CHECK_FALSE(interruption.is_on());
  CHECK_FALSE(interruption.end(kResumedIn, 2, seconds(1)));
  interruption.add("trainer 2 died: signal 9", true, seconds(1));
  CHECK(interruption.is_on());
  CHECK(interruption.detected() == seconds(1));
  interruption.member_left(seconds(2));
  interruption.member_left(seconds(3));
  const auto told = interruption.end(kResumedIn, 2, seconds(4));
  REQUIRE(told);
  CHECK(told->generation == kResumedIn);
  CHECK(told->cause == "trainer 2 died: signal 9");
  CHECK(told->fault);
  CHECK(told->detected == seconds(1));
  CHECK(told->left == seconds(3));
  CHECK(told->training_again == seconds(4));
  CHECK(told->trainers == 2);
  CHECK_FALSE(interruption.end(kResumedIn, 2, seconds(5)));
}

TEST_CASE("who left nobody's collective is told as left when it was seen") {
  Interruption interruption;
  interruption.add("trainer 3 joined", false, seconds(1));
  const auto told = interruption.end(kResumedIn, 2, seconds(2));
  REQUIRE(told);
  CHECK(told->left == seconds(1));
  CHECK_FALSE(told->fault);
}

TEST_CASE("a fault during a recovery is of the same interruption, which is then one") {
  Interruption interruption;
  interruption.add("trainer 3 joined", false, seconds(1));
  interruption.add("trainer 2 died", true, seconds(2));
  interruption.add("trainer 4 joined", false, seconds(3));
  const auto told = interruption.end(kResumedIn, 2, seconds(4));
  REQUIRE(told);
  CHECK(told->cause == "trainer 3 joined; trainer 2 died; trainer 4 joined");
  CHECK(told->fault);
  CHECK(told->detected == seconds(1));
}

TEST_CASE("a death that nobody ordered explains what the others noticed of it") {
  Interruption interruption;
  interruption.add("rank 0 lost its peer", true, seconds(1));
  interruption.member_died("trainer 2 died: signal 9", true);
  SECTION("in its place") {
    CHECK(cause_of(interruption) == "trainer 2 died: signal 9");
  }
  SECTION("and a second death stands beside it") {
    interruption.member_died("trainer 3 died: signal 9", true);
    CHECK(cause_of(interruption) == "trainer 2 died: signal 9; trainer 3 died: signal 9");
  }
}

// The generation opened because of that death, or it was ordered: the cause says so already.
TEST_CASE("a death that is known to be the cause changes no words, and is not displaced") {
  Interruption interruption;
  interruption.add("trainer 2 died: signal 9", true, seconds(1));
  interruption.member_died("trainer 2 died: signal 9", false);
  interruption.member_died("trainer 3 died: signal 11", true);
  CHECK(cause_of(interruption) == "trainer 2 died: signal 9; trainer 3 died: signal 11");
}

TEST_CASE("without an interruption a death and a leave are nothing") {
  Interruption interruption;
  interruption.member_died("trainer 2 died", true);
  interruption.member_left(seconds(1));
  CHECK_FALSE(interruption.is_on());
  CHECK(cause_of(interruption) == "nothing");
}
