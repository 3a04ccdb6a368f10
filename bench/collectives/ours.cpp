#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "bench/collectives/contenders.hpp"
#include "bench/collectives/machines.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/init.hpp"

namespace bench {

using namespace troupe;
using namespace troupe::collectives;

namespace {

/// Of allocate(): the input, the output and what rounding to lines adds.
std::size_t data_bytes(std::size_t bytes) {
  return 2 * bytes + 256;
}

std::shared_ptr<Work> launch(ProcessGroup& group, const Shape& shape, float* from, float* to) {
  const Buffer input{.data = from, .count = shape.input_count()};
  const Buffer result{.data = to, .count = shape.output_count()};
  switch (shape.op) {
    case Op::kAllReduce:
      return group.all_reduce(result, ReduceOp::kSum);
    case Op::kBroadcast:
      return group.broadcast(result, 0);
    case Op::kReduceScatter:
      return group.reduce_scatter(input, result, ReduceOp::kSum);
    case Op::kAllGather:
      return group.all_gather(input, result);
    case Op::kAllToAll:
      return group.all_to_all(input, result);
  }
  return nullptr;
}

}  // namespace

std::size_t region_bytes(int ranks, std::size_t bytes) {
  return native_region_bytes(ranks, data_bytes(bytes));
}

namespace {

/// On memory that the group allocated.
void perform_in_place(Stage& stage, int rank, ProcessGroup& group) {
  const Shape shape = stage.shape();
  if (shape.op == Op::kAllReduce) {
    const TreeBuffer tree = group.allocate_tree(shape.count, DType::kFloat32);
    auto* values = reinterpret_cast<float*>(tree.partials[0]);
    perform(stage, kOurs, rank, true,
            {{values, values, [&] { group.all_reduce_tree(tree, ReduceOp::kSum)->wait(); }}});
    return;
  }
  float* from = group.allocate<float>(shape.input_count()).data();
  float* to = shape.in_place() ? from : group.allocate<float>(shape.output_count()).data();
  perform(stage, kOurs, rank, true, {{from, to, [&] { launch(group, shape, from, to)->wait(); }}});
}

}  // namespace

namespace {

std::unique_ptr<ProcessGroup> make_group(const Stage& stage, int rank,
                                         const std::shared_ptr<SharedMemory>& region) {
  return make_native_group({.rank = rank,
                            .size = stage.ranks,
                            .generation = {1, 1},
                            .region = region,
                            .data_bytes = data_bytes(stage.bytes)});
}

/// Memory of this process alone.
class PrivateBuffer {
 public:
  PrivateBuffer(std::size_t count, std::size_t offset)
      : pages_(
            static_cast<std::byte*>(::operator new(count * sizeof(float) + offset, std::align_val_t(kPage)))),
        values_(reinterpret_cast<float*>(pages_.get() + offset)) {
    std::fill_n(values_, count, 0.0F);
  }
  float* data() const { return values_; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(std::byte* pages) const { ::operator delete(pages, std::align_val_t(kPage)); }
  };
  std::unique_ptr<std::byte, Free> pages_;
  float* values_;
};

}  // namespace

void perform_ours(Stage& stage, int rank, const std::shared_ptr<SharedMemory>& region) {
  perform_in_place(stage, rank, *make_group(stage, rank, region));
}

void perform_private(Stage& stage, Contender who, int rank, std::size_t offset,
                     const std::shared_ptr<SharedMemory>& region) {
  const auto group = make_group(stage, rank, region);
  const Shape shape = stage.shape();
  const PrivateBuffer from(shape.input_count(), offset),
      to(shape.in_place() ? 0 : shape.output_count(), offset);
  float* result = shape.in_place() ? from.data() : to.data();
  perform(stage, who, rank, true,
          {{from.data(), result, [&] { launch(*group, shape, from.data(), result)->wait(); }}});
}

void perform_ours_over_tcp(Stage& stage, int rank) {
  const auto group = init_process_group("native", "tcp://" + Machines::address(0) + ":20000",
                                        {.rank = rank,
                                         .size = stage.ranks,
                                         .timeout = std::chrono::seconds(20),
                                         .data_bytes = data_bytes(stage.bytes),
                                         .key = std::string(64, '7')});
  perform_in_place(stage, rank, *group);
}

void perform_copy(Stage& stage, int rank) {
  std::vector<float> from(stage.bytes / sizeof(float)), to(stage.bytes / sizeof(float));
  perform(stage, kCopy, rank, false,
          {{from.data(), to.data(), [&] { std::memcpy(to.data(), from.data(), stage.bytes); }}});
}

}  // namespace bench
