#include "collectives/mpi/mpi_group.hpp"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "collectives/mpi/mpi_progress.hpp"
#include "collectives/mpi/mpi_runtime.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxCount = std::numeric_limits<int>::max();  // MPI 3 counts in int

/// A copy of a communicator, of this group alone.
struct Communicator {
  MPI_Comm handle = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::uint32_t max_tag = 0;
};

int narrow(std::size_t count) {
  if (count > kMaxCount) {
    throw_error({ErrorCode::kLimit,
                 "an operation on " + std::to_string(count) + " elements a rank is too large",
                 "MPI counts to 2^31 - 1", "split it"});
  }
  return static_cast<int>(count);
}

template <class Call, class... Arguments>
MPI_Request begin(const char* name, Call call, Arguments... arguments) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(call(arguments..., &request), name);
  return request;
}

/// While it lives, calls on a communicator of somebody else return their errors, which end the process by
/// default.
class ReturnedErrors {
 public:
  explicit ReturnedErrors(MPI_Comm comm) : comm_(comm) {
    check_mpi(MPI_Comm_get_errhandler(comm_, &before_), "MPI_Comm_get_errhandler");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~ReturnedErrors() {
    MPI_Comm_set_errhandler(comm_, before_);
    MPI_Errhandler_free(&before_);
  }
  ReturnedErrors(const ReturnedErrors&) = delete;
  ReturnedErrors& operator=(const ReturnedErrors&) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

/// Its calls return their errors.
Communicator copy_of(MPI_Comm original, Duration timeout) {
  Communicator copy;
  check_mpi(MPI_Comm_rank(original, &copy.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(original, &copy.size), "MPI_Comm_size");
  // MPI writes the handle when the last rank has come, perhaps long after this has thrown.
  struct Pending {
    MPI_Comm handle = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto pending = std::make_unique<Pending>();
  check_mpi(MPI_Comm_idup(original, &pending->handle, &pending->request), "MPI_Comm_idup");
  const MonotonicClock clock;
  const Instant begun = clock.now();
  int done = 0;
  while (true) {
    check_mpi(MPI_Test(&pending->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (clock.now() - begun >= timeout) {
      keep_mpi_from_finalizing();
      (void)pending.release();
      throw Timeout(
          {ErrorCode::kTimeout,
           "rank " + std::to_string(copy.rank) + " cannot make its process group of the backend mpi",
           "not all ranks of the communicator have come in time",
           "call make_mpi_group on all of them, or raise the timeout"});
    }
    std::this_thread::yield();
  }
  copy.handle = pending->handle;
  check_mpi(MPI_Comm_set_errhandler(copy.handle, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int* most = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(copy.handle, MPI_TAG_UB, static_cast<void*>(&most), &known),
            "MPI_Comm_get_attr");
  copy.max_tag = known != 0 ? static_cast<std::uint32_t>(*most) : 32767;  // what the standard promises
  return copy;
}

/// Counts as MPI takes them, which keeps the arrays until the operation is complete.
struct Parts {
  explicit Parts(const std::vector<std::size_t>& all) {
    std::size_t at = 0;
    for (const std::size_t n : all) {
      counts.push_back(narrow(n));
      before.push_back(narrow(at));
      at += n;
    }
  }
  std::vector<int> counts, before;
};

/// The steps of calls on one communicator.
class Steps {
 public:
  explicit Steps(MPI_Comm comm) : comm_(comm) {}

  std::vector<MpiStep> of_exact(const Op& call, const std::shared_ptr<ExactReduction>& exact) const {
    const MPI_Datatype type = carrier_type(call.dtype);
    std::vector<MpiStep> steps;
    steps.emplace_back([comm = comm_, type, exact] {
      const Exchange e = exact->slices();
      const int n = narrow(e.block);
      return begin("MPI_Ialltoall", MPI_Ialltoall, e.from, n, type, e.to, n, type, comm);
    });
    if (call.kind == OpKind::kReduceScatter) return steps;  // which its finish adds up
    steps.emplace_back([comm = comm_, type, exact, root = call.peer, one = call.kind == OpKind::kReduce] {
      exact->sum();
      const Exchange e = exact->collect();
      const int n = narrow(e.block);
      if (one) return begin("MPI_Igather", MPI_Igather, e.from, n, type, e.to, n, type, root, comm);
      return begin("MPI_Iallgather", MPI_Iallgather, e.from, n, type, e.to, n, type, comm);
    });
    return steps;
  }

  MpiStep of_reduction(const Op& c, MpiReduction how, bool is_root) const {
    const int n = narrow(c.count);
    switch (c.kind) {
      case OpKind::kAllReduce:
        return [comm = comm_, c, n, how] {
          return begin("MPI_Iallreduce", MPI_Iallreduce, MPI_IN_PLACE, c.out(), n, how.type, how.op, comm);
        };
      case OpKind::kReduce:
        return [comm = comm_, c, n, how, is_root] {
          const void* from = is_root ? MPI_IN_PLACE : c.in();
          return begin("MPI_Ireduce", MPI_Ireduce, from, c.out(), n, how.type, how.op, c.peer, comm);
        };
      default:
        return [comm = comm_, c, n, how] {
          return begin("MPI_Ireduce_scatter_block", MPI_Ireduce_scatter_block, c.in(), c.out(), n, how.type,
                       how.op, comm);
        };
    }
  }

  /// `in_place`: of the root of a gather or scatter.
  MpiStep of_move(const Op& c, bool in_place) const {
    const bool exchanges = c.kind == OpKind::kAllToAllV;
    const auto gives = std::make_shared<Parts>(exchanges ? c.counts : std::vector<std::size_t>{});
    const auto gets = std::make_shared<Parts>(exchanges ? c.from_counts : c.counts);
    const int own = c.kind == OpKind::kAllGatherV ? narrow(c.input.count) : 0;
    return [comm = comm_, c, in_place, n = narrow(c.count), type = carrier_type(c.dtype), gives, gets, own] {
      const int tag = static_cast<int>(c.tag);
      const void* from = in_place ? MPI_IN_PLACE : c.in();
      switch (c.kind) {
        case OpKind::kBroadcast:
          return begin("MPI_Ibcast", MPI_Ibcast, c.out(), n, type, c.peer, comm);
        case OpKind::kGather:
          return begin("MPI_Igather", MPI_Igather, from, n, type, c.out(), n, type, c.peer, comm);
        case OpKind::kScatter:
          return begin("MPI_Iscatter", MPI_Iscatter, c.in(), n, type, in_place ? MPI_IN_PLACE : c.out(), n,
                       type, c.peer, comm);
        case OpKind::kAllGather:
          return begin("MPI_Iallgather", MPI_Iallgather, c.in(), n, type, c.out(), n, type, comm);
        case OpKind::kAllToAll:
          return begin("MPI_Ialltoall", MPI_Ialltoall, c.in(), n, type, c.out(), n, type, comm);
        case OpKind::kAllGatherV:
          return begin("MPI_Iallgatherv", MPI_Iallgatherv, c.in(), own, type, c.out(), gets->counts.data(),
                       gets->before.data(), type, comm);
        case OpKind::kAllToAllV:
          return begin("MPI_Ialltoallv", MPI_Ialltoallv, c.in(), gives->counts.data(), gives->before.data(),
                       type, c.out(), gets->counts.data(), gets->before.data(), type, comm);
        case OpKind::kSend:
          return begin("MPI_Isend", MPI_Isend, c.in(), n, type, c.peer, tag, comm);
        case OpKind::kRecv:
          return begin("MPI_Irecv", MPI_Irecv, c.out(), n, type, c.peer == kAnyRank ? MPI_ANY_SOURCE : c.peer,
                       tag, comm);
        default:
          return begin("MPI_Ibarrier", MPI_Ibarrier, comm);
      }
    };
  }

 private:
  MPI_Comm comm_;
};

class MpiGroup final : public LibraryGroup {
 public:
  MpiGroup(MpiGroupOptions options, Communicator comm)
      : LibraryGroup({.backend = "mpi",
                      .rank = comm.rank,
                      .size = comm.size,
                      .generation = options.generation,
                      .leaves = std::move(options.leaves),
                      .name = options.name}),
        comm_(comm),
        progress_(std::make_shared<MpiProgress>(comm.rank, comm.size, options.timeout, shared_flag())) {}

  ~MpiGroup() override {
    if (!progress_->idle()) keep_memory();
    if (flag().is_set() || !progress_->idle()) {
      flag().set("rank " + std::to_string(rank()) + " left the group with operations in flight");
      keep_mpi_from_finalizing();
      return;
    }
    MPI_Comm_free(&comm_.handle);
  }

  void await_quiet() override {
    if (flag().is_set()) progress_->await_quiet();
  }

 private:
  void stop(const std::string& reason) override { flag().set(reason); }

  void check_has(const Op& call) const override {
    LibraryGroup::check_has(call);
    if (!is_message(call.kind) || call.tag <= comm_.max_tag) return;
    throw BadConfig("the tag " + std::to_string(call.tag) + " is too large",
                    "the backend mpi has tags to " + std::to_string(comm_.max_tag), "use a smaller one");
  }

  std::shared_ptr<Work> launch_one(const Op& call) override {
    if (!reduces(call.kind)) return move(call);

    // MPI's own reductions know no trees of leaves, and not every dtype.
    const MpiReduction own = mpi_reduction(call.dtype, call.how.op);
    const bool ours = call.kind == OpKind::kAllReduceTree || call.kind == OpKind::kReduceScatterV;
    if (!ours && !call.how.exact && own.op != MPI_OP_NULL) {
      return own_reduction(call, own);
    }
    const auto reduction = exact(call);
    const bool scattered = call.kind == OpKind::kReduceScatter;
    return run(call, true, Steps(comm_.handle).of_exact(call, reduction),
               [reduction, scattered] { scattered ? reduction->sum() : reduction->finish(); });
  }

  std::shared_ptr<Work> own_reduction(const Op& call, MpiReduction own) {
    Op moved = call;
    // MPI lets no rank scatter in place unless all do, so those that do get room of their own.
    std::shared_ptr<std::byte[]> apart;
    if (call.kind == OpKind::kReduceScatter && call.in_place(rank())) {
      apart = std::make_shared<std::byte[]>(call.bytes());
      moved.output.data = apart.get();
    }
    const auto finish = [kernel = kernel_for(call.dtype, call.how.op), call, apart, ranks = size()] {
      if (apart != nullptr) std::memcpy(call.out(), apart.get(), call.bytes());
      if (kernel.divide != nullptr && call.out() != nullptr) kernel.divide(call.out(), call.count, ranks);
    };
    return run(call, true, {Steps(comm_.handle).of_reduction(moved, own, rank() == call.peer)}, finish);
  }

  /// A broadcast, gather, scatter, exchange, message or barrier.
  std::shared_ptr<Work> move(const Op& call) {
    const bool message = is_message(call.kind);
    Op moved = call;
    // As above.
    std::shared_ptr<std::byte[]> apart;
    const bool gathers = call.kind == OpKind::kAllGather || call.kind == OpKind::kAllGatherV;
    if (gathers && call.in_place(rank())) {
      const std::size_t bytes = call.input.count * element_size(call.dtype);
      apart = std::make_shared<std::byte[]>(bytes);
      if (bytes != 0) std::memcpy(apart.get(), call.in(), bytes);
      moved.input.data = apart.get();
    }
    return run(call, !message, {Steps(comm_.handle).of_move(moved, call.in_place(rank()))}, [apart] {});
  }

  std::shared_ptr<Work> run(const Op& call, bool ordered, std::vector<MpiStep> steps,
                            std::function<void()> finish) {
    return progress_->launch(call, ordered, std::move(steps), std::move(finish));
  }

  Communicator comm_;
  std::shared_ptr<MpiProgress> progress_;
};

}  // namespace

bool has_mpi() noexcept {
  return true;
}

std::unique_ptr<ProcessGroup> make_mpi_group(MpiGroupOptions options) {
  if (options.timeout <= Duration::zero()) {
    throw BadConfig("cannot make a process group of the backend mpi", "the timeout is not positive",
                    "give it in nanoseconds");
  }
  ensure_mpi();
  const MPI_Comm original =
      options.communicator != nullptr ? *static_cast<const MPI_Comm*>(options.communicator) : MPI_COMM_WORLD;
  if (original == MPI_COMM_NULL) {
    throw BadConfig("cannot make a process group of the backend mpi", "its communicator is MPI_COMM_NULL",
                    "give one that this rank is in, or null for MPI_COMM_WORLD");
  }
  const ReturnedErrors returned(original);
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(original, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(original, &size), "MPI_Comm_size");
  options.leaves = checked_leaves("mpi", rank, size, std::move(options.leaves));
  const Communicator comm = copy_of(original, options.timeout);
  return std::make_unique<MpiGroup>(std::move(options), comm);
}

}  // namespace troupe::collectives
