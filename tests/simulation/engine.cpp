/// The stub model behind TrainEngine, its dataset, and the files and groups around them.
#include <cerrno>
#include <cstring>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "runtime/core/futex.hpp"
#include "runtime/core/thread.hpp"
#include "runtime/host/registry.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/group.hpp"

namespace troupe::train {

TrainFloor& train_floor() {
  return sim::Hosted::current().cluster.floor;
}

}  // namespace troupe::train

namespace troupe::sim {
namespace {

/// User code that never comes back, until its process goes.
[[noreturn]] void hang(const Hosted& process) {
  std::atomic<std::uint32_t> never{0};
  while (!process.cluster.threads.is_drained(process)) futex_wait(never, 0, Duration::max());
  throw_error({ErrorCode::kAborted, "a hang", "its process has ended", ""});
}

class Copy final : public train::StateCopy {
 public:
  explicit Copy(const TrainState& state)
      : StateCopy(state.parts()),
        file_(checkpoint::write_safetensors(checkpoint::lay_out_safetensors(state.parts()).value())) {}
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), file_.data() + offset, into.size());
  }

 private:
  const std::vector<std::byte> file_;
};

class Engine final : public train::TrainEngine {
 public:
  Engine(Trainer& process, const train::RunSettings& settings)
      : process_(process), world_(process.cluster.world), seed_(settings.seed), state_(initial_state(seed_)) {
    process_.state = &state_;
  }
  ~Engine() override { process_.state = nullptr; }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void enter_thread() override {}
  std::string numerics() const override { return "exact"; }
  State state() override { return {state_.parts(), nullptr}; }
  std::unique_ptr<train::StateCopy> copy_state() override { return std::make_unique<Copy>(state_); }
  std::size_t weight_parts() override { return TrainState::kWords; }
  using TrainEngine::install;
  void install(std::span<const train::StatePart> parts, const train::PartBytes& bytes_of) override {
    takes(microseconds(100), milliseconds(4));
    TrainState fresh;
    TROUPE_ASSERT(parts.size() == TrainState::kWords, "a state has its words");
    for (int i = 0; i < TrainState::kWords; ++i) {
      const auto bytes = bytes_of ? bytes_of(parts[i]) : parts[i].bytes;
      std::memcpy(&fresh.words[i], bytes.data(), sizeof fresh.words[i]);
    }
    state_ = fresh;
  }
  void install_with_own_options(std::vector<train::StatePart> parts) override { install(parts); }
  void install_initial() override {
    takes(milliseconds(1), milliseconds(5));
    state_ = initial_state(seed_);
  }

