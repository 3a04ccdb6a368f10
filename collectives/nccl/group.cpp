#include "collectives/nccl/group.hpp"

#include <cstring>
#include <numeric>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {
namespace {

/// REQUIRES: NCCL reduces it by some operation.
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

/// Whether our kernel adds up, in tree order: when asked to, and where NCCL does not reduce the dtype like
/// this.
bool is_exact(const Op& op) {
  if (!reduces(op.kind)) return false;
  const bool lacks_dtype = op.dtype == DType::kInt16 || op.dtype >= DType::kBool;
  const bool lacks_op =
      op.how.op == ReduceOp::kBand || op.how.op == ReduceOp::kBor || op.how.op == ReduceOp::kBxor;
  return op.kind == OpKind::kAllReduceTree || op.kind == OpKind::kReduceScatterV || op.how.exact ||
         lacks_dtype || lacks_op;
}

std::vector<std::size_t> equal_parts(const Op& op, int ranks) {
  return std::vector<std::size_t>(static_cast<std::size_t>(ranks), op.count);
}

/// What goes between two ranks of an operation that is messages: bytes from the start of the buffer on.
struct Part {
  std::size_t at = 0;
  std::size_t bytes = 0;
};
Part part_of(const Op& op, const std::vector<std::size_t>& counts, int rank) {
  const auto end = counts.begin() + rank;
  const std::size_t element = element_size(op.dtype);
  return {std::accumulate(counts.begin(), end, std::size_t{0}) * element, *end * element};
}
Part equal_part(const Op& op, int rank) {
  return {static_cast<std::size_t>(rank) * op.bytes(), op.bytes()};
}

/// What `rank` gives `peer`.
Part given(const Op& op, int rank, int peer) {
  switch (op.kind) {
    case OpKind::kAllToAllV:
      return part_of(op, op.counts, peer);
    case OpKind::kAllGatherV:
      return {0, part_of(op, op.counts, rank).bytes};
    case OpKind::kAllToAll:
      return equal_part(op, peer);
    case OpKind::kScatter:
      return rank == op.peer ? equal_part(op, peer) : Part{};
    case OpKind::kGather:
      return peer == op.peer ? Part{0, op.bytes()} : Part{};
    default:
      return {};
  }
}

/// What `rank` takes from `peer`.
Part taken(const Op& op, int rank, int peer) {
  switch (op.kind) {
    case OpKind::kAllToAllV:
      return part_of(op, op.from_counts, peer);
    case OpKind::kAllGatherV:
      return part_of(op, op.counts, peer);
    case OpKind::kAllToAll:
      return equal_part(op, peer);
    case OpKind::kScatter:
      return peer == op.peer ? Part{0, op.bytes()} : Part{};
    case OpKind::kGather:
      return rank == op.peer ? equal_part(op, peer) : Part{};
    default:
      return {};
  }
}

/// NCCL's operator while it lives: premul-sum's has to be made.
class Operator {
 public:
  Operator(const Caller& caller, Communicator& communicator, const Op& op)
      : caller_(caller), communicator_(communicator), op_(op_of(op.how.op)) {
    if (!reduces(op.kind) || op.how.op != ReduceOp::kPremulSum) return;
    std::byte scalar[16] = {};
    kernel::with_element(op.dtype, [&]<class Element>(Element) {
      const auto stored = Element::store(static_cast<typename Element::Value>(op.how.factor));
      std::memcpy(scalar, &stored, sizeof stored);
    });
    communicator_.with([&](Comm comm) {
      NCCL_TRY(caller_, caller_.api->nccl.ncclRedOpCreatePreMulSum(&op_, scalar, type_of(op.dtype), comm));
    });
    made_ = true;
  }
  /// Not a destructor, since it may throw: what failed has failed the communicator, too.
  void destroy() {
    if (!made_) return;
    communicator_.with([&](Comm comm) { NCCL_TRY(caller_, caller_.api->nccl.ncclRedOpDestroy(op_, comm)); });
  }
  operator NcclOp() const { return op_; }

 private:
  const Caller& caller_;
  Communicator& communicator_;
  NcclOp op_;
  bool made_ = false;
};

}  // namespace

void NcclGroup::check_has(const Op& op) const {
  if (op.kind == OpKind::kRecv && op.peer == kAnyRank) refuse("receive from any rank");
  if (op.timeout > Duration::zero()) refuse("give a call a timeout of its own");
}

std::shared_ptr<Work> NcclGroup::launch(std::span<const Op> operations) {
  std::vector<std::shared_ptr<Work>> works(operations.size());
  std::vector<Op> collectives;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Op& op = operations[i];
    if (is_message(op.kind)) {
      works[i] = message(op);
    } else if (call_check_) {  // which compares one call at a time
      works[i] = collective(operations.subspan(i, 1));
    } else {
      collectives.push_back(op);
    }
  }
  const auto together = collectives.empty() ? nullptr : collective(collectives);
  for (auto& work : works) {
    if (!work) work = together;
  }
  return joined(std::move(works));
}

