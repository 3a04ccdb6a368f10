// Checkpoints of a state that trainers have in shards, as one of them writes or helps to write it.
#include "actors/train/trainer/trainer_checkpoints.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "tests/actors/machines/bare_engine.hpp"
#include "tests/support/files.hpp"

namespace troupe::train {
namespace {

constexpr Generation kIn{1, 1};

/// What a test waits for; 60 s at most.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    wake_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(60), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool open_ = false;
};

/// Its bytes are read once the gate is open.
class GatedCopy final : public StateCopy {
 public:
  GatedCopy(const StatePart& part, Gate& gate)
      : StateCopy({part}),
        file_(checkpoint::write_safetensors(checkpoint::lay_out_safetensors(std::span(&part, 1)).value())),
        gate_(gate) {}
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> into) override {
    if (!gate_.wait()) throw_error({ErrorCode::kTimeout, "the gate stayed shut", "", ""});
    std::memcpy(into.data(), file_.data() + offset, into.size());
  }

 private:
  const std::vector<std::byte> file_;
  Gate& gate_;
};

/// Has "w" of four elements, of which the second trainer gives none.
class ShardsEngine final : public BareEngine {
 public:
  ShardsEngine() : BareEngine({}) {
    parts_ = {{"w", checkpoint::DType::kF32, {4}, std::as_bytes(std::span(values))}};
  }
  std::optional<ShardedState> shards() override {
    StatePart w = parts_[0];
    w.bytes = {static_cast<const std::byte*>(nullptr), w.bytes.size()};
    return ShardedState{{w}, {{HeldPart{w}}, {}}, 0, [this]() -> std::unique_ptr<StateCopy> {
                          if (has_room) return std::make_unique<GatedCopy>(parts_[0], gate);
                          throw_error({ErrorCode::kIo, "cannot share the state", "no process", ""});
                        }};
  }
  std::unique_ptr<StateWalk> walk(int root) override {
    ++walks;
    return BareEngine::walk(root);
  }
  std::array<float, 4> values{1, 2, 3, 4};
  Gate gate;
  bool has_room = true;
  int walks = 0;
};

class DiskFloor final : public TrainFloor {
 public:
  std::unique_ptr<TrainEngine> make_engine(const RunSettings& /*settings*/) override { return nullptr; }
  std::shared_ptr<data::Dataset> make_dataset(const RunSettings& /*settings*/,
                                              data::Split /*split*/) override {
    return nullptr;
  }
  data::Sampling make_sampling(const RunSettings& /*settings*/, const data::Dataset& /*train*/) override {
    return {};
  }
  void seed_generators(std::uint64_t /*seed*/) override {}
  std::string job_name(const RunSettings& /*settings*/) override { return "job"; }
  ErrorInfo describe_exception(const std::string& /*part*/) override { return {}; }
  std::unique_ptr<GroupMaker> make_groups(const Session& /*session*/,
                                          const RunSettings& /*settings*/) override {
    return nullptr;
  }
  std::unique_ptr<checkpoint::FileSystem> files(std::function<void()> progress) override {
    return std::make_unique<checkpoint::PosixFileSystem>(std::move(progress));
  }
  std::string who() const override { return "it"; }
};

struct Setting {
  Setting() {
    settings.checkpoint_folder = folder.path();
    settings.sharding.what = Shard::kParameters;
  }
  TrainerCheckpoints::Members members(bool others_copied) {
    return {1, [this, others_copied](bool copied) {
              told_copied = copied;
              read_when_asked = [&] {
                try {
                  return shards.read({kIn, 4}, 0, 8).bytes.size();
                } catch (const Unavailable&) {
                  return std::size_t{0};
                }
              };
              const bool all = copied && others_copied;
              return all ? std::vector<ActorHandle<Trainer>>(1) : std::vector<ActorHandle<Trainer>>();
            }};
  }
  std::vector<float> saved() {
    checkpoint::PosixFileSystem disk;
    checkpoint::CheckpointStore store(disk, {settings.checkpoint_folder});
    const auto listed = store.list().value();
    if (listed.empty()) return {};
    const auto loaded = store.load_manifest(listed.back().manifest_path).value();
    std::vector<float> values(4);
    std::memcpy(values.data(), loaded.tensors.at(0).bytes.data(), 16);
    return values;
  }

  const test::TempFolder folder;
  DiskFloor floor;
  RunSettings settings;
  ShardsEngine engine;
  KeptShards shards;
  bool told_copied = false;
  std::function<std::size_t()> read_when_asked;
  Gate written;
  TrainerResult result;
  TrainerCheckpoints checkpoints{floor,
                                 settings,
                                 engine,
                                 shards,
                                 {[](std::int64_t) {}, [] {},
                                  [this](const WriteCheckpoint&, const TrainerResult& what) {
                                    result = what;
                                    written.open();
                                  }}};
};

}  // namespace

TEST_CASE("a checkpoint of shards is written beside the steps, and has the state of when it was ordered") {
  Setting s;
  const auto began = s.checkpoints.write({kIn, 4, ""}, {}, 4, s.members(true), [] {});
  CHECK(std::holds_alternative<StateCopied>(began));
  s.engine.values = {5, 6, 7, 8};  // a step
  CHECK(s.saved().empty());
  s.engine.gate.open();
  REQUIRE(s.written.wait());
  CHECK(std::holds_alternative<CheckpointStored>(s.result));
  CHECK(s.saved() == std::vector<float>{1, 2, 3, 4});
  CHECK(s.engine.walks == 0);
}

TEST_CASE("a checkpoint of shards of which one trainer has no copy is written while the steps wait") {
  Setting s;
  s.engine.has_room = GENERATE(true, false);
  const auto done = s.checkpoints.write({kIn, 4, ""}, {}, 4, s.members(!s.engine.has_room), [] {});
  CHECK(s.told_copied == s.engine.has_room);
  CHECK(std::holds_alternative<CheckpointStored>(done));
  CHECK(s.saved() == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("a trainer keeps its shards for the one that writes, before that hears of it") {
  Setting s;
  s.engine.gate.open();
  SECTION("all have copied") {
    std::size_t when_told = 0;
    auto members = s.members(true);
    members.all_copied = [&, tell = members.all_copied](bool copied) {
      auto all = tell(copied);
      when_told = s.read_when_asked();
      return all;
    };
    s.checkpoints.prove({kIn, 4}, members, [] {});
    CHECK(when_told == 8);
    CHECK(s.read_when_asked() == 8);
    CHECK(s.engine.walks == 0);
    s.checkpoints.drop_shards();  // the next generation
    CHECK(s.read_when_asked() == 0);
  }
  SECTION("another one has not") {
    s.checkpoints.prove({kIn, 4}, s.members(false), [] {});
    CHECK(s.read_when_asked() == 0);
    CHECK(s.engine.walks == 1);  // it follows
  }
}

}  // namespace troupe::train
