// Whether trainers that must hold the same bits do.
#include "actors/train/driver/state_proofs.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

const std::vector<PartHash> kOne{{"w", {1, 1}}}, kOther{{"w", {2, 2}}};

}  // namespace

TEST_CASE("what trainers say after a step is compared with what the first one said") {
  StateProofs proofs;
  proofs.begin(true);
  CHECK_FALSE(proofs.differs(1, kA, kOne));
  CHECK_FALSE(proofs.differs(1, kB, kOne));
  const auto first = proofs.differs(1, kC, kOther);
  REQUIRE(first);
  CHECK(first->from == kA);
  CHECK(first->parts == kOne);
  CHECK_FALSE(proofs.differs(2, kC, kOther));  // of another step
  REQUIRE(proofs.differs(2, kB, kOne));
}

TEST_CASE("a committed step was compared, and is forgotten; a later one is not") {
  StateProofs proofs;
  proofs.begin(true);
  CHECK_FALSE(proofs.differs(1, kA, kOne));
  CHECK_FALSE(proofs.differs(2, kA, kOne));
  CHECK_FALSE(proofs.prove(1));
  CHECK_FALSE(proofs.differs(1, kB, kOther));
  CHECK(proofs.differs(2, kB, kOther));
}

TEST_CASE("pieces are told until the whole state has been, and that is said once") {
  StateProofs proofs;
  proofs.begin(true);
  CHECK(proofs.wants(7));
  proofs.told_whole(2);
  CHECK(proofs.wants(2));
  CHECK_FALSE(proofs.wants(3));
  CHECK_FALSE(proofs.prove(1));
  CHECK(proofs.step_by_step());
  CHECK(proofs.prove(2));
  CHECK_FALSE(proofs.step_by_step());
  CHECK_FALSE(proofs.wants(2));
  CHECK_FALSE(proofs.prove(3));
}

TEST_CASE("steps that are committed together prove the state, too") {
  StateProofs proofs;
  proofs.begin(true);
  proofs.told_whole(2);
  CHECK(proofs.prove(5));
}

TEST_CASE("a generation begins with nothing of the one before") {
  StateProofs proofs;
  proofs.begin(true);
  CHECK_FALSE(proofs.differs(3, kA, kOne));
  proofs.told_whole(3);
  proofs.begin(true);
  CHECK_FALSE(proofs.differs(3, kB, kOther));
  CHECK(proofs.wants(4));
  CHECK_FALSE(proofs.prove(3));  // its pieces are not through
  proofs.begin(false);
  CHECK_FALSE(proofs.wants(1));
}

// At a barrier they tell all of the state of as many steps as the last piece was of.
TEST_CASE("a barrier compares its own hashes, not the last step's pieces") {
  StateProofs proofs;
  proofs.begin(true);
  CHECK_FALSE(proofs.differs(4, kA, kOne));
  proofs.clear();
  CHECK_FALSE(proofs.differs(4, kA, kOther));
  CHECK(proofs.differs(4, kB, kOne));
  CHECK(proofs.step_by_step());
}
