// When failures are enough.
#include "actors/train/driver/failure_count.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;
using Catch::Contains;

namespace {
std::string step_name(std::int64_t step) {
  return "at step " + std::to_string(step);
}
}  // namespace

TEST_CASE("the third failure at one step is enough, and a later step begins a new count") {
  FailureCount failures({}, 3);
  CHECK_FALSE(failures.at_step(4, "a", step_name));
  CHECK_FALSE(failures.at_step(4, "b", step_name));
  CHECK_FALSE(failures.at_step(5, "c", step_name));
  CHECK_FALSE(failures.at_step(2, "d", step_name));  // it fell back, and is no further
  const auto enough = failures.at_step(5, "e", step_name);
  REQUIRE(enough);
  CHECK(enough->reason == "3 failures at step 5, the last one: e");
  CHECK_THAT(enough->todo, Contains("whoever runs it"));
}

TEST_CASE("after a hang the deadline is named as the other thing to change") {
  FailureCount failures(RestartPolicy{.at_one_step = 1}, 3);
  CHECK_THAT(failures.at_step(0, "no progress for 120 s (deadlines.hang)", step_name)->todo,
             Contains("raise deadlines.hang"));
}

TEST_CASE("trainers of one generation have failed once") {
  FailureCount failures({}, 3);
  failures.begin_generation({1, 1});
  CHECK(failures.is_first_of_generation());
  CHECK_FALSE(failures.is_first_of_generation());
  failures.begin_generation({1, 2});
  CHECK(failures.is_first_of_generation());
}

TEST_CASE("after three failed generations the one that others waited for most goes; a commit ends the row") {
  FailureCount failures({}, 3);
  for (int n = 1; n <= 3; ++n) {
    failures.suspect(kB);
    if (n == 2) failures.suspect(kA);
    CHECK_FALSE(failures.generation_failed("timed out"));
    CHECK(failures.take_most_suspected() == (n == 3 ? std::optional(kB) : std::nullopt));
  }
  CHECK_FALSE(failures.take_most_suspected());  // suspicion begins anew
  failures.suspect(kA);
  failures.suspect(kB);
  failures.suspect(kB);
  failures.forget(kB);
  for (int n = 0; n < 3; ++n) CHECK_FALSE(failures.generation_failed("timed out"));
  CHECK(failures.take_most_suspected() == kA);
  for (int n = 6; n < RestartPolicy().budget; ++n) CHECK_FALSE(failures.generation_failed("timed out"));
  failures.committed();
  for (int n = 0; n < RestartPolicy().budget; ++n) CHECK_FALSE(failures.generation_failed("timed out"));
  CHECK(failures.generation_failed("timed out")->reason ==
        "17 generations failed in a row, the last one: timed out");
}
