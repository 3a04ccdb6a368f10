/// The NCCL half of the double (nccl_double.hpp).

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/collectives/element_ops.hpp"
#include "tests/collectives/nccl_double_state.hpp"

namespace troupe::collectives::testing {
namespace {

using kernel::with_element;
using nccl::Comm;
using nccl::kNcclSuccess;
using nccl::NcclApi;
using nccl::NcclOp;
using nccl::NcclType;
using nccl::Stream;
using nccl::UniqueId;
using Kind = Operation::Kind;

constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = nccl::kNcclInvalidUsage;
constexpr std::chrono::seconds kForever(20);  ///< after which what would wait for good notes that
constexpr int kVersionOfWaitingDestroy = 23102;

DType dtype_of(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return DType::kInt8;
    case NcclType::kUint8:
      return DType::kUInt8;
    case NcclType::kInt32:
      return DType::kInt32;
    case NcclType::kInt64:
      return DType::kInt64;
    case NcclType::kFloat16:
      return DType::kFloat16;
    case NcclType::kFloat32:
      return DType::kFloat32;
    case NcclType::kFloat64:
      return DType::kFloat64;
    case NcclType::kBfloat16:
      return DType::kBFloat16;
  }
  std::abort();
}

std::size_t bytes_of(const Operation& o) {
  return o.count * element_size(dtype_of(o.type));
}

// Kernels: what runs on the stream's thread.

/// All ranks' inputs as one, in an order that is not the tree's: from the last rank to the first.
std::vector<std::byte> reduced(const Meeting& meeting, std::size_t count) {
  const Operation& first = meeting.arrived.begin()->second;
  const DType dtype = dtype_of(first.type);
  std::vector<std::byte> result(count * element_size(dtype));
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin};
    const auto number = static_cast<unsigned>(first.op);
    const ReduceOp op = number < 4 ? kOps[number] : ReduceOp::kSum;
    for (std::size_t i = 0; i < count; ++i) {
      Stored sum{};
      for (auto rank = meeting.arrived.rbegin(); rank != meeting.arrived.rend(); ++rank) {
        Stored value;
        std::memcpy(&value, static_cast<const std::byte*>(rank->second.in) + i * sizeof value, sizeof value);
        if (number > 4) value = testing::scale<Element>(value, first.factor);
        sum = rank == meeting.arrived.rbegin() ? value : testing::combine<Element>(op, sum, value);
      }
      if (first.op == NcclOp::kAvg)
        sum = testing::divide<Element>(sum, static_cast<int>(meeting.arrived.size()));
      std::memcpy(result.data() + i * sizeof sum, &sum, sizeof sum);
    }
  });
  return result;
}

bool agree(const Meeting& meeting) {
  const Operation& first = meeting.arrived.begin()->second;
  return std::all_of(meeting.arrived.begin(), meeting.arrived.end(), [&](const auto& entry) {
    const Operation& o = entry.second;
    return o.kind == first.kind && o.count == first.count && o.type == first.type && o.peer == first.peer &&
           (o.op == first.op || o.factor == first.factor);
  });
}

/// Moves the data of a collective that all ranks are in.
void perform(Meeting& meeting) {
  const Operation& first = meeting.arrived.begin()->second;
  const std::size_t bytes = bytes_of(first);
  switch (first.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: {
      const auto result = reduced(meeting, first.count);
      for (auto& [rank, o] : meeting.arrived) {
        if (first.kind == Kind::kAllReduce || rank == first.peer) std::memcpy(o.out, result.data(), bytes);
      }
      return;
    }
    case Kind::kReduceScatter: {
      const auto result = reduced(meeting, first.count * meeting.arrived.size());
      for (auto& [rank, o] : meeting.arrived) {
        std::memcpy(o.out, result.data() + static_cast<std::size_t>(rank) * bytes, bytes);
      }
      return;
    }
    case Kind::kBroadcast:
      for (auto& [rank, o] : meeting.arrived) {
        const Operation& root = meeting.arrived.at(first.peer);
        if (rank != first.peer) std::memcpy(o.out, root.in, bytes);
      }
      return;
    case Kind::kAllGather:
      for (auto& [rank, o] : meeting.arrived) {
        for (auto& [from, input] : meeting.arrived) {
          auto* to = static_cast<std::byte*>(o.out) + static_cast<std::size_t>(from) * bytes;
          if (to != input.in) std::memcpy(to, input.in, bytes);
        }
      }
      return;
    case Kind::kSend:
    case Kind::kRecv:
      return;
  }
}

