/// The driver program: what train::Run does in production, without its screen.
#include <cstring>

#include "actors/train/driver/final_state.hpp"
#include "actors/train/driver/take_up.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "runtime/core/futex.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Driver::Driver(Cluster& in, Node& gateway, int number)
    : Hosted(in, gateway, {}, "driver " + std::to_string(number), gateway.host) {}

/// Its gateway is a member, and knows it as its driver.
void Driver::up() {
  main_ = Thread([this] {
    try {
      run_program();
    } catch (const Error& error) {
      if (alive && !lost_node_)
        cluster.world.kill(*this, ("its program ends: " + error.info().message()).c_str());
    }
  });
}

Driver::~Driver() = default;

void Driver::ended() {
  if (main_.joinable()) main_.join();
}

void Driver::run_program() {
  const auto job = runtime->begin_job("main");
  const bool answered = job->wait(seconds(80));
  if (!alive) return;
  if (!answered) return cluster.world.violation(name + " gets no answer about its job");
  job->outcome().value();
  const std::uint32_t incarnation = runtime->config().incarnation;
  if (incarnation <= cluster.last_incarnation) cluster.world.violation("an incarnation was given twice");
  cluster.last_incarnation = incarnation;
  if (cluster.scenario.callers > 0) session().spawn_async<CallerActor>({.here = true});
  if (cluster.scenario.putters > 0) session().spawn_async<PutterSpawner>({.here = true});
  if (cluster.scenario.detached) get_detached();
  const bool is_done = cluster.scenario.sweep ? SweepProgram(*this).run() : run_job();
  if (!is_done || !alive || !end_values() || (detached_ && !end_detached())) return;
  cluster.job_done = true;
  sleep_for(milliseconds(5));
  runtime->begin_end();
  sleep_for(milliseconds(20));
  cluster.world.kill(*this, "its program has ended");
}

/// Each program of the job has it in turn, or spawns it.
void Driver::get_detached() {
  const std::uint64_t number = cluster.load.new_echo();
  cluster.load.restarts(number, -1, false);
  cluster.load.detached(number);
  detached_ = session().spawn_async<EchoActor>(
      {.isolated = true, .name = "detached", .get_if_exists = true, .max_restarts = -1, .detached = true},
      number);
  detached_->then([this](const Result<ActorHandle<EchoActor>>& found) {
    if (found) cluster.load.found_detached(found->address().actor, *this);
  });
}

/// It answers, whatever died, and is killed: nothing may be left. False: the program has ended.
bool Driver::end_detached() {
  const std::uint64_t caller = 1'000'000 + cluster.last_incarnation;
  for (std::uint64_t sequence = 1; alive; ++sequence) {
    if (!detached_->wait(milliseconds(100))) continue;
    try {
      const auto actor = detached_->get();
      const auto answer = actor.call<&EchoActor::echo>(caller, sequence, std::string());
      while (!answer.wait(milliseconds(100))) {
        if (!alive) return false;
      }
      cluster.load.saved.delivered(answer.get().known);
      // Said once: it is repeated until the head has written it down, whatever dies but who says it.
      const auto gone = std::make_shared<bool>(false);
      session().monitor(actor, [gone](const std::string&) { *gone = true; });
      session().kill(actor);
      while (alive && !*gone) sleep_for(milliseconds(100));
      return alive;
    } catch (const Error&) {  // of a life, or of its last one
      sleep_for(milliseconds(100));
      if (alive) get_detached();
    }
  }
  return false;
}

/// Nothing of objects may be left when nobody refers to any. False: the program has ended.
bool Driver::end_values() {
  const MonotonicClock clock;
  const Instant until = clock.now() + cluster.scenario.lingers;
  while (alive && clock.now() < until) sleep_for(milliseconds(200));
  cluster.values.end();
  while (alive && !cluster.values.left().empty()) sleep_for(milliseconds(200));
  return alive;
}

