/// init_process_group("nccl", ...) on GPUs: the ranks meet at a file, make groups, and go on after an abort.

#include <cstdio>

#include "tests/gpu/machine.hpp"

#if defined(TROUPE_GPU_BY_NAME)
#include "collectives/rendezvous/init.hpp"
#endif

namespace troupe::gpu {

#if defined(TROUPE_GPU_BY_NAME)
namespace {

using namespace collectives;
using namespace std::chrono_literals;

/// The sum of `mine` over the group, as its last element has it.
float sum_of(Rank& rank, ProcessGroup& group, float mine) {
  const std::vector<float> values(100'003, mine);
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  const Buffer buffer = rank.put(bytes, DType::kFloat32);
  finish(*group.all_reduce(buffer, ReduceOp::kSum));
  float last = 0;
  const auto got = rank.get(buffer);
  std::memcpy(&last, got.data() + got.size() - sizeof last, sizeof last);
  return last;
}

}  // namespace

void check_by_name(Rank& rank) {
  rank.group.reset();
  const auto all = static_cast<float>(rank.size * (rank.size + 1)) / 2,
             mine = static_cast<float>(rank.rank + 1);
  auto group = init_process_group("nccl", rank.shared->url(),
                                  {.rank = rank.rank,
                                   .size = rank.size,
                                   .timeout = 120s,
                                   .device = rank.device,
                                   .share_gpu = rank.shared->shares_gpus()});
  check(group->backend() == "nccl" && group->rank() == rank.rank && group->size() == rank.size, "the group");
  check(sum_of(rank, *group, mine) == all, "the sum of all");
  std::vector<float> on_host{mine};
  group->host_group().all_reduce(on_host)->wait();
  check(on_host[0] == all, "the sum of all in the host's memory");
  if (const auto ends = group->new_group(rank.size > 1 ? std::vector{0, rank.size - 1} : std::vector{0})) {
    check(sum_of(rank, *ends, 1) == static_cast<float>(ends->size()), "the sum of the first and the last");
  }
  if (rank.size > 1) {
    finish(*group->barrier());
    if (rank.rank == 1) group->abort("rank 1 has had enough");
    check_throws<CollectiveAborted>("an abort elsewhere", [&] {
      while (true) sum_of(rank, *group, 1);
    });
    group = group->rebuild();
    check(sum_of(rank, *group, mine) == all, "the next generation");
  }
  finish(*group->barrier());
}

#else
void check_by_name(Rank& rank) {
  if (rank.rank == 0) std::printf("  left out: built without libsodium (apt-get install libsodium-dev)\n");
}
#endif

}  // namespace troupe::gpu