/// One collective: returns when all ranks are through, or this one is stopped.
void meet(DoubleComm& comm, const Operation& operation) {
  World& world = *comm.world;
  std::unique_lock hold(world.mutex);
  Meeting& meeting = world.meetings[comm.collectives++];
  meeting.arrived.emplace(comm.rank, operation);
  if (static_cast<int>(meeting.arrived.size()) == world.size && agree(meeting)) {
    perform(meeting);
    meeting.done = true;
    world.changed.notify_all();
  }
  world.changed.wait(hold, [&] { return meeting.done || comm.stopped; });
  if (!meeting.done) meeting.arrived.erase(comm.rank);  // its memory may be gone when the others arrive
}

/// Sends and receives that progress together.
void exchange(DoubleComm& comm, const std::vector<Operation>& operations) {
  World& world = *comm.world;
  std::unique_lock hold(world.mutex);
  std::vector<std::shared_ptr<Letter>> sent;
  const auto take_back = [&] {  // the memory of what nobody took may be gone when somebody asks
    for (auto& [pair, box] : world.mail) {
      std::erase_if(box, [&](const auto& l) { return std::find(sent.begin(), sent.end(), l) != sent.end(); });
    }
  };
  for (const Operation& o : operations) {
    if (o.kind != Kind::kSend) continue;
    sent.push_back(std::make_shared<Letter>(Letter{o.in, bytes_of(o)}));
    world.mail[{comm.rank, o.peer}].push_back(sent.back());
  }
  world.changed.notify_all();
  for (const Operation& o : operations) {
    if (o.kind != Kind::kRecv) continue;
    auto& box = world.mail[{o.peer, comm.rank}];
    world.changed.wait(hold,
                       [&] { return comm.stopped || (!box.empty() && box.front()->bytes == bytes_of(o)); });
    if (comm.stopped) return take_back();
    std::memcpy(o.out, box.front()->data, box.front()->bytes);
    box.front()->taken = true;
    box.pop_front();
    world.changed.notify_all();
  }
  world.changed.wait(hold, [&] {
    return comm.stopped || std::all_of(sent.begin(), sent.end(), [](const auto& l) { return l->taken; });
  });
  if (comm.stopped) take_back();
}

void run_kernel(DoubleComm& comm, const std::vector<Operation>& operations, bool hangs) {
  if (hangs) {
    std::unique_lock hold(comm.world->mutex);
    comm.world->changed.wait(hold, [&] { return comm.stopped; });
  } else {
    exchange(comm, operations);
    for (const Operation& o : operations) {
      if (o.kind != Kind::kSend && o.kind != Kind::kRecv) meet(comm, o);
    }
  }
  const std::lock_guard hold(comm.world->mutex);
  --comm.running;
  comm.world->changed.notify_all();
}

// Calls: what runs on the rank's threads.

