/// Of the NCCL half of the double: how communicators come from others, and memory; and what its parts share.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "tests/collectives/nccl_double_state.hpp"

namespace troupe::collectives::testing {

using nccl::Comm;
using nccl::kNcclSuccess;
using nccl::NcclApi;

std::shared_ptr<DoubleComm> find(DoubleState& s, Comm comm, const char* name) {
  const std::lock_guard hold(s.mutex);
  const auto found = s.comms.find(comm);
  if (found != s.comms.end() && !found->second->gone) {
    if (current_device() != found->second->process && std::string_view(name) != "ncclCommGetAsyncError")
      s.misuse.push_back(std::string(name) + " makes a context on another GPU");
    return found->second;
  }
  s.misuse.push_back(std::string(name) + " on a communicator that is gone");
  return nullptr;
}

std::shared_ptr<DoubleComm> add_comm(DoubleState& s, std::shared_ptr<World> world, int rank, int p,
                                     int blocking) {
  auto comm = std::make_shared<DoubleComm>();
  comm->rank = rank;
  comm->process = p;
  comm->blocking = blocking != 0;
  {
    const std::lock_guard hold(world->mutex);
    ++world->joined;
    world->changed.notify_all();
  }
  comm->world = std::move(world);
  const std::lock_guard hold(s.mutex);
  s.comms.emplace(handle_of(comm), comm);
  return comm;
}

Comm handle_of(const std::shared_ptr<DoubleComm>& comm) {
  return reinterpret_cast<Comm>(comm.get());
}

void give(const std::shared_ptr<DoubleComm>& comm, Comm* made) {
  std::atomic_ref(*made).store(handle_of(comm), std::memory_order_release);
}

int await_joined(DoubleComm& comm) {
  World& world = *comm.world;
  std::unique_lock hold(world.mutex);
  world.changed.wait(hold, [&] { return comm.stopped || world.joined == world.size; });
  return comm.stopped ? kInternalError : kNcclSuccess;
}

void stop(DoubleComm& comm) {
  const std::lock_guard hold(comm.world->mutex);
  comm.stopped = true;
  comm.world->changed.notify_all();
}

Inside::Inside(std::shared_ptr<DoubleComm> comm) : comm_(std::move(comm)) {
  const std::lock_guard hold(comm_->world->mutex);
  ++comm_->inside;
}

Inside::~Inside() {
  const std::lock_guard hold(comm_->world->mutex);
  --comm_->inside;
}

namespace {

constexpr int kInvalidArgument = 4;

}  // namespace

void fill_membership(DoubleState& s, int p, NcclApi& api) {
  if (s.version < nccl::kVersionOfRevoke) return;
  // `*out` is there when all have joined, or an abort of the parent ended the attempt.
  api.ncclCommShrink = [&s, p](Comm handle, int* gone, int count, Comm* out, int blocking) {
    if (const int code = s.enter(p, "ncclCommShrink")) return code;
    const auto parent = find(s, handle, "ncclCommShrink");
    if (!parent) return kInvalidArgument;
    {
      const std::lock_guard hold(s.mutex);
      if (parent->error != 0) return parent->error;
    }
    const std::vector<int> lost(gone, gone + count);
    std::shared_ptr<World> world;
    {
      const std::lock_guard hold(parent->world->mutex);
      auto& found = parent->world->shrunk[lost];
      if (!found) found = std::make_shared<World>(parent->world->size - count);
      world = found;
    }
    const auto below = std::lower_bound(lost.begin(), lost.end(), parent->rank) - lost.begin();
    const Inside inside(parent);
    const auto child =
        add_comm(s, std::move(world), parent->rank - static_cast<int>(below), parent->process, blocking);
    {
      const std::lock_guard hold(s.mutex);
      parent->child = child;
    }
    const int code = await_joined(*child);
    give(child, out);
    return code;
  };
}

void fill_memory(DoubleState& s, int p, NcclApi& api) {
  api.ncclMemAlloc = [&s, p](void** at, std::size_t bytes) {
    if (const int code = s.enter(p, "ncclMemAlloc")) return code;
    *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    const std::lock_guard hold(s.mutex);
    s.memory.insert(*at);
    return kNcclSuccess;
  };
  api.ncclMemFree = [&s, p](void* at) {
    if (const int code = s.enter(p, "ncclMemFree")) return code;
    {
      const std::lock_guard hold(s.mutex);
      s.memory.erase(at);
    }
    std::free(at);
    return kNcclSuccess;
  };
  api.ncclCommRegister = [&s, p](Comm comm, void* at, std::size_t, void** handle) {
    if (const int code = s.enter(p, "ncclCommRegister")) return code;
    *handle = at;
    const std::lock_guard hold(s.mutex);
    s.registrations[at] = comm;
    return kNcclSuccess;
  };
  api.ncclCommDeregister = [&s, p](Comm, void* handle) {
    if (const int code = s.enter(p, "ncclCommDeregister")) return code;
    const std::lock_guard hold(s.mutex);
    return s.registrations.erase(handle) == 1 ? kNcclSuccess : kInvalidArgument;
  };
}

}  // namespace troupe::collectives::testing
