// What is due at which step, and how far trainers may run.
#include "actors/train/driver/agenda.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

/// Epochs of 4 steps, two of them; three steps ahead.
Agenda agenda_of(const DriverConfig& config) {
  return {shared(config), {}};
}

/// "4 evaluate, 4 save": what is due in a run of all steps, each done at once.
std::string all_due(Agenda agenda, std::int64_t steps, std::vector<std::int64_t> best = {}) {
  std::string text;
  for (std::int64_t at = 0; at <= steps; ++at) {
    const bool is_best = std::find(best.begin(), best.end(), at) != best.end();
    for (;;) {
      const BarrierTask task = agenda.due(at, {is_best, false});
      if (task == BarrierTask::kNone) break;
      const char* name = task == BarrierTask::kEvaluate     ? "evaluate"
                         : task == BarrierTask::kCheckpoint ? "save"
                         : task == BarrierTask::kHold       ? "hold"
                                                            : "finish";
      text += (text.empty() ? "" : ", ") + std::to_string(at) + " " + name;
      if (task == BarrierTask::kFinish) return text;
      if (task == BarrierTask::kEvaluate) agenda.evaluated(at);
      if (task == BarrierTask::kCheckpoint) agenda.saved(at);
      if (task == BarrierTask::kHold) agenda.release();
    }
  }
  return text;
}

}  // namespace

TEST_CASE("at an epoch's end it is evaluated, then saved, then held; at the job's it ends") {
  DriverConfig config = config_of(1);
  config.test_pieces = 1;
  config.checkpoints = true;
  config.hold = true;
  CHECK(all_due(agenda_of(config), 8) == "4 evaluate, 4 save, 4 hold, 8 evaluate, 8 save, 8 finish");
  config.hold = false;
  config.evaluate_every = 3;
  config.checkpoint_every = 5;
  CHECK(all_due(agenda_of(config), 8, {6}) ==
        "3 evaluate, 4 evaluate, 5 save, 6 evaluate, 6 save, 8 evaluate, 8 save, 8 finish");
}

TEST_CASE("a job without anything to do with its states ends after its steps") {
  CHECK(all_due(agenda_of(config_of(1)), 8) == "8 finish");
  DriverConfig config = config_of(1);
  config.max_steps = 3;
  CHECK(all_due(agenda_of(config), 8) == "3 finish");
  config.evaluates = true;
  config.test_pieces = 1;
  CHECK(all_due(agenda_of(config), 8) == "0 evaluate, 0 finish");
}

TEST_CASE("a state that lacks a metric is saved before the job fails for it") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  config.checkpoint_every = 100;
  Agenda agenda = agenda_of(config);
  agenda.evaluated(4);
  CHECK(agenda.due(4, {}) == BarrierTask::kNone);
  CHECK(agenda.due(4, {.lacks_metric = true}) == BarrierTask::kCheckpoint);
}

TEST_CASE("nobody runs beyond a step at which something is due, and what was granted stays so") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  Agenda agenda = agenda_of(config);
  Instant now = seconds(1);
  agenda.begin_generation(0, now);
  agenda.grant(0, false, {});
  CHECK(agenda.limit() == 1);  // nobody knows how long a step takes
  agenda.note_commits(1, now += milliseconds(1));
  agenda.grant(1, false, {});
  CHECK(agenda.limit() == 4);
  agenda.grant(2, true, {});  // somebody follows: two at most, but these were granted
  CHECK(agenda.limit() == 4);
  agenda.grant_none(4);
  agenda.grant(4, true, {});
  CHECK(agenda.limit() == 6);
  agenda.grant(4, true, 5);
  CHECK(agenda.limit() == 6);
  agenda.note_commits(1, now += seconds(1));  // a long step is granted after the one before it
  agenda.grant(6, false, {});
  CHECK(agenda.limit() == 7);
}

TEST_CASE("who joins, who leaves and a stop are barriers; those behind are none") {
  Agenda agenda = agenda_of(config_of(1));
  agenda.begin_generation(1, seconds(1));
  CHECK(agenda.next_barrier(1, {}) == 8);
  CHECK(agenda.next_barrier(1, 3) == 3);
  CHECK(agenda.next_barrier(3, 3) == 8);
  agenda.leave(2);
  CHECK(agenda.leave_at() == 2);
  agenda.leave(5);
  CHECK(agenda.leave_at() == 2);
  CHECK(agenda.next_barrier(1, {}) == 2);
  agenda.cancel_leave();
  CHECK(agenda.next_barrier(1, {}) == 8);
}

TEST_CASE("a stop ends the job behind what may be under way; a second one is none, unless the first paused") {
  Agenda agenda = agenda_of(config_of(1));
  agenda.begin_generation(0, seconds(1));
  agenda.grant(0, false, {});
  CHECK(agenda.stop(0, true));
  CHECK(agenda.stop_at() == 1);
  CHECK(agenda.stop_holds_state());
  CHECK_FALSE(agenda.stop(0, true));
  CHECK(agenda.stop(0, false));
  CHECK_FALSE(agenda.stop_holds_state());
  CHECK_FALSE(agenda.stop(0, false));
  CHECK(agenda.due(0, {}) == BarrierTask::kNone);
  CHECK(agenda.due(1, {}) == BarrierTask::kFinish);
}

TEST_CASE("an early end is one where the job is not whole") {
  Agenda agenda = agenda_of(config_of(1));
  CHECK_FALSE(agenda.ended_early(4));
  agenda.end_early(4, true);
  CHECK(agenda.ended_early(4));
  CHECK(agenda.ends_not_finite());
  CHECK(agenda.due(4, {}) == BarrierTask::kFinish);
  CHECK_FALSE(agenda.is_whole(4));
  CHECK(agenda.is_whole(8));
}

TEST_CASE("what was rewound is saved again; what an earlier run told is evaluated again") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  config.test_pieces = 1;
  config.resume = {{"old-8", 8, "h"}};
  config.epochs = 3;
  Agenda agenda = agenda_of(config);
  CHECK(agenda.due(8, {}) == BarrierTask::kNone);
  agenda.rewind(4, false);
  CHECK(agenda.due(8, {}) == BarrierTask::kCheckpoint);
  agenda.rewind(4, true);
  CHECK(agenda.due(8, {}) == BarrierTask::kEvaluate);
}

TEST_CASE("a resumed job that had waited enough, or was through, ends without a step") {
  DriverConfig config = config_of(1);
  config.test_pieces = 1;
  config.stop_early = {.metric = "test/loss", .patience = 2};
  config.resume = {{"old-4", 4, "h"}};
  History waited{.metrics = {{"test/loss", 1}}};
  CHECK(Agenda(shared(config), waited).due(4, {}) == BarrierTask::kNone);
  waited.patience.since = 2;
  CHECK(Agenda(shared(config), waited).due(4, {}) == BarrierTask::kFinish);
  config.resume = {{"old-8", 8, "h"}};
  CHECK(Agenda(shared(config), {}).due(8, {}) == BarrierTask::kEvaluate);  // nobody knows what it came to
}