struct Queued {
  std::shared_ptr<DoubleComm> comm;
  Stream stream = nullptr;
  Operation operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Queued> group;
thread_local std::vector<std::function<void()>> ends;  ///< of communicators, in the group

/// Blocks until the pairs of the operations have both made their calls, as at the first message between two
/// ranks. False: an abort ended the wait.
bool connect(DoubleComm& comm, const std::vector<Operation>& operations) {
  World& world = *comm.world;
  std::unique_lock hold(world.mutex);
  std::vector<std::pair<int, int>> pairs;
  for (const Operation& o : operations) {
    if (o.kind != Kind::kSend && o.kind != Kind::kRecv) continue;
    const bool sends = o.kind == Kind::kSend;
    pairs.push_back(sends ? std::pair(comm.rank, o.peer) : std::pair(o.peer, comm.rank));
    (sends ? world.senders : world.receivers).insert(pairs.back());
  }
  world.changed.notify_all();
  world.changed.wait(hold, [&] {
    return comm.stopped || std::all_of(pairs.begin(), pairs.end(), [&](auto pair) {
             return world.senders.count(pair) != 0 && world.receivers.count(pair) != 0;
           });
  });
  if (comm.stopped) return false;
  ++comm.running;
  return true;
}

/// Counts what a message, or an all-gather, sends to another host.
void count_bytes(DoubleState& s, const DoubleComm& comm, const Operation& o) {
  const std::lock_guard hold(s.mutex);
  if (s.hosts.empty() || (o.kind != Kind::kSend && o.kind != Kind::kAllGather)) return;
  const int size = comm.world->size, to = o.kind == Kind::kSend ? o.peer : (comm.rank + 1) % size;
  const int here = s.hosts.at(static_cast<std::size_t>(comm.rank)),
            there = s.hosts.at(static_cast<std::size_t>(to));
  const std::size_t times = o.kind == Kind::kSend ? 1 : static_cast<std::size_t>(size - 1);
  if (here != there) s.sent[{here, there}] += times * bytes_of(o);
}

/// Puts the queued operations of one communicator on its stream.
int launch(DoubleState& s, int p, const std::vector<Queued>& queued) {
  const auto comm = queued.front().comm;
  const Stream stream = queued.front().stream;
  std::vector<Operation> operations;
  for (const Queued& q : queued) operations.push_back(q.operation);
  bool hangs = false;
  {
    const std::lock_guard hold(s.mutex);
    hangs = comm->hangs;
    if (hangs) {
      for (auto& [handle, other] : s.comms) other->hangs = other->hangs && other->process != p;
    }
    if (!comm->blocking) ++s.threads[p];
  }
  const Inside inside(comm);
  if (!connect(*comm, operations)) return kInternalError;
  std::vector<StreamRecorder::Range> touches;
  for (const Operation& o : operations) {
    const auto ranks = static_cast<std::size_t>(comm->world->size);
    const std::size_t bytes = bytes_of(o);
    if (o.kind != Kind::kRecv) touches.push_back({o.in, bytes, false});
    if (o.kind != Kind::kSend)
      touches.push_back({o.out, o.kind == Kind::kAllGather ? ranks * bytes : bytes, true});
    count_bytes(s, *comm, o);
  }
  s.put(p, stream, StreamRecorder::What::kMove, touches);
  const bool captured = s.stream_of(p, stream).capture() != nullptr;
  const auto count = [comm](int more) {
    const std::lock_guard inner(comm->world->mutex);
    comm->running += more;
  };
  if (captured) count(-1);  // what runs are the graph's replays
  s.stream_of(p, stream).enqueue([comm, operations, hangs, captured, count] {
    if (captured) count(1);
    run_kernel(*comm, operations, hangs);
  });
  return kNcclSuccess;
}

int end_group(DoubleState& s, int p) {
  auto queued = std::exchange(group, {});
  int code = kNcclSuccess;
  while (!queued.empty()) {
    const auto comm = queued.front().comm;
    const auto rest =
        std::stable_partition(queued.begin(), queued.end(), [&](const Queued& q) { return q.comm == comm; });
    if (const int failed = launch(s, p, {queued.begin(), rest})) code = failed;
    queued.erase(queued.begin(), rest);
  }
  return code;
}

int enqueue(DoubleState& s, int p, const char* name, Comm handle, Stream stream, Operation operation) {
  if (const int code = s.enter(p, name)) return code;
  const auto comm = find(s, handle, name);
  if (!comm) return kInvalidArgument;
  {
    const std::lock_guard hold(s.mutex);
    if (comm->revoked || comm->finalized) {
      s.misuse.push_back(std::string(name) + " on a communicator that has ended");
      return kInvalidUsage;
    }
    const auto made = comm->operators.find(static_cast<int>(operation.op));
    if (made != comm->operators.end()) operation.factor = made->second;
  }
  const bool root_missing = operation.peer < 0 || operation.peer >= comm->world->size;
  if (root_missing) return kInvalidArgument;
  group.push_back({comm, stream, operation});
  return group_depth > 0 ? kNcclSuccess : end_group(s, p);
}

void fill_operations(DoubleState& s, int p, NcclApi& api) {
  api.ncclGroupStart = [&s, p] {
    if (const int code = s.enter(p, "ncclGroupStart")) return code;
    ++group_depth;
    return kNcclSuccess;
  };
  api.ncclGroupEnd = [&s, p] {
    if (group_depth-- <= 0) s.note("ncclGroupEnd without a start");
    for (const auto& end : std::exchange(ends, {})) end();
    if (const int code = s.enter(p, "ncclGroupEnd")) {
      group.clear();
      return code;
    }
    return group.empty() ? kNcclSuccess : end_group(s, p);
  };
  api.ncclAllReduce = [&s, p](const void* in, void* out, std::size_t count, NcclType type, NcclOp op, Comm c,
                              Stream stream) {
    return enqueue(s, p, "ncclAllReduce", c, stream, {Kind::kAllReduce, in, out, count, type, op});
  };
  api.ncclReduce = [&s, p](const void* in, void* out, std::size_t count, NcclType type, NcclOp op, int root,
                           Comm c, Stream stream) {
    return enqueue(s, p, "ncclReduce", c, stream, {Kind::kReduce, in, out, count, type, op, 1, root});
  };
  api.ncclReduceScatter = [&s, p](const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                                  Comm c, Stream stream) {
    return enqueue(s, p, "ncclReduceScatter", c, stream, {Kind::kReduceScatter, in, out, count, type, op});
  };
  api.ncclBroadcast = [&s, p](const void* in, void* out, std::size_t count, NcclType type, int root, Comm c,
                              Stream stream) {
    return enqueue(s, p, "ncclBroadcast", c, stream,
                   {Kind::kBroadcast, in, out, count, type, NcclOp::kSum, 1, root});
  };
  api.ncclAllGather = [&s, p](const void* in, void* out, std::size_t count, NcclType type, Comm c,
                              Stream stream) {
    return enqueue(s, p, "ncclAllGather", c, stream, {Kind::kAllGather, in, out, count, type});
  };
  api.ncclSend = [&s, p](const void* in, std::size_t count, NcclType type, int peer, Comm c, Stream stream) {
    return enqueue(s, p, "ncclSend", c, stream,
                   {Kind::kSend, in, nullptr, count, type, NcclOp::kSum, 1, peer});
  };
  api.ncclRecv = [&s, p](void* out, std::size_t count, NcclType type, int peer, Comm c, Stream stream) {
    return enqueue(s, p, "ncclRecv", c, stream,
                   {Kind::kRecv, nullptr, out, count, type, NcclOp::kSum, 1, peer});
  };
  api.ncclRedOpCreatePreMulSum = [&s, p](NcclOp* op, void* scalar, NcclType type, Comm handle) {
    if (const int code = s.enter(p, "ncclRedOpCreatePreMulSum")) return code;
    const auto comm = find(s, handle, "ncclRedOpCreatePreMulSum");
    if (!comm) return kInvalidArgument;
    const std::lock_guard hold(s.mutex);
    int number = 5;
    while (comm->operators.count(number) != 0) ++number;
    with_element(dtype_of(type), [&](auto element) {
      typename decltype(element)::Stored stored;
      std::memcpy(&stored, scalar, sizeof stored);
      comm->operators[number] = static_cast<double>(element.load(stored));
    });
    *op = static_cast<NcclOp>(number);
    return kNcclSuccess;
  };
  api.ncclRedOpDestroy = [&s, p](NcclOp op, Comm handle) {
    if (const int code = s.enter(p, "ncclRedOpDestroy")) return code;
    const auto comm = find(s, handle, "ncclRedOpDestroy");
    if (!comm) return kInvalidArgument;
    const std::lock_guard hold(s.mutex);
    return comm->operators.erase(static_cast<int>(op)) == 1 ? kNcclSuccess : kInvalidArgument;
  };
}

int poll(DoubleState& s, int p, Comm handle, int* code) {
  if (const int failed = s.enter(p, "ncclCommGetAsyncError")) return failed;
  const auto comm = find(s, handle, "ncclCommGetAsyncError");
  if (!comm) return kInvalidArgument;
  const std::lock_guard hold(s.mutex);
  *code = comm->error;
  return kNcclSuccess;
}

/// Waits until the kernels of a communicator have left their streams.
void await_quiet(DoubleState& s, DoubleComm& comm, const char* name) {
  std::unique_lock hold(comm.world->mutex);
  if (!comm.world->changed.wait_for(hold, kForever, [&] { return comm.running == 0; }))
    s.note(std::string(name) + " waits for a kernel that never ends: the real one would forever");
}

/// Ends the attempt to make it, if that goes on.
void abandon(DoubleComm& comm) {
  const std::lock_guard hold(comm.world->mutex);
  if (comm.world->joined == comm.world->size) return;
  comm.stopped = true;
  comm.world->changed.notify_all();
}

/// Does `end` at the end of the group, if there is one.
void at_group_end(std::function<void()> end) {
  if (group_depth > 0) {
    ends.push_back(std::move(end));
  } else {
    end();
  }
}

void fill_life(DoubleState& s, int p, NcclApi& api) {
  api.ncclGetUniqueId = [&s, p](UniqueId* id) {
    if (const int code = s.enter(p, "ncclGetUniqueId")) return code;
    const std::lock_guard hold(s.mutex);
    const int number = s.next_id++;
    std::memcpy(id->bytes.data(), &number, sizeof number);
    return kNcclSuccess;
  };
  api.allow_shared_gpu = [&s, p](int) {
    const std::lock_guard hold(s.mutex);
    s.shares_gpu.insert(p);
  };
  api.ncclCommInitRankConfig = [&s, p](Comm* made, int ranks, const UniqueId& id, int rank, int blocking) {
    if (const int code = s.enter(p, "ncclCommInitRankConfig")) return code;
    int number = 0;
    std::memcpy(&number, id.bytes.data(), sizeof number);
    std::shared_ptr<World> world;
    {
      const std::lock_guard hold(s.mutex);
      auto& found = s.worlds[number];
      if (!found) found = std::make_shared<World>(ranks);
      world = found;
    }
    if (world->size != ranks || rank < 0 || rank >= ranks) return kInvalidArgument;
    const auto comm = add_comm(s, std::move(world), rank, p, blocking);
    const Inside inside(comm);
    give(comm, made);
    {
      const std::lock_guard hold(s.mutex);
      if (s.one_gpu && ranks > 1 && s.shares_gpu.count(p) == 0) return kInvalidUsage;
    }
    return await_joined(*comm);
  };
  api.ncclCommGetAsyncError = [&s, p](Comm comm, int* code) { return poll(s, p, comm, code); };
  api.ncclCommFinalize = [&s, p](Comm handle) {
    if (const int code = s.enter(p, "ncclCommFinalize")) return code;
    const auto comm = find(s, handle, "ncclCommFinalize");
    if (!comm) return kInvalidArgument;
    {
      const std::lock_guard hold(s.mutex);
      if (comm->revoked) s.misuse.push_back("ncclCommFinalize of a communicator that is revoked");
      comm->finalized = true;
    }
    at_group_end([&s, comm] { await_quiet(s, *comm, "ncclCommFinalize"); });
    return kNcclSuccess;
  };
  const auto free_it = [&s](const std::shared_ptr<DoubleComm>& comm) {
    {
      const std::lock_guard hold(comm->world->mutex);
      if (comm->inside > 0) s.note("a communicator is freed while a call is in it");
    }
    await_quiet(s, *comm, "ncclCommAbort");
    const auto handle = handle_of(comm);
    const std::lock_guard hold(s.mutex);
    comm->gone = true;
    std::erase_if(s.registrations, [&](const auto& entry) { return entry.second == handle; });
    s.comms.erase(handle);
  };
  /// The communicator, which nobody else may end. `at_once`: and no other call may use from now on; else they
  /// may until it is freed, and fail.
  const auto close = [&s](const char* name, Comm handle, bool at_once) {
    auto comm = find(s, handle, name);
    const std::lock_guard hold(s.mutex);
    if (comm && comm->ending)
      s.misuse.push_back(std::string(name) + " on a communicator that is being ended");
    if (comm) comm->ending = true;
    if (comm && at_once) comm->gone = true;
    return comm;
  };
  api.ncclCommDestroy = [&s, p, free_it, close](Comm handle) {
    if (const int code = s.enter(p, "ncclCommDestroy")) return code;
    const auto comm = close("ncclCommDestroy", handle, true);
    if (!comm) return kInvalidArgument;
    if (!comm->finalized) s.note("ncclCommDestroy before ncclCommFinalize");
    if (s.version >= kVersionOfWaitingDestroy) {
      World& world = *comm->world;
      std::unique_lock hold(world.mutex);
      world.destroyed.insert(comm->rank);
      world.changed.notify_all();
      const auto all = [&] { return static_cast<int>(world.destroyed.size()) == world.size; };
      world.changed.wait_for(hold, kForever, [&] { return all() || world.aborted; });
      if (!all()) s.note("ncclCommDestroy waits for a rank that never comes: the real one would forever");
    }
    free_it(comm);
    return kNcclSuccess;
  };
  api.ncclCommAbort = [&s, p, free_it, close](Comm handle) {
    if (const int code = s.enter(p, "ncclCommAbort")) return code;
    const auto comm = close("ncclCommAbort", handle, group_depth == 0);
    if (!comm) return kInvalidArgument;
    std::shared_ptr<DoubleComm> child;
    {
      const std::lock_guard hold(s.mutex);
      child = comm->child.lock();
    }
    stop(*comm);
    if (child) abandon(*child);
    {
      const std::lock_guard hold(comm->world->mutex);
      comm->world->aborted = true;
      comm->world->changed.notify_all();
    }
    at_group_end([=] { free_it(comm); });
    return kNcclSuccess;
  };
  if (s.version >= nccl::kVersionOfRevoke) {
    api.ncclCommRevoke = [&s, p](Comm handle) {
      if (const int code = s.enter(p, "ncclCommRevoke")) return code;
      const auto comm = find(s, handle, "ncclCommRevoke");
      if (!comm) return kInvalidArgument;
      {
        const std::lock_guard hold(s.mutex);
        const std::lock_guard inner(comm->world->mutex);
        if (comm->inside > 0 || comm->finalized || comm->revoked) {
          s.misuse.push_back("ncclCommRevoke of a communicator that a call is in, or that has ended");
          return kInvalidUsage;
        }
        comm->revoked = true;
      }
      stop(*comm);
      at_group_end([&s, comm] { await_quiet(s, *comm, "ncclCommRevoke"); });
      return kNcclSuccess;
    };
  }
}

}  // namespace

void fill_nccl(DoubleState& s, int p, NcclApi& api) {
  api.version = s.version;
  api.ncclGetErrorString = [](int) { return "an error of the double"; };
  api.ncclGetLastError = [](Comm) { return "the last error of the double"; };
  fill_life(s, p, api);
  fill_operations(s, p, api);
  fill_membership(s, p, api);
  fill_memory(s, p, api);
}

}  // namespace troupe::collectives::testing
