#include "collectives/nccl/group.hpp"

#include <cstring>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {
namespace {

/// REQUIRES: nccl_reduces some operation of it.
NcclType type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return NcclType::kFloat64;
    case DType::kFloat32:
      return NcclType::kFloat32;
    case DType::kFloat16:
      return NcclType::kFloat16;
    case DType::kBFloat16:
      return NcclType::kBfloat16;
    case DType::kInt8:
      return NcclType::kInt8;
    case DType::kInt32:
      return NcclType::kInt32;
    case DType::kInt64:
      return NcclType::kInt64;
    default:
      return NcclType::kUint8;
  }
}

NcclOp op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAvg:
      return NcclOp::kAvg;
    case ReduceOp::kProduct:
      return NcclOp::kProd;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    default:
      return NcclOp::kSum;
  }
}

std::vector<Stream> streams_of(const Buffer& a, const Buffer& b) {
  if (a.stream == b.stream) return {a.stream};
  return {a.stream, b.stream};
}

std::size_t bytes_of(const Buffer& buffer) {
  return buffer.count * element_size(buffer.dtype);
}

std::byte* part(void* data, int index, std::size_t bytes) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(index) * bytes;
}

}  // namespace

// How it is done.

template <class Enqueue>
std::shared_ptr<Work> NcclGroup::operate(Call call, std::vector<Stream> joined, Enqueue enqueue,
                                         bool on_host) {
  if (messages_) messages_->flush();
  core_->check();
  call.sequence = ++sequence_;
  Flight flight{.call = call, .joined = std::move(joined)};
  auto launched = launch(*core_, *collectives_, std::move(flight), [&](const std::shared_ptr<Flight>& f) {
    if (call_check_) call_check_->ride(*core_, f);
    enqueue();
  });
  return std::make_shared<NcclWork>(
      core_, messages_, [launched] { return launched; }, on_host || options_.host_wait);
}

void NcclGroup::copy(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  CUDA_TRY(core_->facts().caller, core_->api().cuda.cudaMemcpyAsync(to, from, bytes, collectives_->stream()));
}

template <class Calls>
void NcclGroup::reduce_fast(DType dtype, const Reduction& how, Calls calls) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  NcclOp op = op_of(how.op);
  const bool made = how.op == ReduceOp::kPremulSum;
  if (made) {
    std::byte scalar[8] = {};
    with_element(dtype, [&](auto element) {
      using Element = decltype(element);
      const auto stored = Element::store(static_cast<typename Element::Value>(how.factor));
      std::memcpy(scalar, &stored, sizeof stored);
    });
    collectives_->with([&](Comm comm) {
      NCCL_TRY(caller, api.ncclRedOpCreatePreMulSum(&op, scalar, type_of(dtype), comm));
    });
  }
  collectives_->issue([&](Comm comm) { calls(op, comm); });
  if (made) {
    collectives_->with([&](Comm comm) { NCCL_TRY(caller, api.ncclRedOpDestroy(op, comm)); });
  }
}

/// Every rank's `own` part to its place in the root's `parts`, or back.
void NcclGroup::between_root(int root, void* parts, void* own, std::size_t bytes, bool to_root) {
  if (bytes == 0) return;
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  collectives_->issue([&](Comm comm) {
    const auto move = [&](void* data, int peer, bool sends) {
      if (sends) {
        NCCL_TRY(caller, api.ncclSend(data, bytes, NcclType::kUint8, peer, comm, collectives_->stream()));
      } else {
        NCCL_TRY(caller, api.ncclRecv(data, bytes, NcclType::kUint8, peer, comm, collectives_->stream()));
      }
    };
    if (rank() != root) return move(own, root, to_root);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != root) move(part(parts, peer, bytes), peer, !to_root);
    }
  });
  if (rank() != root) return;
  std::byte* mine = part(parts, root, bytes);
  if (to_root) {
    copy(mine, own, bytes);
  } else {
    copy(own, mine, bytes);
  }
}

// The operations.

