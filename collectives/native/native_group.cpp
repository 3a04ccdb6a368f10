#include "collectives/native/native_group.hpp"

#include <algorithm>

#include "collectives/native/engine.hpp"

namespace troupe::collectives {
namespace {

static_assert(kChunkBytes / kMaxGroupRanks >= 16, "of the largest element");

/// The largest all_reduce of a batch that goes together with its neighbours, as one.
constexpr std::size_t kPackedBytes = 16 * 1024;

/// Of a rank; so that sums of bytes are far from wrapping around.
constexpr std::size_t kMaxDataBytes = std::size_t{1} << 46;

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw BadConfig("cannot make a process group of the backend native", std::move(why), std::move(todo));
}

void check_machines(NativeGroupOptions& options) {
  auto& machines = options.machines;
  if (machines.empty()) machines.assign(static_cast<std::size_t>(options.size), 0);
  if (machines.size() != static_cast<std::size_t>(options.size)) {
    refuse(std::to_string(machines.size()) + " machines for " + std::to_string(options.size) + " ranks",
           "say of every rank which machine it is on");
  }
  const HostLayout layout(machines);
  for (const auto& [r, connection] : options.remote) {
    if (r < 0 || r >= options.size) {
      refuse("there is a socket for rank " + std::to_string(r) + ", which does not exist",
             "give sockets for ranks of other machines");
    }
    if (layout.together(r, options.rank)) {
      refuse("rank " + std::to_string(r) + " is local and has a socket",
             "give sockets for ranks of other machines");
    }
  }
  for (const int r : layout.peers(options.rank)) {
    const auto found = options.remote.find(r);
    if (found == options.remote.end() || !found->second.socket) {
      refuse("rank " + std::to_string(r) + " is remote and has no socket",
             "give a connected socket for each rank of native_peers()");
    }
  }
  if (layout.hosts() > 1 && options.connector == nullptr) {
    refuse("ranks are on several machines and nothing connects those that talk", "give a connector");
  }
}

class NativeWork final : public Work {
 public:
  NativeWork(std::shared_ptr<Engine> engine, Token token, std::vector<Token> parts = {})
      : engine_(std::move(engine)), token_(std::move(token)), parts_(std::move(parts)) {}

  int source() const override {
    const bool receives = token_.transfer && token_.transfer->call.kind == OpKind::kRecv;
    return receives && token_.transfer->done ? token_.transfer->call.peer : -1;
  }

  std::vector<int> missing() const { return engine_->missing(token_); }

 private:
  bool advance(Duration limit) override {
    const MonotonicClock clock;
    const bool limited = limit != Duration::zero() && limit != Duration::max() && !parts_.empty();
    const Instant until = limited ? clock.now() + limit : Instant{};
    const auto left = [&] { return limited ? std::max(until - clock.now(), Duration::zero()) : limit; };
    return engine_->wait(token_, limit) && std::all_of(parts_.begin(), parts_.end(), [&](const Token& t) {
             return engine_->wait(t, left());
           });
  }

  const std::shared_ptr<Engine> engine_;
  const Token token_;
  const std::vector<Token> parts_;  ///< of an all_to_all_v
};

/// How many of the first calls go as one.
std::size_t packable(std::span<const Op> ops) {
  std::size_t n = 0, bytes = 0;
  for (; n < ops.size(); ++n) {
    const Op &op = ops[n], &first = ops.front();
    const bool alike = op.kind == OpKind::kAllReduce && op.dtype == first.dtype && op.how == first.how &&
                       op.timeout == first.timeout;
    if (!alike || op.bytes() > kPackedBytes || (bytes += op.bytes()) > kChunkBytes) break;
  }
  return n;
}

class NativeGroup final : public ProcessGroup {
 public:
  NativeGroup(GroupFacts facts, std::shared_ptr<Engine> engine)
      : ProcessGroup(std::move(facts)), engine_(std::move(engine)) {}
  ~NativeGroup() override { engine_->leave(); }

  std::string abort_reason() const override { return engine_->abort_reason(); }