/// False: it has not come to its end, or the program.
bool Driver::run_job() {
  train::RunOptions options = cluster.scenario.job;
  if (!options.settings.checkpoint_folder.empty()) {
    const auto files = cluster.floor.files({});
    checkpoint::CheckpointStore store(*files, {options.settings.checkpoint_folder});
    auto taken = train::take_up(store.list().value(), train::job_identity(options.settings));
    options.resume = std::move(taken.checkpoints);
    options.resumed_job = std::move(taken.job);
  }
  options.settings.run = "run-" + std::to_string(cluster.last_incarnation);
  const auto driver = session().spawn<train::TrainDriver>({.here = true}, options);
  const auto result = driver.call<&train::TrainDriver::run>();
  for (;;) {
    const auto asked = driver.call<&train::TrainDriver::next_events>();
    while (!asked.wait(milliseconds(100))) {
      if (!alive) return false;
    }
    if (asked.get().empty()) break;
  }
  try {
    cluster.job_hash = result.get().state_hash;
    check_state(driver, result.get().steps);
    if (!alive) return false;
  } catch (const TaskFailed& failed) {
    // Objects that are in use, or find no room on the disk, fill the store: the next program goes on.
    const bool has_no_room =
        failed.info().message().find(" in use is more than the node's limit of ") != std::string::npos;
    if (has_no_room && cluster.scenario.putters > 0) {
      cluster.world.kill(*this, "its job finds no room");
      return false;
    }
    cluster.world.violation("the job failed: " + failed.info().message());
    return false;
  }
  driver.tell<&train::TrainDriver::abandon>("its result was taken");
  return true;
}

/// What the program gets is the state that the job ended with, or nothing.
void Driver::check_state(const ActorHandle<train::TrainDriver>& driver, std::int64_t steps) {
  for (const bool weights_only : {true, false}) {
    try {
      const auto bytes =
          train::take_final_state(driver, weights_only, [this] { return alive && !lost_node_; });
      const auto file = checkpoint::read_safetensors("the final state", bytes).value();
      TrainState state;
      for (std::size_t i = 0; i < state.words.size(); ++i)
        std::memcpy(&state.words[i], file.find("word" + std::to_string(i))->bytes.data(),
                    sizeof state.words[i]);
      if (state != cluster.reference.at(static_cast<std::size_t>(steps)))
        cluster.world.violation("the state that came back is not that of step " + std::to_string(steps));
      ++cluster.states_taken;
    } catch (const Unavailable&) {  // its holders, or the program's node
    } catch (const ActorDied&) {
    } catch (const Timeout&) {
    }
    if (!alive) return;
  }
}

/// The program may go on for a while: its calls fail.
void Driver::told_to_leave() {
  if (!lost_node_) return cluster.world.kill(*this, "told to leave");
  if (std::exchange(leaving_, true)) return;
  leave_soon();
}

/// `looks`: how often it had work left.
void Driver::leave_soon(int looks) {
  constexpr int kMostLooks = 2000;  // some 50 s
  const Duration delay = cluster.world.between(milliseconds(1), milliseconds(50));
  const Instant due = cluster.world.now() + delay;
  cluster.world.after(*this, delay, "program ends", [this, due, looks] {
    if (cluster.world.now() > due) return leave_soon(looks);  // it was stopped, and has heard nothing
    if (runtime->turns().has_job() && looks < kMostLooks)
      return leave_soon(looks + 1);  // who was told has a turn
    if (runtime->turns().has_job())
      cluster.world.violation(name + " has lost its node, and its actors' turns do not end");
    if (runtime->calls_under_way() != 0 || !expected.empty())
      cluster.world.violation(name + " has lost its node, and waits for " +
                              (expected.empty() ? "a call" : expected.begin()->second.what));
    cluster.world.kill(*this, "its gateway is gone");
  });
}

}  // namespace troupe::sim