std::shared_ptr<Work> NcclGroup::all_reduce_tree(const TreeBuffer& buffer, Reduction how) {
  check_reduction(called("all_reduce_tree"), buffer.dtype, how, true);
  const auto index = static_cast<std::size_t>(buffer.index);
  if (buffer.index < 0 || index >= trees_.size() || trees_[index].partials != buffer.partials ||
      trees_[index].count != buffer.count || trees_[index].dtype != buffer.dtype) {
    refuse("all_reduce_tree", "the buffer is not one of its own",
           "use what allocate_tree returned, unchanged");
  }
  const Call call{.kind = CallKind::kAllReduceTree,
                  .dtype = buffer.dtype,
                  .how = how,
                  .root = buffer.index,
                  .count = buffer.count};
  return operate(call, {buffer.stream}, [&] {
    exact_->all_reduce(exact_->on_leaves(),
                       {.partials = {buffer.partials.begin(), buffer.partials.end()},
                        .count = buffer.count,
                        .dtype = buffer.dtype,
                        .how = how},
                       buffer.partials.front());
  });
}

std::shared_ptr<Work> NcclGroup::all_reduce(const Buffer& buffer, Reduction how) {
  check_buffer("all_reduce", "buffer", buffer);
  check_reduction(called("all_reduce"), buffer.dtype, how);
  const Call call{.kind = CallKind::kAllReduce, .dtype = buffer.dtype, .how = how, .count = buffer.count};
  return operate(call, {buffer.stream}, [&] {
    if (buffer.count == 0) return;
    auto* data = static_cast<std::byte*>(buffer.data);
    if (how.exact || !nccl_reduces(buffer.dtype, how.op)) {
      return exact_->all_reduce(exact_->on_ranks(), {{data}, buffer.count, buffer.dtype, how}, data);
    }
    reduce_fast(buffer.dtype, how, [&](NcclOp op, Comm comm) {
      NCCL_TRY(core_->facts().caller,
               core_->api().nccl.ncclAllReduce(data, data, buffer.count, type_of(buffer.dtype), op, comm,
                                               collectives_->stream()));
    });
  });
}

std::shared_ptr<Work> NcclGroup::reduce(const Buffer& buffer, Reduction how, int root) {
  check_buffer("reduce", "buffer", buffer);
  check_reduction(called("reduce"), buffer.dtype, how);
  check_rank(called("reduce"), "root", root);
  const Call call{
      .kind = CallKind::kReduce, .dtype = buffer.dtype, .how = how, .root = root, .count = buffer.count};
  return operate(call, {buffer.stream}, [&] {
    if (buffer.count == 0) return;
    auto* data = static_cast<std::byte*>(buffer.data);
    if (how.exact || !nccl_reduces(buffer.dtype, how.op)) {
      return exact_->reduce(exact_->on_ranks(), {{data}, buffer.count, buffer.dtype, how}, data, root);
    }
    reduce_fast(buffer.dtype, how, [&](NcclOp op, Comm comm) {
      NCCL_TRY(core_->facts().caller,
               core_->api().nccl.ncclReduce(data, data, buffer.count, type_of(buffer.dtype), op, root, comm,
                                            collectives_->stream()));
    });
  });
}

std::shared_ptr<Work> NcclGroup::reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) {
  check_parts("reduce_scatter", Parts::kScattered, input, output);
  check_reduction(called("reduce_scatter"), input.dtype, how);
  const Call call{.kind = CallKind::kReduceScatter, .dtype = input.dtype, .how = how, .count = output.count};
  return operate(call, streams_of(input, output), [&] {
    if (input.count == 0) return;
    if (how.exact || !nccl_reduces(input.dtype, how.op)) {
      return exact_->reduce_scatter(exact_->on_ranks(),
                                    {{static_cast<std::byte*>(input.data)}, input.count, input.dtype, how},
                                    static_cast<std::byte*>(output.data));
    }
    reduce_fast(input.dtype, how, [&](NcclOp op, Comm comm) {
      NCCL_TRY(core_->facts().caller,
               core_->api().nccl.ncclReduceScatter(input.data, output.data, output.count,
                                                   type_of(input.dtype), op, comm, collectives_->stream()));
    });
  });
}

std::shared_ptr<Work> NcclGroup::broadcast(const Buffer& buffer, int root) {
  check_buffer("broadcast", "buffer", buffer);
  check_rank(called("broadcast"), "root", root);
  const Call call{.kind = CallKind::kBroadcast, .dtype = buffer.dtype, .root = root, .count = buffer.count};
  return operate(call, {buffer.stream}, [&] {
    if (buffer.count == 0) return;
    collectives_->issue([&](Comm comm) {
      NCCL_TRY(core_->facts().caller,
               core_->api().nccl.ncclBroadcast(buffer.data, buffer.data, bytes_of(buffer), NcclType::kUint8,
                                               root, comm, collectives_->stream()));
    });
  });
}

