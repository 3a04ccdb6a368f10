/// How a trainer makes the process group of a generation from its plan.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "actors/train/plan.hpp"
#include "actors/train/settings.hpp"
#include "collectives/native/mesh.hpp"
#include "collectives/process_group.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

/// Joins the group: the shared memory of this generation with the ranks of this node, authenticated sockets
/// to the others. Waits for ranks on other nodes, as long as `abandoned` says no. Throws what the system or a
/// peer refused, Timeout or CollectiveAborted. `data_bytes`: what the reducer will allocate. Fresh memory a
/// generation: nothing of an old one is used again.
std::shared_ptr<collectives::ProcessGroup> form_group(const Session& session, const RunSettings& settings,
                                                      const GenerationPlan& plan, int rank,
                                                      std::size_t data_bytes,
                                                      const collectives::DataListener& listener,
                                                      std::function<bool()> abandoned);

}  // namespace troupe::train
