#include "actors/train/api/live_weights.hpp"

#include <utility>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "actors/train/trainer/state_stream.hpp"

namespace troupe::train {
namespace {

constexpr Duration kPieceIsThere = std::chrono::seconds(30);
constexpr int kMostCopies = 10;

wire::Bytes read_copy(const WeightCopy& copy, ProcessGate& process) {
  const ActorHandle<Trainer> trainer(&process, copy.at.trainer);
  const auto ask = [&](std::uint64_t offset) {
    return trainer.call<&Trainer::copied_weights>(copy.at.number, offset);
  };
  Future<SharedPiece> next = ask(0);
  StateFollower follower([&](std::uint64_t offset) {
    // The trainer reads the piece behind this one meanwhile.
    return std::exchange(next, ask(offset + kSharedPiece)).get(kPieceIsThere);
  });
  for (bool more = true; more;) {
    more = follower.pull();
    const auto state = follower.take_state();
    if (!state) continue;
    trainer.tell<&Trainer::drop_copy>(copy.at.number);
    return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(state->parts).value());
  }
  throw_error({ErrorCode::kCorrupt, "a state that arrives is not what was sent", "it ends early", ""});
}

}  // namespace

RunWeights copy_live_weights(const ActorHandle<TrainDriver>& driver, ProcessGate& process, std::string job,
                             Duration timeout) {
  const MonotonicClock clock;
  const Instant latest = clock.now() + timeout;
  const auto fail = [](ErrorCode code, std::string why, std::string todo) {
    throw_error({code, "cannot copy the weights of a run", std::move(why), std::move(todo)});
  };
  for (int copies = 1;; ++copies) {
    const auto asked = driver.call<&TrainDriver::copy_weights>();
    if (!asked.wait(std::max(latest - clock.now(), Duration{0})))
      fail(ErrorCode::kTimeout, "it has committed no step for " + seconds_of(timeout),
           "see what its trainers wait for");
    WeightCopy copy;
    try {
      copy = asked.answer();
    } catch (const ActorDied&) {
      fail(ErrorCode::kUnavailable, "it has ended, or is paused", "give its result, or its snapshot");
    }
    try {
      return {copy.step, std::move(job), std::make_shared<const wire::Bytes>(read_copy(copy, process))};
    } catch (const Error&) {  // its trainer is gone, or has made others since: another one
      if (copies == kMostCopies || clock.now() >= latest) throw;
    }
  }
}

}  // namespace troupe::train
