#include "actors/train/group_setup.hpp"

#include <algorithm>

#include "collectives/flight/flight_recorder.hpp"
#include "collectives/native/native_group.hpp"

namespace troupe::train {
namespace {

/// Connections to the ranks of other nodes; none when all are here.
std::map<int, UniqueFd> connect_remote(const Session& session, const RunSettings& settings,
                                       const GenerationPlan& plan, int rank,
                                       const collectives::DataListener& listener,
                                       std::function<bool()> abandoned) {
  collectives::MeshOptions mesh;
  mesh.self = {plan.generation, static_cast<int>(plan.members.size()), rank};
  mesh.aborted = std::move(abandoned);
  for (std::size_t r = 0; r < plan.members.size(); ++r) {
    const auto& member = plan.members[r];
    if (member.node != session.node())
      mesh.peers[static_cast<int>(r)] = parse_endpoint(member.data_address).value();
  }
  if (mesh.peers.empty()) return {};
  TROUPE_ASSERT(settings.key.size() == 32, "the driver gave every trainer the job's key");
  const collectives::KeyView key(settings.key.data(), 32);
  return std::move(collectives::connect_mesh(listener, key, mesh).value().sockets);
}

}  // namespace

std::shared_ptr<collectives::ProcessGroup> form_group(const Session& session, const RunSettings& settings,
                                                      const GenerationPlan& plan, int rank,
                                                      std::size_t data_bytes,
                                                      const collectives::DataListener& listener,
                                                      std::function<bool()> abandoned) {
  collectives::NativeGroupOptions options;
  options.rank = rank;
  options.size = static_cast<int>(plan.members.size());
  options.generation = plan.generation;
  options.timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings.group_timeout_s));
  options.data_bytes = data_bytes;
  int locals = 0;
  for (int r = 0; r < options.size; ++r) {
    options.leaves.push_back(plan.members[r].leaves);
    const auto same = [&](const auto& member) { return member.node == plan.members[r].node; };
    const auto first = std::find_if(plan.members.begin(), plan.members.end(), same);
    options.machines.push_back(static_cast<int>(first - plan.members.begin()));
    if (plan.members[r].node == session.node()) ++locals;
  }
  const std::string key = settings.run + "/group/" + to_string(plan.generation);
  const std::size_t bytes = collectives::native_region_bytes(locals, data_bytes);
  // The first rank to leave takes the name back: nobody joins a generation that one has left.
  options.region = std::shared_ptr<SharedMemory>(
      new SharedMemory(session.open_region(key, bytes, "rank " + std::to_string(rank), true)),
      [session, key](SharedMemory* region) {
        delete region;
        session.drop_region(key);
      });
  options.remote = connect_remote(session, settings, plan, rank, listener, std::move(abandoned));
  std::shared_ptr<collectives::ProcessGroup> group = collectives::make_native_group(std::move(options));
  collectives::flight::record(*group, {.group = settings.run});
  return group;
}

}  // namespace troupe::train
