// The driver's log of steps, and what trainers say of their bits.
#include "actors/train/driver/step_log.hpp"

#include <limits>

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;
using Catch::Contains;

namespace {

constexpr Generation kFirst{1, 1};

CommitStep commit(StepLog& log, std::int64_t step) {
  REQUIRE_FALSE(log.merge(Script::step(step)));
  auto outcome = log.commit(kFirst);
  REQUIRE(std::holds_alternative<StepLog::Committed>(outcome));
  return std::get<StepLog::Committed>(outcome).step;
}

std::string why_not(StepLog& log) {
  auto outcome = log.commit(kFirst);
  const auto* failure = std::get_if<JobFailed>(&outcome);
  return failure == nullptr ? "" : failure->reason;
}

}  // namespace

TEST_CASE(
    "a step commits with every leaf's slot, whoever reported it, and its figures add up in leaf order") {
  StepLog log(config_of(2));
  CHECK_FALSE(log.merge({0, {{1, 11, 3.0}}}));
  CHECK_FALSE(log.merge({0, {{0, 10, 1.0}}, {{"learning_rate", 0.5}}}));
  const auto outcome = log.commit(kFirst);
  const auto& [step, furthest] = std::get<StepLog::Committed>(outcome);
  CHECK(furthest);
  CHECK(step.loss == 2.0);
  CHECK(step.entry.slots.size() == 2);
  CHECK(step.entry.generation == kFirst);
  CHECK(step.values.empty());  // the first report's, and all say the same
  CHECK(log.committed() == 1);
}

TEST_CASE("a step without a leaf's slot, or with two words on one, fails the job") {
  StepLog log(config_of(2));
  CHECK_FALSE(log.merge({0, {{0, 10, 1.0}}}));
  const auto disagree = log.merge({0, {{0, 99, 1.0}}});
  REQUIRE(disagree);
  CHECK(disagree->reason == "trainers disagree on the samples that logical rank 0 used in step 0");
  CHECK_THAT(why_not(log), Contains("each of the 2 logical ranks once"));
}

TEST_CASE("rewound steps commit again, and are not the furthest until they pass it") {
  StepLog log(config_of(2));
  for (std::int64_t step = 0; step < 3; ++step) commit(log, step);
  const RewindLedger rewind = log.rewind(1);
  CHECK(rewind.from == 3);
  CHECK(rewind.to == 1);
  CHECK(rewind.reason == "nobody is left who holds step 3: 2 steps run again from step 1");
  CHECK(log.committed() == 1);
  CHECK(log.furthest() == 3);
  for (std::int64_t step = 1; step < 4; ++step) {
    REQUIRE_FALSE(log.merge(Script::step(step)));
    const auto outcome = log.commit(kFirst);
    CHECK(std::get<StepLog::Committed>(outcome).furthest == (step == 3));
  }
}

TEST_CASE("a run that falls back behind what it took up has begun there") {
  DriverConfig config = config_of(2);
  config.resume = {{"old-4", 4, "h"}, {"old-6", 6, "h"}};
  StepLog log(config);
  CHECK(log.begun_at() == 6);
  CHECK(log.rewind(4).reason == "2 steps run again from step 4");
  CHECK(log.begun_at() == 4);
  CHECK(log.furthest() == 4);
}

TEST_CASE("slots of a step that nobody applied are dropped: it may come again with others") {
  StepLog log(config_of(2));
  REQUIRE_FALSE(log.merge({0, {{0, 99, 1.0}}}));
  log.drop_pending(0);
  CHECK(commit(log, 0).entry.slots.front().indices_hash == 10);
}

TEST_CASE("an epoch's figures are also of the steps that an earlier run committed in it") {
  DriverConfig config = config_of(2);
  History history;
  history.epoch_figures = {{"loss", 10, 2}};
  config.resume = {{"old-5", 5, "h", encode_history(history)}};
  StepLog log(config);
  commit(log, 5);
  CHECK(log.figures_under_way() == std::vector<Figure>{{"loss", 14, 4}});
  CHECK(log.epoch_figures(2).empty());
  for (const std::int64_t step : {6, 7}) commit(log, step);
  CHECK(log.figures_under_way().empty());  // an epoch's end
  commit(log, 8);
  CHECK(log.figures_under_way() == std::vector<Figure>{{"loss", 4, 2}});
}

TEST_CASE("a step whose loss is no number is left out of the figures, where the job says so") {
  DriverConfig config = config_of(2);
  config.not_finite = NotFinite::kSkip;
  StepLog log(config);
  REQUIRE_FALSE(log.merge({0, {{0, 10, std::numeric_limits<double>::quiet_NaN()}, {1, 11, 1.0}}}));
  REQUIRE(std::holds_alternative<StepLog::Committed>(log.commit(kFirst)));
  commit(log, 1);
  CHECK(log.epoch_figures(0) == std::vector<Figure>{{"loss", 4, 2}});
}