std::shared_ptr<Work> NcclGroup::all_gather(const Buffer& input, const Buffer& output) {
  check_parts("all_gather", Parts::kGathered, input, output);
  const Call call{.kind = CallKind::kAllGather, .dtype = input.dtype, .count = input.count};
  return operate(call, streams_of(input, output), [&] {
    if (input.count == 0) return;
    collectives_->issue([&](Comm comm) {
      NCCL_TRY(core_->facts().caller,
               core_->api().nccl.ncclAllGather(input.data, output.data, bytes_of(input), NcclType::kUint8,
                                               comm, collectives_->stream()));
    });
  });
}

std::shared_ptr<Work> NcclGroup::gather(const Buffer& input, const Buffer& output, int root) {
  check_rank(called("gather"), "root", root);
  const bool is_root = rank() == root;
  if (is_root) {
    check_parts("gather", Parts::kGathered, input, output);
  } else {
    check_buffer("gather", "input", input);
  }
  const Call call{.kind = CallKind::kGather, .dtype = input.dtype, .root = root, .count = input.count};
  const auto joined = is_root ? streams_of(input, output) : std::vector<Stream>{input.stream};
  return operate(call, joined, [&] { between_root(root, output.data, input.data, bytes_of(input), true); });
}

std::shared_ptr<Work> NcclGroup::scatter(const Buffer& input, const Buffer& output, int root) {
  check_rank(called("scatter"), "root", root);
  const bool is_root = rank() == root;
  if (is_root) {
    check_parts("scatter", Parts::kScattered, input, output);
  } else {
    check_buffer("scatter", "output", output);
  }
  const Call call{.kind = CallKind::kScatter, .dtype = output.dtype, .root = root, .count = output.count};
  const auto joined = is_root ? streams_of(input, output) : std::vector<Stream>{output.stream};
  return operate(call, joined, [&] { between_root(root, input.data, output.data, bytes_of(output), false); });
}

std::shared_ptr<Work> NcclGroup::all_to_all(const Buffer& input, const Buffer& output) {
  const std::size_t count = check_parts("all_to_all", Parts::kExchanged, input, output);
  const Call call{.kind = CallKind::kAllToAll, .dtype = input.dtype, .count = count};
  return operate(call, streams_of(input, output), [&] {
    const std::size_t bytes = count * element_size(input.dtype);
    if (bytes == 0) return;
    const Caller& caller = core_->facts().caller;
    const NcclApi& api = core_->api().nccl;
    collectives_->issue([&](Comm comm) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        NCCL_TRY(caller, api.ncclSend(part(input.data, peer, bytes), bytes, NcclType::kUint8, peer, comm,
                                      collectives_->stream()));
        NCCL_TRY(caller, api.ncclRecv(part(output.data, peer, bytes), bytes, NcclType::kUint8, peer, comm,
                                      collectives_->stream()));
      }
    });
    copy(part(output.data, rank(), bytes), part(input.data, rank(), bytes), bytes);
  });
}

std::shared_ptr<Work> NcclGroup::barrier() {
  const bool on_host = true;  // its result is that the host goes on
  return operate(
      {.kind = CallKind::kBarrier}, {},
      [&] {
        std::byte* at = barrier_byte_->get(1);
        collectives_->issue([&](Comm comm) {
          NCCL_TRY(core_->facts().caller,
                   core_->api().nccl.ncclAllReduce(at, at, 1, NcclType::kUint8, NcclOp::kSum, comm,
                                                   collectives_->stream()));
        });
      },
      on_host);
}

std::shared_ptr<Work> NcclGroup::message(const char* operation, const Buffer& buffer, int peer,
                                         std::uint32_t tag, bool sends) {
  check_rank(called(operation), sends ? "to" : "from", peer);
  check_buffer(operation, "buffer", buffer);
  if (tag != 0) refuse(operation, "NCCL matches messages by their order and knows no tags", "use tag 0");
  if (peer == rank()) refuse(operation, "rank " + std::to_string(peer) + " is this rank", "copy instead");
  if (!messages_) {
    throw BadConfig(std::string("cannot ") + operation, "the group was made without messages",
                    "set NcclGroupOptions::messages on every rank");
  }
  return messages_->add(buffer, peer, sends, options_.host_wait);
}

std::shared_ptr<Work> NcclGroup::send(const Buffer& buffer, int to, std::uint32_t tag) {
  return message("send", buffer, to, tag, true);
}

std::shared_ptr<Work> NcclGroup::recv(const Buffer& buffer, int from, std::uint32_t tag) {
  return message("recv", buffer, from, tag, false);
}

}  // namespace troupe::collectives::nccl
