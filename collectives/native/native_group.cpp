#include "collectives/native/native_group.hpp"

#include <algorithm>

#include "collectives/native/engine.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxElements = std::size_t{1} << 40;
constexpr int kMaxRanks = 1 << 16;

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw BadConfig("cannot make a native process group", std::move(why), std::move(todo));
}

void check_leaves(NativeGroupOptions& options) {
  if (options.leaves.empty()) {
    for (int r = 0; r < options.size; ++r) options.leaves.push_back({r, r + 1});
  }
  if (options.leaves.size() != static_cast<std::size_t>(options.size)) {
    refuse(std::to_string(options.leaves.size()) + " leaf intervals for " + std::to_string(options.size) +
               " ranks",
           "give every rank's leaves");
  }
  int at = 0;
  for (auto interval : options.leaves) {
    if (interval.begin != at || interval.size() < 1) {
      refuse("the ranks' leaves are not adjacent or a rank has none", "deal them with deal_leaves()");
    }
    at = interval.end;
  }
}

void check_ranks(NativeGroupOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks || options.rank < 0 || options.rank >= options.size) {
    refuse("rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) + " does not exist",
           "ranks count from 0 to size - 1");
  }
  auto& locals = options.local_ranks;
  if (locals.empty()) {
    for (int r = 0; r < options.size; ++r) locals.push_back(r);
  }
  const bool ascending =
      std::adjacent_find(locals.begin(), locals.end(), std::greater_equal<>()) == locals.end();
  if (!ascending || locals.front() < 0 || locals.back() >= options.size ||
      !std::binary_search(locals.begin(), locals.end(), options.rank)) {
    refuse("local_ranks are not ascending ranks with this one among them", "list the ranks of this machine");
  }
  for (int r = 0; r < options.size; ++r) {
    const bool local = std::binary_search(locals.begin(), locals.end(), r);
    const auto socket = options.remote.find(r);
    const bool connected = socket != options.remote.end() && socket->second;
    if (local == connected) {
      refuse("rank " + std::to_string(r) +
                 (local ? " is local and has a socket" : " is remote and has no socket"),
             "give a connected socket for each remote rank and for no other");
    }
  }
  if (options.remote.size() + locals.size() != static_cast<std::size_t>(options.size)) {
    refuse("there are sockets for ranks that do not exist", "give one socket a remote rank");
  }
}

class NativeWork final : public Work {
 public:
  NativeWork(std::shared_ptr<Engine> engine, std::uint32_t rounds)
      : engine_(std::move(engine)), rounds_(rounds), launched_at_(clock_.now()) {}
  void wait() override {
    settle([&] {
      engine_->wait(rounds_);
      return true;
    });
    if (thrown_) std::rethrow_exception(thrown_);
  }
  bool wait_for(Duration limit) override {
    settle([&] { return engine_->wait_for(rounds_, limit); });
    if (thrown_) std::rethrow_exception(thrown_);
    return settled_at_.has_value();
  }
  bool is_completed() override {
    settle([&] { return engine_->test(rounds_); });
    return settled_at_.has_value();
  }
  std::exception_ptr exception() override {
    (void)is_completed();
    return thrown_;
  }
  std::optional<Duration> duration() override {
    if (!settled_at_) return std::nullopt;
    return *settled_at_ - launched_at_;
  }

 private:
  /// Runs `step` unless the end is known; true: the operation is complete.
  template <class Step>
  void settle(Step step) {
    if (settled_at_) return;
    try {
      if (!step()) return;
    } catch (...) {
      thrown_ = std::current_exception();
    }
    settled_at_ = clock_.now();
  }

  std::shared_ptr<Engine> engine_;
  std::uint32_t rounds_;  ///< of the group, once this is complete
  MonotonicClock clock_;
  Instant launched_at_;
  std::optional<Instant> settled_at_;
  std::exception_ptr thrown_;
};

class NativeGroup final : public ProcessGroup {
 public:
  explicit NativeGroup(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~NativeGroup() override { engine_->leave(); }

  std::string_view backend() const override { return "native"; }
  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  Generation generation() const override { return engine_->generation(); }
  LeafInterval leaves() const override { return engine_->leaves(); }

  TreeBuffer allocate_tree(std::size_t count, DType dtype) override {
    check_count(count);
    return engine_->allocate(count, dtype);
  }
  Buffer allocate(std::size_t count, DType dtype) override {
    return {allocate_tree(count, dtype).partials.front(), count, dtype, {}, nullptr};
  }
  std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how) override {
    return work(engine_->launch_tree(buffer, how.op));
  }
  std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how) override {
    return launch(OpKind::kAllReduce, buffer, how.op, 0);
  }
  std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) override {
    if (root < 0 || root >= size()) {
      throw_error({ErrorCode::kBadInput, "cannot broadcast from rank " + std::to_string(root),
                   "the group has " + std::to_string(size()) + " ranks", "give one of them as root"});
    }
    return launch(OpKind::kBroadcast, buffer, ReduceOp::kSum, root);
  }
  std::shared_ptr<Work> barrier() override {
    return work(engine_->launch({.kind = OpKind::kBarrier}, nullptr));
  }

  void abort(const std::string& reason) override { engine_->abort(AbortKind::kRequested, reason); }
  std::string abort_reason() const override { return engine_->abort_reason(); }

 private:
  static void check_count(std::size_t count) {
    if (count <= kMaxElements) return;
    throw_error({ErrorCode::kLimit, "a buffer of " + std::to_string(count) + " elements is too large",
                 "the limit is 2^40", "split it"});
  }
  std::shared_ptr<Work> work(std::uint32_t rounds) { return std::make_shared<NativeWork>(engine_, rounds); }
  std::shared_ptr<Work> launch(OpKind kind, const Buffer& buffer, ReduceOp op, int root) {
    check_count(buffer.count);
    if (buffer.device.kind != DeviceKind::kCpu || (buffer.data == nullptr && buffer.count != 0)) {
      throw_error({ErrorCode::kBadInput, "the native group cannot use this buffer",
                   buffer.data == nullptr ? "it is null" : "it is not in the CPU's memory",
                   "pass CPU memory, or use a backend for the device"});
    }
    const Contract contract{
        .kind = kind, .op = op, .dtype = buffer.dtype, .index = root, .count = buffer.count};
    return work(engine_->launch(contract, static_cast<std::byte*>(buffer.data)));
  }

  std::shared_ptr<Engine> engine_;
};

}  // namespace

std::size_t native_region_bytes(int local_ranks, std::size_t data_bytes) {
  return region_bytes(
      {.local_ranks = std::vector<int>(static_cast<std::size_t>(local_ranks)), .data_bytes = data_bytes});
}

std::size_t native_tree_bytes(const std::vector<LeafInterval>& leaves, std::size_t count, DType dtype) {
  std::size_t most = 1;
  for (auto interval : leaves) most = std::max(most, canonical_nodes(interval, leaves.back().end).size());
  const std::size_t bytes = count * element_size(dtype);
  return most * std::max(kCacheLine, (bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
}

std::unique_ptr<ProcessGroup> make_native_group(NativeGroupOptions options) {
  check_ranks(options);
  check_leaves(options);
  if (options.timeout <= Duration::zero()) refuse("the timeout is not positive", "give it in nanoseconds");
  const Geometry geometry{
      .world_size = options.size, .local_ranks = options.local_ranks, .data_bytes = options.data_bytes};
  Region region = Region::attach(std::move(options.region), geometry, options.generation).value();
  return std::make_unique<NativeGroup>(std::make_shared<Engine>(std::move(options), std::move(region)));
}

}  // namespace troupe::collectives
