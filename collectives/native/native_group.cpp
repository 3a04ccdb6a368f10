#include "collectives/native/native_group.hpp"

#include <algorithm>
#include <cstdlib>

#include "collectives/check_buffers.hpp"
#include "collectives/native/engine.hpp"

namespace troupe::collectives {
namespace {

/// So that a stage holds an element for each of them.
constexpr int kMaxRanks = 1 << 15;
static_assert(kChunkBytes / kMaxRanks >= sizeof(double));

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
  auto& machines = options.machines;
  if (machines.empty()) machines.assign(static_cast<std::size_t>(options.size), 0);
  if (machines.size() != static_cast<std::size_t>(options.size)) {
    refuse(std::to_string(machines.size()) + " machines for " + std::to_string(options.size) + " ranks",
           "say of every rank which machine it is on");
  }
  const auto machine = [&](int r) { return machines[static_cast<std::size_t>(r)]; };
  for (int r = 0; r < options.size; ++r) {
    const bool local = machine(r) == machine(options.rank);
    const auto socket = options.remote.find(r);
    const bool connected = socket != options.remote.end() && socket->second;
    if (local == connected) {
      refuse("rank " + std::to_string(r) +
                 (local ? " is local and has a socket" : " is remote and has no socket"),
             "give a connected socket for each remote rank and for no other");
    }
  }
  const auto locals = std::count(machines.begin(), machines.end(), machine(options.rank));
  if (options.remote.size() + static_cast<std::size_t>(locals) != machines.size()) {
    refuse("there are sockets for ranks that do not exist", "give one socket a remote rank");
  }
}

class NativeWork final : public Work {
 public:
  NativeWork(std::shared_ptr<Engine> engine, Ticket ticket)
      : engine_(std::move(engine)), ticket_(std::move(ticket)), launched_at_(clock_.now()) {}
  void wait() override {
    settle([&] {
      engine_->wait(ticket_);
      return true;
    });
    if (thrown_) std::rethrow_exception(thrown_);
  }
  bool wait_for(Duration limit) override {
    settle([&] { return engine_->wait_for(ticket_, limit); });
    if (thrown_) std::rethrow_exception(thrown_);
    return settled_at_.has_value();
  }
  bool is_completed() override {
    settle([&] { return engine_->test(ticket_); });
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
  Ticket ticket_;
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
    check_count(call("allocate_tree"), count);
    return engine_->allocate_tree(count, dtype);
  }
  Buffer allocate(std::size_t count, DType dtype) override {
    check_count(call("allocate"), count);
    return {engine_->allocate(count, dtype), count, dtype, {}, nullptr};
  }
  std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how) override {
    check_reduction(call("all_reduce_tree"), buffer.dtype, how, true);
    return work(engine_->launch_tree(buffer, how));
  }
  std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how) override {
    check_buffer(call("all_reduce"), "buffer", buffer);
    check_reduction(call("all_reduce"), buffer.dtype, how);
    return launch(contract(OpKind::kAllReduce, buffer, buffer.count, how), buffer, buffer);
  }
  std::shared_ptr<Work> reduce(const Buffer& buffer, Reduction how, int root) override {
    check_rank(call("reduce"), "root", root);
    check_buffer(call("reduce"), "buffer", buffer);
    check_reduction(call("reduce"), buffer.dtype, how);
    return launch(contract(OpKind::kReduce, buffer, buffer.count, how, root), buffer, buffer);
  }
  std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) override {
    check_rank(call("broadcast"), "root", root);
    check_buffer(call("broadcast"), "buffer", buffer);
    return launch(contract(OpKind::kBroadcast, buffer, buffer.count, {}, root), buffer, buffer);
  }
  std::shared_ptr<Work> gather(const Buffer& input, const Buffer& output, int root) override {
    const Call here = call("gather");
    check_rank(here, "root", root);
    if (rank() == root) {
      check_parts(here, Parts::kGathered, input, output);
    } else {
      check_buffer(here, "input", input);
    }
    return launch(contract(OpKind::kGather, input, input.count, {}, root), input,
                  rank() == root ? output : Buffer{});
  }
  std::shared_ptr<Work> scatter(const Buffer& input, const Buffer& output, int root) override {
    const Call here = call("scatter");
    check_rank(here, "root", root);
    if (rank() == root) {
      check_parts(here, Parts::kScattered, input, output);
    } else {
      check_buffer(here, "output", output);
    }
    return launch(contract(OpKind::kScatter, output, output.count, {}, root),
                  rank() == root ? input : Buffer{}, output);
  }
  std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output) override {
    const std::size_t part = check_parts(call("all_gather"), Parts::kGathered, input, output);
    return launch(contract(OpKind::kAllGather, input, part), input, output);
  }
  std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) override {
    const std::size_t part = check_parts(call("reduce_scatter"), Parts::kScattered, input, output);
    check_reduction(call("reduce_scatter"), input.dtype, how);
    return launch(contract(OpKind::kReduceScatter, input, part, how), input, output);
  }
  std::shared_ptr<Work> all_to_all(const Buffer& input, const Buffer& output) override {
    const std::size_t part = check_parts(call("all_to_all"), Parts::kExchanged, input, output);
    return launch(contract(OpKind::kAllToAll, input, part), input, output);
  }
  std::shared_ptr<Work> barrier() override { return launch({.kind = OpKind::kBarrier}, {}, {}); }
  std::shared_ptr<Work> send(const Buffer& buffer, int to, std::uint32_t tag) override {
    check_rank(call("send"), "to", to);
    check_buffer(call("send"), "buffer", buffer);
    return work(engine_->post(contract(OpKind::kSend, buffer, buffer.count, {}, to), buffer.data, tag));
  }
  std::shared_ptr<Work> recv(const Buffer& buffer, int from, std::uint32_t tag) override {
    check_rank(call("recv"), "from", from);
    check_buffer(call("recv"), "buffer", buffer);
    return work(engine_->post(contract(OpKind::kRecv, buffer, buffer.count, {}, from), buffer.data, tag));
  }

  void abort(const std::string& reason) override { engine_->abort(AbortKind::kRequested, reason); }
  std::string abort_reason() const override { return engine_->abort_reason(); }

 private:
  Call call(std::string_view name) const { return {name, rank(), size(), DeviceKind::kCpu}; }
  static Contract contract(OpKind kind, const Buffer& of, std::size_t count, Reduction how = {},
                           int index = 0) {
    return {.kind = kind,
            .op = how.op,
            .dtype = of.dtype,
            .exact = how.exact,
            .index = index,
            .count = count,
            .factor = how.op == ReduceOp::kPremulSum ? how.factor : 1};
  }
  std::shared_ptr<Work> work(Ticket ticket) {
    return std::make_shared<NativeWork>(engine_, std::move(ticket));
  }
  std::shared_ptr<Work> launch(const Contract& what, const Buffer& input, const Buffer& output) {
    return work(engine_->launch(what, input.data, output.data));
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
  const char* trace = std::getenv("TROUPE_COLLECTIVES_TRACE");
  options.trace = options.trace || (trace != nullptr && std::string_view(trace) == "1");
  const Geometry geometry{.world_size = options.size,
                          .local_ranks = MachineLayout(options.machines).ranks_with(options.rank),
                          .data_bytes = options.data_bytes};
  Region region = Region::attach(std::move(options.region), geometry, options.generation).value();
  return std::make_unique<NativeGroup>(std::make_shared<Engine>(std::move(options), std::move(region)));
}

}  // namespace troupe::collectives