  std::size_t group_bytes(const std::vector<collectives::LeafInterval>& /*leaves*/,
                          bool /*gradients*/) const override {
    return 4096;
  }
  void attach(std::shared_ptr<collectives::ProcessGroup> group,
              std::shared_ptr<collectives::ProcessGroup> /*gradients*/) override {
    group_ = std::dynamic_pointer_cast<SimGroup>(group);
  }
  void detach() override { group_.reset(); }
  void rehearse() override {}
  void begin_step(std::int64_t step, int /*epoch*/) override {
    step_ = step;
    first_leaf_ = -1;
    gradients_.clear();
  }
  void run_leaf(int leaf, const data::BatchView& batch) override {
    computes(batch);
    if (batch.header.leaf != static_cast<std::uint32_t>(leaf))
      world_.violation(process_.name + " computes another leaf's batch");
    if (first_leaf_ < 0) first_leaf_ = leaf;
    gradients_.push_back(gradient(state_, step_, leaf, batch.header.index_hash));
    check_bytes(batch);
  }
  std::size_t batches_done() override { return gradients_.size(); }
  std::vector<train::LeafResult> results() override {
    std::vector<train::LeafResult> all;
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      all.push_back({first_leaf_ + static_cast<double>(i), {}, {}});
    return all;
  }
  void finish_step() override {
    const auto& plan = group_->plan();
    const collectives::LeafInterval leaves{first_leaf_, first_leaf_ + static_cast<int>(gradients_.size())};
    const auto all =
        group_->exchange("gradients", wire::encode(partial_sums(gradients_, leaves, plan.logical_ranks)));
    std::vector<std::uint64_t> partials;
    std::vector<collectives::LeafInterval> intervals;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const auto sums = wire::decode<std::vector<std::uint64_t>>(all[r]).value();
      partials.insert(partials.end(), sums.begin(), sums.end());
      const auto nodes = collectives::canonical_nodes(plan.members[r].leaves, plan.logical_ranks);
      intervals.insert(intervals.end(), nodes.begin(), nodes.end());
    }
    sum_ = sum_partials(std::move(partials), intervals, plan.logical_ranks);
  }
  void abandon_step() override { gradients_.clear(); }
  train::StepValues apply(bool /*ends_epoch*/, double /*total_weight*/) override {
    takes(microseconds(100), milliseconds(2));
    state_.apply(step_, sum_);
    if (state_ != process_.cluster.reference.at(step_ + 1))
      world_.violation(process_.name + " has another state after step " + std::to_string(step_));
    return {{"learning_rate", static_cast<double>(step_)}};
  }
  train::StepValues skip(bool /*ends_epoch*/) override {
    world_.violation(process_.name + " leaves step " + std::to_string(step_) + " out, whose loss is finite");
    return {};
  }
  std::vector<std::byte> step_record() override {
    const auto bytes = std::as_bytes(std::span(&sum_, 1));
    return {bytes.begin(), bytes.end()};
  }
  void take_record(std::int64_t step, int /*epoch*/, std::span<const std::byte> record) override {
    TROUPE_ASSERT(record.size() == sizeof sum_, "a record of this job");
    step_ = step;
    std::memcpy(&sum_, record.data(), sizeof sum_);
    ++process_.cluster.followed;
  }
  std::vector<train::Figure> evaluate(std::int64_t piece, int /*epoch*/,
                                      const data::BatchView& batch) override {
    computes(batch);
    check_bytes(batch);
    return {{"accuracy", static_cast<double>(sim::evaluate(state_, piece, piece + 1)), 1}};
  }

 private:
  void takes(Duration least, Duration most) { sleep_for(world_.between(least, most)); }
  void computes(const data::BatchView& batch) {
    check_bytes(batch);
    process_.hung = process_.hung || process_.hangs;
    if (process_.hung) hang(process_);
    takes(microseconds(300), milliseconds(4));
  }
  /// A loader of before may write late, or a slot be given away too soon.
  void check_bytes(const data::BatchView& batch) {
    const auto* input = batch.find("input");
    std::vector<std::int64_t> indices(batch.header.count);
    std::memcpy(indices.data(), input->bytes.data(), input->bytes.size());
    if (data::index_hash(indices) != batch.header.index_hash)
      world_.violation(process_.name + " has a batch that another one was written over");
  }

  Trainer& process_;
  World& world_;
  const std::uint64_t seed_;
  TrainState state_;
  std::shared_ptr<SimGroup> group_;
  std::int64_t step_ = 0;
  int first_leaf_ = -1;
  std::vector<std::uint64_t> gradients_;
  std::uint64_t sum_ = 0;  ///< reduced, not yet applied
};

/// Its samples are their indices.
class Numbers final : public data::FixedDataset {
 public:
  Numbers(Worker& process, std::int64_t size, bool test) : process_(process), size_(size), test_(test) {}
  std::int64_t size() const override { return size_; }
  std::vector<data::FieldSpec> fields() const override { return {{"input", data::DType::kInt64, {1}}}; }
  void write(std::int64_t index, data::Random& /*random*/,
             std::span<const std::span<std::byte>> places) const override {
    process_.hung = process_.hung || process_.hangs;
    if (process_.hung) hang(process_);
    World& world = process_.cluster.world;
    if (!test_ || index % 64 == 0) sleep_for(world.between(microseconds(20), milliseconds(1)));
    std::memcpy(places[0].data(), &index, sizeof index);
  }

 private:
  Worker& process_;
  const std::int64_t size_;
  const bool test_;
};

class Output final : public checkpoint::OutputFile {
 public:
  Output(Cluster& cluster, std::string path) : cluster_(cluster), path_(std::move(path)) {}
  Result<void> append(std::span<const std::byte> bytes) override {
    if (cluster_.files.full) return io_error("cannot write '" + path_ + "'", ENOSPC);
    const auto at = cluster_.files.all.find(path_);
    if (at != cluster_.files.all.end())
      at->second.bytes.insert(at->second.bytes.end(), bytes.begin(), bytes.end());
    return {};
  }
  Result<void> sync() override {
    sleep_for(cluster_.world.between(microseconds(200), milliseconds(8)));
    return {};
  }

 private:
  Cluster& cluster_;
  const std::string path_;
};

