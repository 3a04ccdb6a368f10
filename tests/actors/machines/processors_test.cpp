#include "actors/train/driver/processors.hpp"

#include <catch2/catch.hpp>

namespace troupe::train {

// A loader that came up on another kind of node gave other bits from there on, and nobody knew.
TEST_CASE("a loader on another kind of processor is told once, with both kinds") {
  Processors processors;
  CHECK_FALSE(processors.compare("loader 0", "libtorch 2; cpu A; threads 1"));
  CHECK_FALSE(processors.compare("loader 1", "libtorch 2; cpu A; threads 1"));
  CHECK_FALSE(processors.compare("trainer 0", "libtorch 2; cpu A; threads 4; gpu G"));
  CHECK_FALSE(processors.compare("loader 2", ""));
  const auto told = processors.compare("loader 3", "libtorch 2; cpu B; threads 1");
  REQUIRE(told);
  CHECK_THAT(*told, Catch::StartsWith("loader 3 computes with 'libtorch 2; cpu B; ', and loader 0 with "
                                      "'libtorch 2; cpu A; '"));
  CHECK_FALSE(processors.compare("loader 4", "libtorch 2; cpu B; threads 1"));
}

}  // namespace troupe::train
