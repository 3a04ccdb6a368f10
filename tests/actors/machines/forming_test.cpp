// Who of a generation that begins is in the group, holds the state, or cannot read the checkpoint.
#include "actors/train/driver/forming.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

TEST_CASE("a generation is complete when all are in the group and hold the state") {
  Forming forming;
  forming.begin({{kA, true}, {kB, false}});
  CHECK(forming.holds(kA));
  CHECK_FALSE(forming.holds(kB));
  forming.joined_group(kA);
  forming.joined_group(kB);
  CHECK_FALSE(forming.is_complete());
  forming.installed(kB);
  CHECK(forming.is_complete());
  CHECK_FALSE(forming.unread());
  SECTION("and the next one begins anew") {
    forming.begin({{kB, true}});
    CHECK_FALSE(forming.is_complete());
    CHECK_FALSE(forming.holds(kA));
    CHECK(forming.holds(kB));
  }
}

TEST_CASE("a member that holds the state and is not in the group is waited for") {
  Forming forming;
  forming.begin({{kA, true}, {kB, true}});
  forming.joined_group(kB);
  CHECK_FALSE(forming.is_complete());
  forming.joined_group(kA);
  CHECK(forming.is_complete());
}

TEST_CASE("a checkpoint counts as unread once everybody has tried") {
  Forming forming;
  forming.begin({{kA, false}, {kB, false}, {kC, false}});
  forming.cannot_read(kB, "trainer 2: no such file");
  forming.installed(kA);
  CHECK_FALSE(forming.unread());
  SECTION("and the last who could read it passes it on") {
    forming.installed(kC);
    const auto unread = forming.unread();
    REQUIRE(unread);
    CHECK(unread->reader == kC);
    CHECK(unread->reasons == "trainer 2: no such file");
  }
  SECTION("of those who could not, every reason is told") {
    forming.cannot_read(kC, "trainer 3: is damaged");
    const auto unread = forming.unread();
    REQUIRE(unread);
    CHECK(unread->reader == kA);
    CHECK(unread->reasons == "trainer 2: no such file; trainer 3: is damaged");
  }
}

TEST_CASE("a checkpoint that nobody can read has no reader") {
  Forming forming;
  forming.begin({{kA, false}, {kB, false}});
  forming.cannot_read(kA, "a");
  forming.cannot_read(kB, "b");
  const auto unread = forming.unread();
  REQUIRE(unread);
  CHECK_FALSE(unread->reader);
  CHECK(unread->reasons == "a; b");
}