std::shared_ptr<Work> NcclGroup::message(const Op& op) {
  const auto refuse_it = [&](std::string why, std::string todo) {
    throw_error(
        {ErrorCode::kBadInput, "cannot " + std::string(name_of(op.kind)), std::move(why), std::move(todo)});
  };
  if (op.tag != 0) refuse_it("NCCL matches messages by their order and knows no tags", "use tag 0");
  if (op.peer == rank()) refuse_it("rank " + std::to_string(op.peer) + " is this rank", "copy instead");
  if (!messages_) {
    throw BadConfig("cannot " + std::string(name_of(op.kind)), "the group was made without messages",
                    "set NcclGroupOptions::messages on every rank");
  }
  return messages_->add(op);
}

std::shared_ptr<Work> NcclGroup::collective(std::span<const Op> ops) {
  if (messages_) messages_->flush();
  const auto pending = std::make_shared<PendingOp>(core_, messages_, kCollectives);
  for (const Op& op : ops) pending->add(op);
  nccl::launch(*core_, *collectives_, pending, [&] {
    if (call_check_ && !pending->is_captured) call_check_->ride(*core_, pending);
    for (std::size_t i = 0; i < ops.size();) {
      if (is_exact(ops[i])) {
        reduce_exactly(ops[i++]);
        continue;
      }
      std::size_t end = i;
      while (end < ops.size() && !is_exact(ops[end])) ++end;
      enqueue(ops.subspan(i, end - i));
      i = end;
    }
  });
  return pending;
}

void NcclGroup::reduce_exactly(const Op& op) {
  ExactPath::Input input{{op.in()}, op.input.count, op.dtype, op.how};
  switch (op.kind) {
    case OpKind::kAllReduceTree:
      input.partials.assign(tree_of(op).partials.begin(), tree_of(op).partials.end());
      return exact_->all_reduce(exact_->on_leaves(), input, op.out());
    case OpKind::kAllReduce:
      return exact_->all_reduce(exact_->on_ranks(), input, op.out());
    case OpKind::kReduce:
      return exact_->reduce(exact_->on_ranks(), input, op.out(), op.peer);
    case OpKind::kReduceScatterV:
      return exact_->reduce_scatter(exact_->on_ranks(), input, op.counts, op.out());
    default:
      return exact_->reduce_scatter(exact_->on_ranks(), input, equal_parts(op, size()), op.out());
  }
}

/// What NCCL does by itself, as one group of calls.
void NcclGroup::enqueue(std::span<const Op> ops) {
  const Caller& caller = core_->facts().caller;
  std::vector<Operator> operators;
  bool any = false;
  for (const Op& op : ops) {
    operators.emplace_back(caller, *collectives_, op);
    any = any || op.count != 0 || has_counts(op.kind) || op.kind == OpKind::kBarrier;
  }
  if (any) {
    collectives_->issue([&](Comm comm) {
      for (std::size_t i = 0; i < ops.size(); ++i) call_nccl(ops[i], operators[i], comm);
    });
  }
  for (const Op& op : ops) copy_own_part(op);
  for (Operator& made : operators) made.destroy();
}

void NcclGroup::call_nccl(const Op& op, NcclOp by, Comm comm) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  const Stream stream = collectives_->stream();
  const std::size_t bytes = op.bytes();
  if (op.kind == OpKind::kBarrier) {
    NCCL_TRY(caller, api.ncclAllReduce(barrier_byte_, barrier_byte_, 1, NcclType::kUint8, NcclOp::kSum, comm,
                                       stream));
    return;
  }
  if (op.count == 0 && !has_counts(op.kind)) return;
  const NcclType type = type_of(op.dtype);
  switch (op.kind) {
    case OpKind::kAllReduce:
      NCCL_TRY(caller, api.ncclAllReduce(op.in(), op.out(), op.count, type, by, comm, stream));
      return;
    case OpKind::kReduce:  // the output is looked at on the root alone
      NCCL_TRY(caller, api.ncclReduce(op.in(), op.input.data, op.count, type, by, op.peer, comm, stream));
      return;
    case OpKind::kReduceScatter:
      NCCL_TRY(caller, api.ncclReduceScatter(op.in(), op.out(), op.count, type, by, comm, stream));
      return;
    case OpKind::kBroadcast:
      NCCL_TRY(caller, api.ncclBroadcast(op.in(), op.out(), bytes, NcclType::kUint8, op.peer, comm, stream));
      return;
    case OpKind::kAllGather:
      NCCL_TRY(caller, api.ncclAllGather(op.in(), op.out(), bytes, NcclType::kUint8, comm, stream));
      return;
    default:
      break;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (const Part part = given(op, rank(), peer); part.bytes != 0)
      NCCL_TRY(caller, api.ncclSend(op.in() + part.at, part.bytes, NcclType::kUint8, peer, comm, stream));
    if (const Part part = taken(op, rank(), peer); part.bytes != 0)
      NCCL_TRY(caller, api.ncclRecv(op.out() + part.at, part.bytes, NcclType::kUint8, peer, comm, stream));
  }
}

void NcclGroup::copy_own_part(const Op& op) {
  const Part from = given(op, rank(), rank()), to = taken(op, rank(), rank());
  if (from.bytes == 0 || op.in() + from.at == op.out() + to.at) return;
  CUDA_TRY(core_->facts().caller, core_->api().cuda.cudaMemcpyAsync(op.out() + to.at, op.in() + from.at,
                                                                    from.bytes, collectives_->stream()));
}

}  // namespace troupe::collectives::nccl
