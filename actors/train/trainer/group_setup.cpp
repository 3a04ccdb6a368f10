#include "actors/train/trainer/group_setup.hpp"

#include <algorithm>

#include "actors/train/engine/gradient_group.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"

namespace troupe::train {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(30);

/// Connects with the ranks of other nodes.
std::unique_ptr<collectives::Mesh> make_mesh(const RunSettings& settings, const GenerationPlan& plan,
                                             const std::vector<int>& machines, int rank,
                                             std::shared_ptr<const collectives::DataListener> listener) {
  collectives::MeshOptions mesh;
  mesh.self = {plan.generation, static_cast<int>(plan.members.size()), rank, "data",
               settings.encrypt_data_plane};
  for (std::size_t r = 0; r < machines.size(); ++r) {
    if (machines[r] != machines[static_cast<std::size_t>(rank)])
      mesh.peers[static_cast<int>(r)] = parse_endpoint(plan.members[r].data_address).value();
  }
  if (mesh.peers.empty()) return nullptr;
  TROUPE_ASSERT(settings.key.size() == 32, "the driver gave every trainer the job's key");
  const collectives::KeyView key(settings.key.data(), 32);
  return std::make_unique<collectives::Mesh>(std::move(listener), key, std::move(mesh));
}

class NativeGroups final : public GroupMaker {
 public:
  NativeGroups(const Session& session, const RunSettings& settings)
      : session_(session),
        settings_(settings),
        listener_(std::make_shared<collectives::DataListener>(
            collectives::DataListener::bind({session.host(), 0}).value())) {}

  std::string address() const override { return troupe::to_string(listener_->endpoint()); }

  std::shared_ptr<collectives::ProcessGroup> form(const GenerationPlan& plan, int rank, std::size_t bytes,
                                                  std::function<bool()> abandoned) override {
    collectives::NativeGroupOptions options;
    options.rank = rank;
    options.size = static_cast<int>(plan.members.size());
    options.generation = plan.generation;
    options.timeout = timeout();
    options.data_bytes = bytes;
    for (const auto& member : plan.members) options.leaves.push_back(member.leaves);
    options.machines = nodes_of(plan);
    const std::string key = settings_.run + "/group/" + to_string(plan.generation);
    const std::size_t region_bytes = collectives::native_region_bytes(options.machines, rank, bytes);
    // The first rank to leave takes the name back: nobody joins a generation that one has left.
    options.region = std::shared_ptr<SharedMemory>(
        new SharedMemory(session_.open_region(key, region_bytes, "rank " + std::to_string(rank), true)),
        [session = session_, key](SharedMemory* region) {
          delete region;
          session.drop_region(key);
        });
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
    auto made = make_gradient_group(group, {.trainer_gpus = settings_.trainer_gpus,
                                            .encrypt = settings_.encrypt_data_plane,
                                            .nodes = nodes_of(plan),
                                            .timeout = timeout()});
    if (made) collectives::flight::record(*made, {.group = settings_.run + "/gradients"});
    return made;
  }

 private:
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
  const std::shared_ptr<const collectives::DataListener> listener_;
};

}  // namespace

std::unique_ptr<GroupMaker> make_native_groups(const Session& session, const RunSettings& settings) {
  return std::make_unique<NativeGroups>(session, settings);
}

}  // namespace troupe::train
