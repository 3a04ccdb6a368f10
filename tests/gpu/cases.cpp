/// What is checked on GPUs. Expected bits come from the CPU: the tree of leaf_tree.hpp, folded slot by slot.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>

#include "collectives/native/kernels.hpp"
#include "collectives/nccl/api.hpp"
#include "collectives/nccl/tree_fold.hpp"
#include "runtime/core/random.hpp"
#include "tests/gpu/exact_reference.hpp"
#include "tests/gpu/machine.hpp"

namespace troupe::gpu {
namespace {

using namespace collectives;
using namespace std::chrono_literals;
using namespace collectives::testing;

bool near(const Bytes& a, const Bytes& b, DType dtype) {
  const double tolerance = dtype == DType::kFloat64   ? 1e-12
                           : dtype == DType::kFloat32 ? 1e-4
                           : dtype == DType::kFloat16 ? 0.05
                                                      : 0.4;
  bool all = true;
  kernel::with_element(dtype, [&](auto element) {
    using Stored = typename decltype(element)::Stored;
    for (std::size_t i = 0; i < a.size(); i += sizeof(Stored)) {
      Stored x, y;
      std::memcpy(&x, &a[i], sizeof x);
      std::memcpy(&y, &b[i], sizeof y);
      const auto u = static_cast<double>(element.load(x)), v = static_cast<double>(element.load(y));
      if (std::abs(u - v) > tolerance * std::max(1.0, std::abs(v))) all = false;
    }
  });
  return all;
}

std::string name_of(const char* operation, DType dtype, ReduceOp op) {
  return std::string(operation) + " by " + std::string(reduce_op_name(op)) + " of " +
         std::string(dtype_name(dtype));
}

template <class T>
Bytes bytes_of(const std::vector<T>& from) {
  Bytes bytes(from.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), from.data(), bytes.size());
  return bytes;
}

float sum_of_ranks(Rank& rank) {
  const Buffer buffer = rank.put(
      bytes_of(std::vector<float>(1000, static_cast<float>(rank.group->rank() + 1))), DType::kFloat32);
  finish(*rank.group->all_reduce(buffer, ReduceOp::kSum));
  float first = 0;
  std::memcpy(&first, rank.get(buffer).data(), sizeof first);
  return first;
}

void check_reduction(Rank& rank, DType dtype, ReduceOp op, std::size_t count, bool wild) {
  const auto n = static_cast<std::size_t>(rank.size), r = static_cast<std::size_t>(rank.rank);
  const auto all = inputs(dtype, count * n, rank.size, wild);
  const Reduction how = reduction(op, true);
  const Bytes whole = expected(dtype, how, all, one_a_rank(rank.size), rank.size);
  const std::size_t part = count * element_size(dtype);

  const Buffer buffer = rank.put(all[r], dtype);
  rank.group->all_reduce(buffer, how)->wait();
  check(rank.get(buffer) == (whole), name_of("all_reduce", dtype, op));

  const Buffer root = rank.put(all[r], dtype);
  rank.group->reduce(root, how, rank.size - 1)->wait();
  check(rank.get(root) == (rank.rank == rank.size - 1 ? whole : all[r]), name_of("reduce", dtype, op));

  const Buffer input = rank.put(all[r], dtype), output = rank.put(Bytes(part), dtype);
  rank.group->reduce_scatter(input, output, how)->wait();
  const auto from = whole.begin() + static_cast<std::ptrdiff_t>(r * part);
  check(rank.get(output) == Bytes(from, from + static_cast<std::ptrdiff_t>(part)),
        name_of("reduce_scatter", dtype, op));

  if (!wild) {
    const Buffer fast = rank.put(all[r], dtype);
    rank.group->all_reduce(fast, reduction(op, false))->wait();
    check(op == ReduceOp::kProduct || near(rank.get(fast), whole, dtype),
          name_of("all_reduce in any order", dtype, op));
  }
}

}  // namespace

