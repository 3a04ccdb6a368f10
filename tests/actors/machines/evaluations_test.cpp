// What evaluations come to, and what follows.
#include "actors/train/driver/evaluations.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;
using Catch::Contains;

namespace {

/// Epochs of 4 steps; a test set of two pieces and a validation set of one.
DriverConfig with_sets() {
  DriverConfig config = config_of(1);
  config.test_pieces = 2;
  config.validation_pieces = 1;
  return config;
}

PieceReport piece(std::int64_t number, double loss) {
  return {number, 100 + static_cast<std::uint64_t>(number), 10, {{"loss", loss, 1}}};
}

/// The state of so many steps comes to `loss` on the test set.
std::optional<std::string> evaluate(Evaluations& evaluations, std::int64_t step, double loss,
                                    bool stops = false) {
  evaluations.begin(step);
  evaluations.add({piece(0, loss), piece(1, loss), piece(2, 0.25)});
  REQUIRE_FALSE(evaluations.sum_pieces());
  evaluations.finish({{"loss", 2, 1}});
  return evaluations.watch(stops);
}

}  // namespace

TEST_CASE("pieces add up in the order of their sets, whoever told them first") {
  Evaluations evaluations(shared(with_sets()));
  evaluations.begin(4);
  CHECK(evaluations.under_way().epoch == 0);
  CHECK(evaluations.under_way().ended);
  evaluations.add({piece(2, 0.25), piece(1, 3)});
  evaluations.add({piece(0, 1), piece(1, 99)});
  REQUIRE_FALSE(evaluations.sum_pieces());
  const EpochDone done = evaluations.finish({{"loss", 2, 1}});
  CHECK(done.count == 30);
  CHECK(done.metrics ==
        std::map<std::string, double>{{"train/loss", 2}, {"test/loss", 2}, {"validation/loss", 0.25}});
  evaluations.begin(6);
  CHECK(evaluations.under_way().epoch == 1);
  CHECK_FALSE(evaluations.under_way().ended);
  CHECK(evaluations.under_way().count == 0);
}

TEST_CASE("a piece that is missing, or of other samples, fails the job and is named") {
  DriverConfig config = with_sets();
  config.expected_piece = [](std::int64_t p) { return p == 1 ? 7U : 100 + static_cast<std::uint64_t>(p); };
  Evaluations evaluations(shared(config));
  evaluations.begin(4);
  evaluations.add({piece(0, 1), piece(1, 1)});
  CHECK(evaluations.sum_pieces()->reason ==
        "piece 1 of the test set was evaluated with other samples than it has");
  Evaluations lacking(shared(with_sets()));
  lacking.begin(4);
  lacking.add({piece(0, 1), piece(1, 1)});
  CHECK(lacking.sum_pieces()->reason == "piece 0 of the validation set was not evaluated");
}

TEST_CASE("the best state is known, and patience ends with the words for it, once") {
  DriverConfig config = with_sets();
  config.keep_best = "test/loss";
  config.stop_early = {.metric = "test/loss", .patience = 2, .min_delta = 0.5};
  Evaluations evaluations(shared(config));
  CHECK_FALSE(evaluate(evaluations, 4, 1.0));
  CHECK(evaluations.is_best(4));
  CHECK_FALSE(evaluate(evaluations, 8, 0.9));  // better, but not by 0.5
  CHECK(evaluations.is_best(8));
  CHECK_FALSE(evaluations.is_best(4));
  const auto why = evaluate(evaluations, 12, 0.95);
  REQUIRE(why);
  CHECK(*why ==
        "stopping early: test/loss has not become better by more than 0.500000 for 2 epochs, the best was "
        "1.000000 after epoch 1");
  CHECK_FALSE(evaluate(evaluations, 16, 0.95, true));
}

TEST_CASE("a metric that the job does not have is told with those that it has") {
  DriverConfig config = with_sets();
  config.keep_best = "test/recall";
  Evaluations evaluations(shared(config));
  CHECK_FALSE(evaluate(evaluations, 4, 1.0));
  REQUIRE(evaluations.lacks_metric());
  CHECK(evaluations.why_it_lacks({}).reason ==
        "there is no metric 'test/recall': the job has test/loss, train/loss, validation/loss");
  CHECK_THAT(evaluations.why_it_lacks({}).todo, !Contains("goes on"));
  CHECK_THAT(evaluations.why_it_lacks(4).todo, Contains("a run with resume goes on at step 4"));
}

TEST_CASE("the history is that of the run before, and what a state came to is told where schedules look") {
  DriverConfig config = with_sets();
  config.tells_metrics = true;
  config.keep_best = "test/loss";
  Evaluations before(shared(config));
  evaluate(before, 4, 1.0);
  const std::string history = before.history_with(4, {{"loss", 3, 1}});
  CHECK(decode_history(history)->epoch_figures == std::vector<Figure>{{"loss", 3, 1}});
  config.resume = {{"old-4", 4, "h", history}};
  Evaluations resumed(shared(config));
  CHECK(resumed.is_best(4));
  CHECK(resumed.told(4).at("test/loss") == 1.0);
  CHECK(resumed.told(5).empty());
  CHECK(resumed.history_with(4, {}) == before.history_with(4, {}));
  evaluate(resumed, 8, 0.5);
  CHECK(resumed.told_from(4).size() == 2);
  CHECK(resumed.history_with(7, {}) == before.history_with(4, {}));  // though it was further
  resumed.forget_before(8);
  CHECK(resumed.told_from(0).size() == 1);
  resumed.take_up(history, 3);  // of another state than this one
  CHECK(resumed.told(3).empty());
}