 private:
  std::shared_ptr<Work> launch(std::span<const Op> operations) override {
    if (operations.size() == 1) return launch_one(operations.front());
    std::vector<std::shared_ptr<Work>> works(operations.size());
    // What goes as one is the same on all ranks, whose messages may differ.
    std::vector<Op> collectives;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (is_message(operations[i].kind)) {
        works[i] = launch_one(operations[i]);
      } else {
        collectives.push_back(operations[i]);
        places.push_back(i);
      }
    }
    const std::span<const Op> all = collectives;
    for (std::size_t i = 0, n = 0; i < all.size(); i += n) {
      n = std::max<std::size_t>(1, packable(all.subspan(i)));
      const auto work =
          n == 1 ? launch_one(all[i])
                 : std::make_shared<NativeWork>(engine_, engine_->launch_packed(all.subspan(i, n)));
      for (std::size_t k = 0; k < n; ++k) works[places[i + k]] = work;
    }
    return joined(std::move(works));
  }
  std::shared_ptr<Work> launch_one(const Op& op) {
    Token token = engine_->launch(op);
    const bool has_more = op.kind == OpKind::kAllToAllV || op.kind == OpKind::kRecv;  // parts, a source
    if (token.complete && !has_more) return completed_work();
    std::vector<Token> parts;
    if (op.kind == OpKind::kAllToAllV) parts = engine_->post_parts(op);
    return std::make_shared<NativeWork>(engine_, std::move(token), std::move(parts));
  }
  void stop(const std::string& reason) override { engine_->abort(AbortKind::kRequested, reason); }
  void await_quiet() override { engine_->await_quiet(); }
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree) override {
    return engine_->reserve(count, dtype, tree);
  }
  Released release(std::byte* at) override {
    const std::optional<bool> released = engine_->release(at);
    return !released ? Released::kNotReserved : *released ? Released::kYes : Released::kInFlight;
  }

  const std::shared_ptr<Engine> engine_;
};

Geometry geometry_of(const std::vector<int>& machines, int rank, std::size_t data_bytes) {
  if (data_bytes > kMaxDataBytes) {
    refuse("data_bytes is " + std::to_string(data_bytes) + ", and 2^46 is the most",
           "give what allocate() and allocate_tree() need");
  }
  const HostLayout layout(machines);
  return {.world_size = static_cast<int>(machines.size()),
          .local_ranks = layout.ranks_with(rank),
          .data_bytes = data_bytes,
          .hosts = layout.hosts(),
          .most_members = layout.most_members()};
}

}  // namespace

std::size_t native_region_bytes(int local_ranks, std::size_t data_bytes) {
  return region_bytes(
      {.local_ranks = std::vector<int>(static_cast<std::size_t>(local_ranks)), .data_bytes = data_bytes});
}

std::size_t native_region_bytes(const std::vector<int>& machines, int rank, std::size_t data_bytes) {
  return region_bytes(geometry_of(machines, rank, data_bytes));
}

std::vector<int> native_peers(const std::vector<int>& machines, int rank) {
  return HostLayout(machines).peers(rank);
}

std::size_t native_tree_bytes(const std::vector<LeafInterval>& leaves, std::size_t count, DType dtype) {
  std::size_t most = 1;
  for (auto interval : leaves) most = std::max(most, canonical_nodes(interval, leaves.back().end).size());
  const std::size_t bytes = count * element_size(dtype);
  return most * std::max(kCacheLine, (bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
}

std::vector<int> missing_ranks(const Work& work) {
  const auto* native = dynamic_cast<const NativeWork*>(&work);
  return native != nullptr ? native->missing() : std::vector<int>{};
}

std::unique_ptr<ProcessGroup> make_native_group(NativeGroupOptions options) {
  GroupFacts facts{.backend = "native", .rank = options.rank, .size = options.size};
  facts.generation = options.generation;
  facts.name = options.name;
  facts.leaves = options.leaves = checked_leaves("native", options.rank, options.size, options.leaves);
  check_machines(options);
  if (options.timeout <= Duration::zero()) refuse("the timeout is not positive", "give it in nanoseconds");
  const Geometry geometry = geometry_of(options.machines, options.rank, options.data_bytes);
  Region region = Region::attach(std::move(options.region), geometry, options.generation).value();
  const bool serves = options.size > 1 && options.progress_thread.value_or(geometry.hosts > 1);
  auto engine = std::make_shared<Engine>(std::move(options), std::move(region));
  if (serves) engine->start_serving();
  return std::make_unique<NativeGroup>(std::move(facts), std::move(engine));
}

}  // namespace troupe::collectives
