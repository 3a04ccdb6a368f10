#include "actors/train/trainer/group_setup.hpp"

#include <algorithm>

#include "actors/train/engine/gradient_group.hpp"
#include "actors/train/engine/pinned_region.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/process_title.hpp"

namespace troupe::train {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(30);

/// Connects with the ranks of other nodes.
std::unique_ptr<collectives::Mesh> make_mesh(const RunSettings& settings, const GenerationPlan& plan,
                                             const std::vector<int>& machines, int rank,
                                             std::shared_ptr<const DataListener> listener) {
  collectives::MeshOptions mesh;
  mesh.self = {plan.generation, static_cast<int>(plan.members.size()), rank, "data",
               settings.encrypt_data_plane};
  for (std::size_t r = 0; r < machines.size(); ++r) {
    if (machines[r] != machines[static_cast<std::size_t>(rank)])
      mesh.peers[static_cast<int>(r)] = parse_endpoint(plan.members[r].data_address).value();
  }
  if (mesh.peers.empty()) return nullptr;
  TROUPE_ASSERT(settings.key.size() == 32, "the driver gave every trainer the job's key");
  const KeyView key(settings.key.data(), 32);
  return std::make_unique<collectives::Mesh>(std::move(listener), key, std::move(mesh));
}

class NativeGroups final : public GroupMaker {
 public:
  NativeGroups(const Session& session, const RunSettings& settings, OwnMemory& own)
      : session_(session),
        settings_(settings),
        own_(own),
        listener_(std::make_shared<DataListener>(DataListener::bind({session.host(), 0}).value())) {}

  std::string address() const override { return troupe::to_string(listener_->endpoint()); }

  bool has_nccl() const override {
    if (settings_.trainer_gpus < 1) return false;
    try {
      (void)collectives::nccl::real_api();
      return true;
    } catch (const Unavailable& error) {
      log(LogLevel::kInfo, std::string("gradients go through the host's memory: ") + error.what());
      return false;
    }
  }

  std::shared_ptr<collectives::ProcessGroup> form(const GenerationPlan& plan, int rank, TrainEngine& engine,
                                                  std::function<bool()> abandoned) override {
    const auto& leaves = plan.members[static_cast<std::size_t>(rank)].leaves;
    note_process("rank", std::to_string(rank));
    note_process("world_size", std::to_string(plan.members.size()));
    note_process("logical_ranks", std::to_string(leaves.begin) + ".." + std::to_string(leaves.end));
    const std::string why_not = why_not_nccl(gradients_of(plan));
    over_nccl_ = why_not.empty();
    if (!over_nccl_ && rank == 0 && settings_.trainer_gpus > 0)
      log(LogLevel::kInfo, "gradients go through the host's memory: " + why_not);
    forget_gradients(plan);
    collectives::NativeGroupOptions options;
    options.rank = rank;
    options.size = static_cast<int>(plan.members.size());
    options.generation = plan.generation;
    options.timeout = timeout();
    for (const auto& member : plan.members) options.leaves.push_back(member.leaves);
    options.data_bytes = engine.group_bytes(options.leaves, !over_nccl_);
    options.machines = nodes_of(plan);
    options.region = region_of(plan, options, engine);
    if (auto mesh = make_mesh(settings_, plan, options.machines, rank, listener_)) {
      const collectives::WaitOptions wait{.timeout = kConnectTime, .aborted = std::move(abandoned)};
      options.remote = mesh->meet(collectives::native_peers(options.machines, rank), wait).value();
      options.connector = std::move(mesh);
    }
    std::shared_ptr<collectives::ProcessGroup> group = collectives::make_native_group(std::move(options));
    collectives::flight::record(*group, {.group = settings_.run});
    return group;
  }

  std::shared_ptr<collectives::ProcessGroup> form_gradients(
      const GenerationPlan& plan, const std::shared_ptr<collectives::ProcessGroup>& group) override {
    if (!over_nccl_) return nullptr;
    // Whatever comes of it: nobody shrinks a group twice.
    const GradientsBefore before = std::exchange(before_, {});
    auto made = make_gradient_group(group, gradients_of(plan), before, collectives::nccl::real_api());
    collectives::flight::record(*made, {.group = settings_.run + "/gradients"});
    before_.group = made;
    members_ = actors_of(plan);
    return made;
  }

 private:
  std::shared_ptr<SharedMemory> region_of(const GenerationPlan& plan,
                                          const collectives::NativeGroupOptions& options,
                                          TrainEngine& engine) {
    const auto bytes_with = [&](std::size_t data_bytes) {
      return collectives::native_region_bytes(options.machines, options.rank, data_bytes);
    };
    const auto open = [&](const std::string& key, std::size_t bytes, bool abortable, const Pin& pin) {
      return pin_region(session_.open_region(key, bytes, "rank " + std::to_string(options.rank), abortable),
                        pin, [session = session_, key] { session.drop_region(key); });
    };
    const std::string key = settings_.run + "/group/" + to_string(plan.generation);
    // What stays of the group before are its data, which the reducer clears.
    if (options.size == 1 && settings_.trainer_gpus <= 0) {
      return own_.take(bytes_with(options.data_bytes), bytes_with(0), [&](std::size_t bytes) {
        return open(key + "/own", bytes, false, [](auto) { return nullptr; });
      });
    }
    own_.drop();
    // The first rank to leave takes the name back: nobody joins a generation that one has left.
    return open(key, bytes_with(options.data_bytes), true,
                [&](std::span<std::byte> region) { return over_nccl_ ? nullptr : engine.pin(region); });
  }

  /// Keeps the gradients' group of the generation before where `plan` has the rest of its ranks.
  void forget_gradients(const GenerationPlan& plan) {
    before_.gone = ranks_gone(members_, actors_of(plan));
    if (!over_nccl_ || before_.gone.empty()) before_ = {};
  }
  GradientGroupOptions gradients_of(const GenerationPlan& plan) const {
    GradientGroupOptions options{.trainer_gpus = settings_.trainer_gpus,
                                 .encrypt = settings_.encrypt_data_plane,
                                 .nodes = nodes_of(plan),
                                 .have_nccl = {},
                                 .timeout = timeout()};
    for (const auto& member : plan.members) options.have_nccl.push_back(member.has_nccl);
    return options;
  }
  static std::vector<ActorId> actors_of(const GenerationPlan& plan) {
    std::vector<ActorId> actors;
    for (const auto& member : plan.members) actors.push_back(member.actor);
    return actors;
  }
  /// By rank: the first rank of its node.
  static std::vector<int> nodes_of(const GenerationPlan& plan) {
    std::vector<int> nodes;
    for (const auto& member : plan.members) {
      const auto same = [&](const auto& other) { return other.node == member.node; };
      const auto first = std::find_if(plan.members.begin(), plan.members.end(), same);
      nodes.push_back(static_cast<int>(first - plan.members.begin()));
    }
    return nodes;
  }
  Duration timeout() const {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings_.group_timeout_s));
  }

  const Session session_;
  const RunSettings settings_;
  OwnMemory& own_;
  const std::shared_ptr<const DataListener> listener_;
  bool over_nccl_ = false;        ///< gradients, in this generation
  GradientsBefore before_;        ///< the last group of them, for the next generation
  std::vector<ActorId> members_;  ///< of that one, by rank
};

}  // namespace

std::unique_ptr<GroupMaker> make_native_groups(const Session& session, const RunSettings& settings,
                                               OwnMemory& own) {
  return std::make_unique<NativeGroups>(session, settings, own);
}

}  // namespace troupe::train
