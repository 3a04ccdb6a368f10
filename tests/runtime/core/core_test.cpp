#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/result.hpp"

using namespace troupe;

TEST_CASE("an error's message has what, why and what to do") {
  const ErrorInfo info{ErrorCode::kTimeout, "no answer from actor 3", "1 s passed", "raise the timeout"};
  CHECK(info.message() == "no answer from actor 3: 1 s passed (raise the timeout)");
  CHECK_THROWS_AS(throw_error(info), Timeout);
  CHECK_THROWS_AS(Result<int>(info).value(), Timeout);
  CHECK(Result<int>(4).value() == 4);
}

TEST_CASE("generations are ordered by incarnation, then counter") {
  CHECK(Generation{1, 9} < Generation{2, 0});
  CHECK(Generation{2, 0} < Generation{2, 1});
}

TEST_CASE("a seed gives the same numbers, and another seed others") {
  SeededRandom a(7), b(7), c(8);
  const auto first = a.next();
  CHECK(first == b.next());
  CHECK(first != c.next());
  for (int i = 0; i < 1000; ++i) CHECK(a.below(3) < 3);
}

TEST_CASE("shared memory is seen by both mappings, and an unsealed segment is refused") {
  auto memory = SharedMemory::create("test", 5000, true).value();
  CHECK(memory.size() == 8192);
  auto copy = UniqueFd(::dup(memory.fd()));
  auto other = SharedMemory::map(std::move(copy)).value();
  memory.data()[4999] = std::byte{42};
  CHECK(other.data()[4999] == std::byte{42});

  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  UniqueFd reading(pipe_ends[0]), writing(pipe_ends[1]);
  CHECK_FALSE(SharedMemory::map(std::move(reading)).ok());
  CHECK_FALSE(SharedMemory::create("none", 0, false).ok());
}