class HostFiles final : public checkpoint::FileSystem {
 public:
  HostFiles(Cluster& cluster, int host) : cluster_(cluster), host_(host) {}
  Result<void> make_folder(const std::string& /*folder*/) override { return {}; }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    std::vector<std::string> names;
    for (const auto& [path, file] : cluster_.files.all) {
      if (file.missing_on != host_) names.push_back(path.substr(folder.size() + 1));
    }
    return names;
  }
  Result<std::unique_ptr<checkpoint::OutputFile>> create(const std::string& path) override {
    if (cluster_.files.full) return io_error("cannot create '" + path + "'", ENOSPC);
    if (!cluster_.files.all.try_emplace(path).second) return io_error("cannot create '" + path + "'", EEXIST);
    return std::unique_ptr<checkpoint::OutputFile>(std::make_unique<Output>(cluster_, path));
  }
  Result<std::vector<std::byte>> read(const std::string& path, std::size_t /*max_bytes*/) override {
    const auto at = cluster_.files.all.find(path);
    if (at == cluster_.files.all.end() || at->second.missing_on == host_)
      return io_error("cannot open '" + path + "'", ENOENT);
    return at->second.bytes;
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    if (cluster_.files.all.contains(to)) return io_error("cannot rename '" + from + "'", EEXIST);
    auto file = cluster_.files.all.extract(from);
    if (file.empty()) return io_error("cannot rename '" + from + "'", ENOENT);
    cluster_.files.all[to] = std::move(file.mapped());
    return {};
  }
  Result<void> remove(const std::string& path) override {
    if (cluster_.files.all.erase(path) == 0) return io_error("cannot remove '" + path + "'", ENOENT);
    return {};
  }
  Result<void> sync_folder(const std::string& /*folder*/) override {
    sleep_for(cluster_.world.between(microseconds(100), milliseconds(2)));
    return {};
  }
  std::optional<std::uint64_t> free_bytes(const std::string& /*folder*/) override { return {}; }

 private:
  Cluster& cluster_;
  const int host_;
};

class Groups final : public train::GroupMaker {
 public:
  Groups(Trainer& process, const Session& session, const train::RunSettings& settings)
      : process_(process),
        session_(session),
        run_(settings.run),
        timeout_(
            std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings.group_timeout_s))) {}
  std::string address() const override { return "its data address"; }
  std::shared_ptr<collectives::ProcessGroup> form(const train::GenerationPlan& plan, int rank,
                                                  train::TrainEngine& engine,
                                                  std::function<bool()> abandoned) override {
    const std::string key = run_ + "/group/" + to_string(plan.generation);
    auto region =
        session_.open_region(key, engine.group_bytes({}, true), "rank " + std::to_string(rank), true);
    auto& shared = process_.cluster.groups[plan.generation];
    if (!shared) shared = std::make_shared<Group>(process_.cluster, plan);
    shared->join(rank, process_, timeout_, abandoned);
    return {new SimGroup(shared, rank, timeout_, std::move(region)),
            [session = session_, key](SimGroup* group) {
              delete group;
              session.drop_region(key);
            }};
  }

 private:
  Trainer& process_;
  const Session session_;
  const std::string run_;
  const Duration timeout_;
};

}  // namespace

std::unique_ptr<train::TrainEngine> Floor::make_engine(const train::RunSettings& settings) {
  return std::make_unique<Engine>(dynamic_cast<Trainer&>(Hosted::current()), settings);
}

std::shared_ptr<data::Dataset> Floor::make_dataset(const train::RunSettings& /*settings*/,
                                                   data::Split split) {
  if (split == data::Split::kValidation) return nullptr;
  const bool test = split == data::Split::kTest;
  return std::make_shared<Numbers>(
      dynamic_cast<Worker&>(Hosted::current()),
      test ? cluster_.scenario.test_samples : cluster_.sampler.options().dataset_size, test);
}

ErrorInfo Floor::describe_exception(const std::string& part) {
  return troupe::describe_exception(part);
}

std::unique_ptr<train::GroupMaker> Floor::make_groups(const Session& session,
                                                      const train::RunSettings& settings) {
  return std::make_unique<Groups>(dynamic_cast<Trainer&>(Hosted::current()), session, settings);
}

std::unique_ptr<checkpoint::FileSystem> Floor::files(std::function<void()> /*progress*/) {
  return std::make_unique<HostFiles>(cluster_, Hosted::current().host);
}

std::string Floor::who() const {
  const Hosted& process = Hosted::current();
  return "pid " + std::to_string(process.id) + " on host " + std::to_string(process.host);
}

}  // namespace troupe::sim
