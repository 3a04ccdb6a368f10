/// Compiled with -O1 (CMakeLists.txt), where GCC 12 took a variable whose address only a span had for one
/// that a collective cannot change: the caller went on with the old value.

#include <catch2/catch.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/collectives/ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

TEST_CASE("what a collective leaves in a local variable is what the caller reads") {
  const auto said = run_forked(options_of(2), [](const std::shared_ptr<ProcessGroup>& group) {
    int sent = group->rank() == 0 ? 9 : 99, sum = group->rank() + 1, mine = group->rank() + 3, largest = 0;
    group->broadcast(std::span(&sent, 1), 0)->wait();
    group->all_reduce(std::span(&sum, 1))->wait();
    std::vector<int> both(2);
    group->all_gather(std::span(&mine, 1), both)->wait();
    group->reduce_scatter(both, std::span(&largest, 1), ReduceOp::kMax)->wait();
    return std::to_string(sent) + " " + std::to_string(sum) + " " + std::to_string(both[1]) + " " +
           std::to_string(largest);
  });
  CHECK(said == std::vector<std::string>{"9 3 4 3", "9 3 4 4"});
}
