// A job's checkpoints as its driver knows them.
#include "actors/train/driver/checkpoint_list.hpp"

#include <catch2/catch.hpp>

using namespace troupe::train;

namespace {

CheckpointInfo at(std::int64_t step) {
  return {"ckpt-" + std::to_string(step), step, "h"};
}

}  // namespace

TEST_CASE("older checkpoints go when this run has written as many as are kept") {
  CheckpointList list({{"old-2", 2, "h"}, {"old-4", 4, "h"}}, 2);
  CHECK_FALSE(list.accept(at(6), false));
  CHECK(list.oldest().path == "old-2");
  CHECK(list.accept(at(8), true) == "ckpt-6");
  CHECK(list.oldest().path == "ckpt-6");
  CHECK(list.accept(at(10), false) == "ckpt-8");
  CHECK(list.newest_step() == 10);
  CHECK(list.best() == "ckpt-8");
}

TEST_CASE("who falls back takes the next older one, and what was dropped is told with its reasons") {
  CheckpointList list({{"old-2", 2, "h"}}, 1);
  list.accept(at(4), false);
  CHECK(list.oldest().path == "ckpt-4");
  list.accept(at(6), false);
  list.drop_newest("torn");
  CHECK(list.empty());
  CHECK(list.unusable() == "ckpt-6 (torn)");
  CHECK(list.newest_step() == 0);
  CHECK(list.saved_step() == kNoState);
}

TEST_CASE("one that could not be read does not count as written") {
  CheckpointList list({{"old-2", 2, "h"}, {"old-4", 4, "h"}}, 2);
  list.accept(at(6), false);
  list.drop_newest("torn");
  list.drop_newest("torn");
  CHECK(list.unusable() == "ckpt-6 (torn), old-4 (torn)");
  CHECK_FALSE(list.accept(at(8), false));
  CHECK(list.oldest().path == "old-2");
}

TEST_CASE("a snapshot is no file: neither saved nor the best") {
  CheckpointList list({at(2), {"memory", 4, "h", {}, true}}, 2);
  CHECK(list.newest_step() == 4);
  CHECK(list.saved_step() == 2);
  list.set_best(4);
  CHECK(list.best().empty());
  list.set_best(2);
  CHECK(list.best() == "ckpt-2");
}

TEST_CASE("what a generation loaded is told once, when it runs") {
  CheckpointList list({at(2)}, 2);
  CHECK_FALSE(list.take_loaded());
  list.load(true);
  CHECK(list.take_loaded() == at(2));
  CHECK_FALSE(list.take_loaded());
  list.load(true);
  list.load(false);
  CHECK_FALSE(list.take_loaded());
}