void check_reductions(Rank& rank) {
  for (const DType dtype : kAllTypes) {
    for (const ReduceOp op : kAllOps) {
      if (!why_not(dtype, op).empty()) continue;
      check_reduction(rank, dtype, op, 1, false);
      check_reduction(rank, dtype, op, 10'007, false);
      check_reduction(rank, dtype, op, 4096, true);
    }
  }
}

void check_tree(Rank& rank) {
  constexpr int kLeaves = 7;
  constexpr std::size_t kCount = 100'003;
  if (rank.size > kLeaves) return;
  auto options = rank.shared->options(rank.rank, rank.size, rank.device, 2);
  options.leaves = deal_leaves(kLeaves, rank.size);
  const auto group = make_nccl_group(options);
  std::vector<LeafInterval> nodes;
  for (LeafInterval interval : options.leaves) {
    for (LeafInterval node : canonical_nodes(interval, kLeaves)) nodes.push_back(node);
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto slots = inputs(dtype, kCount, static_cast<int>(nodes.size()), false);
    TreeBuffer buffer = group->allocate_tree(kCount, dtype);
    buffer.stream = rank.stream;
    std::size_t at = 0;
    for (int r = 0; r < rank.rank; ++r) {
      at += canonical_nodes(options.leaves[static_cast<std::size_t>(r)], kLeaves).size();
    }
    for (std::byte* partial : buffer.partials) {
      const Bytes& from = slots[at++];
      cuda(cudaMemcpyAsync(partial, from.data(), from.size(), cudaMemcpyHostToDevice, rank.stream));
    }
    group->all_reduce_tree(buffer, ReduceOp::kAvg)->wait();
    const Buffer result{buffer.partials[0], kCount, dtype, {DeviceKind::kCuda, rank.device}, rank.stream};
    check(rank.get(result) == (expected(dtype, ReduceOp::kAvg, slots, nodes, kLeaves)), "all_reduce_tree");
  }
}

void check_moves(Rank& rank) {
  const int n = rank.size, r = rank.rank, root = n - 1;
  constexpr std::size_t kCount = 1001;
  // What rank `from` has for rank `to`.
  const auto row = [&](int from, int to) {
    return values(DType::kInt16, kCount, static_cast<std::uint64_t>(from * 100 + to), true);
  };
  const auto rows = [&](const std::function<Bytes(int)>& of) {
    Bytes all;
    for (int i = 0; i < n; ++i) {
      const Bytes one = of(i);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const Bytes zeros(kCount * 2 * static_cast<std::size_t>(n));
  const Buffer many = rank.put(rows([&](int i) { return row(r, i); }), DType::kInt16);
  const Buffer out = rank.put(zeros, DType::kInt16), one = rank.put(row(r, 0), DType::kInt16);
  ProcessGroup& group = *rank.group;
  group.all_to_all(many, out)->wait();
  check(rank.get(out) == rows([&](int i) { return row(i, r); }), "all_to_all");
  group.all_gather(one, out)->wait();
  check(rank.get(out) == rows([&](int i) { return row(i, 0); }), "all_gather");
  const Buffer gathered = rank.put(zeros, DType::kInt16);
  group.gather(one, gathered, root)->wait();
  check(rank.get(gathered) == (r == root ? rows([&](int i) { return row(i, 0); }) : zeros), "gather");
  group.scatter(many, one, root)->wait();
  check(rank.get(one) == row(root, r), "scatter");
  group.broadcast(many, root)->wait();
  check(rank.get(many) == rows([&](int i) { return row(root, i); }), "broadcast");
  group.barrier()->wait();
  if (n > 1) {
    const int right = (r + 1) % n, left = (r + n - 1) % n;
    const Bytes large = values(DType::kUInt8, 8 << 20, static_cast<std::uint64_t>(r), true);
    const Buffer mine = rank.put(large, DType::kUInt8), theirs = rank.put(Bytes(large.size()), DType::kUInt8);
    const auto sent = group.send(mine, right);
    group.barrier()->wait();  // issues the sends alone: no rank may wait for the other
    group.recv(theirs, left)->wait();
    check(rank.get(theirs) == values(DType::kUInt8, large.size(), static_cast<std::uint64_t>(left), true),
          "recv");
    finish(*sent);
  }
  Buffer own = group.allocate(1000, DType::kFloat32);
  own.stream = rank.stream;
  cuda(cudaMemsetAsync(own.data, 0, 4000, rank.stream));
  group.all_reduce(own, ReduceOp::kMax)->wait();
  check(rank.get(own) == Bytes(4000), "memory of the group");
}

void check_streams(Rank& rank) {
  std::atomic<bool> go = false;
  if (rank.rank == 0) {
    cuda(cudaLaunchHostFunc(
        rank.stream,
        [](void* flag) {
          while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
        },
        &go));
  }
  // Pinned: copies from other memory wait for the stream on the host.
  float* pinned = nullptr;
  void* data = nullptr;
  cuda(cudaMallocHost(&pinned, sizeof(float)));
  cuda(cudaMallocAsync(&data, sizeof(float), rank.stream));
  *pinned = 1;
  cuda(cudaMemcpyAsync(data, pinned, sizeof(float), cudaMemcpyHostToDevice, rank.stream));
  const auto work = rank.group->all_reduce(
      {data, 1, DType::kFloat32, {DeviceKind::kCuda, rank.device}, rank.stream}, ReduceOp::kSum);
  work->wait();
  if (rank.rank == 0) {
    check(!work->wait_for(50ms) && !work->is_completed(), "it does not wait for the buffer's stream");
    go = true;
  }
  cuda(cudaMemcpyAsync(pinned, data, sizeof(float), cudaMemcpyDeviceToHost, rank.stream));
  cuda(cudaStreamSynchronize(rank.stream));
  check(*pinned == static_cast<float>(rank.size), "the stream does not wait for the operation");
  finish(*work);
}

/// The last rank aborts in the middle and leaves; the others shrink, and then all start from scratch.
void check_membership(Rank& rank) {
  const int n = rank.size, survivors = n - 1;
  const float all = static_cast<float>(n * (n + 1)) / 2;
  if (n < 2) return;
  check(sum_of_ranks(rank) == all, "before");
  rank.group->barrier()->wait();
  MonotonicClock clock;
  if (rank.rank == n - 1) {
    std::this_thread::sleep_for(200ms);  // so that the others' kernels are on the GPU; correct without
    rank.group->abort("the test");
    rank.group.reset();
  } else {
    const auto work = rank.group->all_reduce(rank.put(Bytes(1 << 20), DType::kFloat32), ReduceOp::kSum);
    work->wait();
    check_throws<CollectiveAborted>("abort in the middle", [&] { finish(*work); });
    check(rank.group->abort_reason() == "the test", "the first reason");
    cuda(cudaStreamSynchronize(rank.stream));
    const Instant start = clock.now();
    rank.group =
        succeed_nccl_group(*rank.group, {n - 1}, rank.shared->options(rank.rank, survivors, rank.device, 3));
    const Instant made = clock.now();
    check(sum_of_ranks(rank) == static_cast<float>(survivors * n) / 2, "after the shrink");
    if (rank.rank == 0) std::printf("  shrink to %d: %.1f ms\n", survivors, to_millis(made - start));
  }
  rank.group.reset();
  rank.group = make_nccl_group(rank.shared->options(rank.rank, n, rank.device, 4));
  check(sum_of_ranks(rank) == all, "all again");
}

}  // namespace troupe::gpu
