// What a trainer gives of its state at a job's end.
#include "actors/train/trainer/held_state.hpp"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/held_shards.hpp"
#include "actors/train/snapshot.hpp"
#include "tests/actors/machines/bare_engine.hpp"

namespace troupe::train {
namespace {

/// One that holds the initial state of generation 1.1, and runs no step.
TrainerMachine resting() {
  TrainerMachine trainer(ActorId{1});
  GenerationPlan plan;
  plan.generation = {1, 1};
  plan.members = {{ActorId{1}, {}, "", {0, 1}}};
  trainer.on(Quiesce{plan.generation, "welcome"});
  trainer.on(StartGeneration{plan});
  trainer.take();
  trainer.done(TaskDone{});
  trainer.take();
  trainer.done(StateReady{});
  return trainer;
}

/// Zeros that take no memory until they are copied.
class Zeros {
 public:
  explicit Zeros(std::size_t bytes)
      : bytes_(bytes),
        at_(::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(at_ != MAP_FAILED);
  }
  ~Zeros() { ::munmap(at_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  StatePart part(const std::string& name) const {
    return {name,
            checkpoint::DType::kU8,
            {static_cast<std::int64_t>(bytes_)},
            {static_cast<const std::byte*>(at_), bytes_}};
  }

 private:
  const std::size_t bytes_;
  void* const at_;
};

}  // namespace

// All of it was copied when its first piece was asked for, in the actor's thread: for seconds the trainer
// told no sign of life, and had twice the memory.
TEST_CASE("a piece of a state takes no more than the piece, however large the state is") {
  constexpr std::size_t kTera = std::size_t{1} << 40;
  const Zeros large(kTera);
  BareEngine engine({large.part("large")});
  const TrainerMachine trainer = resting();
  const bool in_shards = GENERATE(false, true);
  HeldState held;
  CHECK(held.piece(trainer, engine, {.in_shards = in_shards}, 0).bytes.size() == kStatePiece);
  CHECK(held.piece(trainer, engine, {.in_shards = in_shards}, kTera / 2).bytes.size() == kStatePiece);
  CHECK(held.piece(trainer, engine, {.in_shards = in_shards}, kTera).bytes.size() <
        4096);  // behind its prefix
  CHECK(held.piece(trainer, engine, {.in_shards = in_shards}, 2 * kTera).bytes.empty());
}

TEST_CASE("the pieces of a state are its file, whole, or of the weights alone") {
  std::vector<float> weight(5'000'000), moment(3);
  std::iota(weight.begin(), weight.end(), 0.5F);
  const auto part = [](const char* name, const std::vector<float>& of) {
    return StatePart{
        name, checkpoint::DType::kF32, {static_cast<std::int64_t>(of.size())}, std::as_bytes(std::span(of))};
  };
  struct WithOptimizer : BareEngine {
    using BareEngine::BareEngine;
    std::size_t weight_parts() override { return 1; }
  } engine({part("weight", weight), part("optimizer/weight/moment", moment)});
  const TrainerMachine trainer = resting();
  HeldState held;
  const auto all = [&](HeldWish wish) {
    wire::Bytes file;
    for (;;) {
      const HeldPiece piece = held.piece(trainer, engine, wish, file.size());
      CHECK(piece.steps == 0);
      if (piece.bytes.empty()) return file;
      file.insert(file.end(), piece.bytes.begin(), piece.bytes.end());
    }
  };
  const auto file_of = [](const std::vector<StatePart>& parts) {
    return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
  };
  CHECK((all({}) == file_of(engine.state().parts)));
  CHECK((all({.weights_only = true}) == file_of({engine.state().parts.front()})));
  CHECK((all({.in_shards = true}) == write_shard(engine.held())));
}

TEST_CASE("a state is given while a trainer deletes old checkpoints, and not while a task may change it") {
  BareEngine engine({});
  TrainerMachine trainer = resting();
  HeldState held;
  trainer.on(PruneCheckpoints{{1, 1}, "path", ""});
  REQUIRE(std::holds_alternative<RunPrune>(trainer.take()));
  CHECK_NOTHROW(held.piece(trainer, engine, {}, 0));
  trainer.done(TaskDone{});
  trainer.on(Committed{{1, 1}, 0, 5});
  REQUIRE(std::holds_alternative<ComputeStep>(trainer.take()));
  CHECK_THROWS_AS(held.piece(trainer, engine, {}, 8), Unavailable);
}

}  // namespace troupe::train
