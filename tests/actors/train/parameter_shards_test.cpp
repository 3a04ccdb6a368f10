// ZeRO-2 and ZeRO-3 in a job: sharded gradients and parameters, with the bits of whole ones.
#include "actors/train/engine/parameter_shards.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "actors/train/engine/held_shards.hpp"
#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/on_host.hpp"
#include "tests/actors/ddp/recording_device.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

using collectives::LeafInterval;
using Group = std::shared_ptr<collectives::ProcessGroup>;

constexpr int kLeaves = 4;

/// Linear layers of unlike sizes, BatchNorm, dropout, a weight that is used twice, one that is not trained.
struct DeepNetImpl : torch::nn::Module {
  explicit DeepNetImpl(std::int64_t width = 37) : wide(width) {}
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::tanh(norm->forward(in->forward(x)));
    y = torch::dropout(y, 0.3, is_training());
    y = torch::tanh(middle->forward(torch::tanh(middle->forward(y))));
    return out->forward(y) + fixed;
  }
  const std::int64_t wide;
  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, wide));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(wide));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(wide, wide));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(wide, 4));
  torch::Tensor fixed = register_parameter("fixed", torch::full({4}, 0.25), /*requires_grad=*/false);
};
TORCH_MODULE(DeepNet);

struct DeepJob {
  bool adam = false;
  bool adagrad = false;       ///< which has fields for what is not trained, too
  bool replaces = false;      ///< gradients, before they are clipped; and drops one
  bool skips_middle = false;  ///< in odd leaves
  bool turns = false;         ///< each third step uses the last layer early
  bool ends = false;          ///< leaf 1 throws in step 2, when one unit is used and the next is to come
  bool weighs = false;
  std::int64_t wide = 37;
  double norm_type = 2;

  DeepNet setup(Setup& s) const {
    auto net = s.module("", DeepNet(wide));
    std::vector<torch::Tensor> trained;
    for (const auto& one : net->parameters())
      if (one.requires_grad() || adagrad) trained.push_back(one);
    if (adagrad) {
      s.optimizer<torch::optim::Adagrad>("all", trained, torch::optim::AdagradOptions(0.05));
    } else if (adam) {
      s.optimizer<torch::optim::AdamW>("all", trained, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    } else {
      s.optimizer<torch::optim::SGD>("all", trained, torch::optim::SGDOptions(0.05).momentum(0.9));
    }
    return net;
  }
  torch::Tensor loss(DeepNet& net, const data::Batch& batch, Leaf& at) const {
    if (weighs) at.weight(1 + at.rank);
    const bool early = turns && at.step % 3 == 2;
    torch::Tensor of_out;
    if (early) {
      net->in->forward(batch.input);  // behind which its BatchNorm is expected
      of_out = net->out->weight.square().sum();
    }
    if (ends && at.rank == 1 && at.step == 2) {
      net->in->forward(batch.input);
      throw std::runtime_error("the leaf ends");
    }
    torch::Tensor output = net->forward(batch.input);
    if (turns && !early) of_out = net->out->weight.square().sum();
    if (turns) return torch::nn::functional::cross_entropy(output, batch.target) + 0.1 * of_out;
    if (skips_middle && at.rank % 2 == 1)
      output = net->out->forward(torch::tanh(net->in->forward(batch.input)));
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  void apply(Apply& a) const {
    if (replaces) {
      auto parameters = a.optimizer("all").param_groups().front().params();
      for (auto& one : parameters) {
        if (one.grad().defined()) one.mutable_grad() = one.grad() * 3;
      }
      parameters.at(2).mutable_grad() = torch::Tensor();
    }
    a.clip_grad_norm(0.1, norm_type);
    a.clip_grad_value(0.01);
    a.count_parameters();
    if (a.gradients_are_finite()) a.step();
  }
};

using Strategy = std::optional<ShardingStrategy>;

template <class Job>
std::unique_ptr<StepEngine> sharded_engine(const Job& job, int leaves, Strategy strategy,
                                           std::size_t unit_elements = 100,
                                           const ReducerOptions& reducer = {}, bool prefetch = false) {
  set_up_numerics();
  EngineOptions options{.logical_ranks = leaves, .seed = kSeed, .reducer = reducer};
  if (strategy)
    options.shard_parameters =
        FsdpOptions{.min_num_params = unit_elements, .sharding_strategy = *strategy, .prefetch = prefetch};
  return std::make_unique<StepEngine>(make_training_model(job, kSeed), options);
}

/// Six steps, the first on a group that it is attached to here: pieces are gone with their group. The hash,
/// the losses of this rank's leaves and the norms of gradients.
template <class Job>
std::string train(StepEngine& engine, const Group& group, const Job& job, std::uint64_t first = 0) {
  if (first == 0) engine.attach(group);
  std::string norms;
  for (std::uint64_t step = first; step < first + 6; ++step) {
    engine.run_step(step, leaf_batches(*group, step, small));
    double weights = 0;
    for (int leaf = 0; job.weighs && leaf < kLeaves; ++leaf) weights += 1 + leaf;
    const StepValues values = engine.apply(false, weights);
    for (const auto* name : {"gradient_norm", "parameter_norm", "parameter_norm/middle.weight"})
      norms += " " + std::to_string(values.at(name));
  }
  return hash_of(engine) + norms;
}

TEST_CASE("sharded gradients and parameters have the bits of whole ones, on any number of trainers") {
  const DeepJob job{.adam = GENERATE(false, true), .weighs = GENERATE(false, true)};
  CAPTURE(job.adam, job.weighs);
  const std::string whole = fork_ranks(
      kLeaves, 1, [&](auto group) { return train(*sharded_engine(job, kLeaves, {}), group, job); })[0];
  REQUIRE(whole.find(' ') == 64);
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks, static_cast<int>(strategy));
      for (const auto& said : fork_ranks(kLeaves, ranks, [&](auto group) {
             return train(*sharded_engine(job, kLeaves, strategy), group, job);
           }))
        CHECK(said == whole);
    }
  }
}

TEST_CASE("shards that go through the host, as on GPUs without NCCL, have the same bits") {
  const DeepJob job{.adam = true};
  ReducerOptions through;
  through.through_host = true;
  const std::string whole = fork_ranks(
      kLeaves, 1, [&](auto group) { return train(*sharded_engine(job, kLeaves, {}), group, job); })[0];
  REQUIRE(whole.find(' ') == 64);
  for (const int ranks : {2, 3}) {
    for (const auto& said : fork_ranks(kLeaves, ranks, [&](auto group) {
           return train(*sharded_engine(job, kLeaves, ShardingStrategy::kFullShard, 100, through), group,
                        job);
         }))
      CHECK(said == whole);
  }
}

TEST_CASE("units that come ahead, in the order of the step before, have the same bits") {
  const bool turns = GENERATE(false, true), through_host = GENERATE(false, true);
  const DeepJob job{.adam = true, .turns = turns};
  CAPTURE(turns, through_host);
  ReducerOptions reducer;
  reducer.through_host = through_host;
  const std::string whole = fork_ranks(
      kLeaves, 1, [&](auto group) { return train(*sharded_engine(job, kLeaves, {}), group, job); })[0];
  REQUIRE(whole.find(' ') == 64);
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    for (const int ranks : {2, 3}) {
      CAPTURE(ranks, static_cast<int>(strategy));
      for (const auto& said : fork_ranks(kLeaves, ranks, [&](auto group) {
             auto engine = sharded_engine(job, kLeaves, strategy, 100, reducer, true);
             const std::string same = train(*engine, group, job);
             const auto& ahead = engine->pieces()->prefetched();
             // Five steps behind the first, of three units at least.
             return same + (ahead.used >= (turns ? 6 : 15) ? "" : " nothing came ahead") +
                    ((ahead.dropped > 0) == turns ? "" : " another order was foretold");
           }))
        CHECK(said == whole);
    }
  }
}

TEST_CASE(
    "shards on a device go by its default stream, behind what computes, and the host waits once a step") {
  const bool prefetch = GENERATE(false, true);
  const auto told = fork_ranks(2, 2, [&](auto group) -> std::string {
    ReducerOptions recorded;
    recorded.streams = RecordingDevice::device();
    RecordingDevice& device = RecordingDevice::anew();
    const auto engine = sharded_engine(DeepJob{}, 2, ShardingStrategy::kFullShard, 100, recorded, prefetch);
    engine->attach(group, on_host(group));  // another one, over the same ranks
    std::string log;
    // The job computes on a stream of its own.
    const DeviceStreams streams(RecordingDevice::device());
    streams.aside([&] {
      const std::string own = "s" + std::to_string(streams.computing()->id());
      engine->run_step(0, leaf_batches(*group, 0, small));
      engine->apply();
      device.log.clear();
      engine->run_step(1, leaf_batches(*group, 1, small));
      for (std::string line : device.log) {
        if (line.find(" on s") != std::string::npos) continue;  // events
        line = line.substr(0, line.find(" e"));
        log += (line.ends_with(own) || line.starts_with(own) ? line.replace(line.find(own), own.size(), "own")
                                                             : line) +
               "\n";
      }
    });
    engine->detach();
    return log;
  });
  const std::string one = "s0 waits for\nnow s0\nnow own\nown waits for\n";  // begun, or waited for
  for (std::string log : told) {
    CAPTURE(log);
    int operations = 0, gradients = 0;
    while (log.starts_with(one) || log.starts_with("s0 waits for\n")) {
      const bool moves = log.starts_with(one);
      log.erase(0, moves ? one.size() : std::string("s0 waits for\n").size());
      ++(moves ? operations : gradients);
    }
    // Four units come in the forward and one again in the backward, four gradients are reduced, and buffers
    // come.
    CHECK(operations == 2 * 10);
    CHECK(gradients == 8);
    CHECK(log == "host waits for own\n");
  }
}

TEST_CASE("a leaf that ends while a unit is on its way ends the step for all, and the next begins anew") {
  const DeepJob job{.ends = true};
  for (const auto& said : fork_ranks(kLeaves, 2, [&](auto group) -> std::string {
         auto engine = sharded_engine(job, kLeaves, ShardingStrategy::kFullShard, 100, {}, true);
         engine->attach(group);
         try {
           for (std::uint64_t step = 0; step < 3; ++step) {
             engine->run_step(step, leaf_batches(*group, step, small));
             engine->apply();
           }
         } catch (const std::exception& error) {
           const std::string ahead =
               engine->pieces()->prefetched().used > 0 ? "" : ", and nothing came ahead";
           engine->detach();
           return error.what() + ahead;
         }
         return "nothing";
       }))
    CHECK_THAT(said, Catch::Contains("the leaf ends") && !Catch::Contains("nothing"));
}

// The sharded job clipped by the gradients that the step had reduced.
TEST_CASE("gradients that apply() replaces or drops are clipped by their own norm") {
  const DeepJob job{.replaces = true, .norm_type = GENERATE(2.0, 0.0)};
  const auto in_all = [&](int ranks, Strategy strategy) {
    return fork_ranks(kLeaves, ranks,
                      [&](auto group) { return train(*sharded_engine(job, kLeaves, strategy), group, job); });
  };
  const std::string whole = in_all(1, {})[0];
  REQUIRE(whole.find(' ') == 64);
  DeepJob kept = job;
  kept.replaces = false;
  CHECK(whole != fork_ranks(kLeaves, 1, [&](auto group) {
          return train(*sharded_engine(kept, kLeaves, {}), group, kept);
        })[0]);
  for (const auto& said : in_all(3, ShardingStrategy::kFullShard)) CHECK(said == whole);
}

// They were missing from a sharded job's checkpoints and its hash.
TEST_CASE("what an optimizer keeps for a parameter that is not trained is part of a sharded state") {
  const DeepJob job{.adagrad = true};
  const auto names = [](StepEngine& engine) {
    std::string all;
    ParameterShards* pieces = engine.pieces();
    const auto walk = pieces == nullptr ? nullptr : pieces->walk(-1);
    for (const auto& part : walk ? walk->parts() : engine.state().view().parts) all += part.name + "\n";
    return all;
  };
  const auto in_all = [&](int ranks, Strategy strategy) {
    return fork_ranks(kLeaves, ranks, [&](auto group) {
      auto engine = sharded_engine(job, kLeaves, strategy);
      return train(*engine, group, job) + names(*engine);
    });
  };
  const std::string whole = in_all(1, {})[0];
  REQUIRE(whole.find("optimizer[all]/fixed/sum\n") != std::string::npos);
  for (const auto& said : in_all(3, ShardingStrategy::kFullShard)) CHECK(said == whole);
}

TEST_CASE("leaves may be dealt unevenly, and partial sums be several") {
  const DeepJob job{.adam = true};
  const int leaves = 7;
  const auto in_all = [&](const std::vector<LeafInterval>& dealt, Strategy strategy) {
    return fork_ranks(dealt,
                      [&](auto group) { return train(*sharded_engine(job, leaves, strategy), group, job); });
  };
  const std::string whole = in_all({{0, 7}}, {})[0];
  REQUIRE(whole.find(' ') == 64);
  for (const auto& dealt : std::vector<std::vector<LeafInterval>>{
           {{0, 1}, {1, 2}, {2, 7}}, {{0, 3}, {3, 6}, {6, 7}}, {{0, 5}, {5, 7}}}) {
    for (const auto& said : in_all(dealt, ShardingStrategy::kFullShard)) CHECK(said == whole);
  }
}

TEST_CASE("a state that was saved in pieces is installed in other ones, or whole") {
  const DeepJob job{.adam = true};
  const auto going_on = [&](StepEngine& engine, const Group& group) {
    // The walk gives each part; installed again on a fresh engine, as from a file.
    std::vector<std::vector<std::byte>> memory;
    std::vector<StatePart> parts;
    const auto read = [&](StateWalk& walk) {
      for (std::size_t i = 0; i < walk.parts().size(); ++i) {
        const auto bytes = walk.bytes(i);
        memory.emplace_back(bytes.begin(), bytes.end());
        parts.push_back(walk.parts()[i]);
        parts.back().bytes = memory.back();
      }
    };
    if (auto* pieces = engine.pieces())
      read(*pieces->walk(-1));
    else {
      const StateView view = engine.state().view();
      WholeWalk walk(view.parts, nullptr);
      read(walk);
    }
    auto again = sharded_engine(job, kLeaves, ShardingStrategy::kFullShard);
    again->attach(group);
    again->install(parts);
    const std::string same = hash_of(*again);
    again->install(parts);  // over pieces that are there
    // From a file part by part, and from one that cannot be read at first.
    auto unread = parts;
    for (StatePart& part : unread) part.bytes = {static_cast<const std::byte*>(nullptr), part.bytes.size()};
    for (const std::size_t fails_at : {parts.size() / 2, parts.size() - 1, std::size_t{100'000}}) {
      std::size_t reads = 0;
      try {
        again->install(unread, [&](const StatePart& of) {
          if (reads++ == fails_at) throw_error({ErrorCode::kIo, "cannot read it", "the disk", ""});
          return std::find_if(parts.begin(), parts.end(), [&](auto& one) { return one.name == of.name; })
              ->bytes;
        });
        if (reads < parts.size()) return std::string("some were not read");
      } catch (const IoError&) {
        if (fails_at > 1000) throw;
      }
    }
    return (same == hash_of(engine) ? "" : "another state was installed ") + train(*again, group, job, 6);
  };
  std::string expected;
  for (const int ranks : {1, 4, 2}) {
    CAPTURE(ranks);
    for (const auto& said : fork_ranks(kLeaves, ranks, [&](auto group) {
           auto engine = sharded_engine(job, kLeaves, ShardingStrategy::kFullShard);
           train(*engine, group, job);
           return going_on(*engine, group);
         })) {
      if (expected.empty()) expected = said;
      CHECK(said == expected);
    }
  }
  CHECK(expected.find(' ') == 64);
}

/// A convolution with a channels_last weight, beside what is not trained and a buffer.
struct ChannelsLastImpl : torch::nn::Module {
  ChannelsLastImpl() {
    const torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(5, 7, 3));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(9, 11));
  torch::Tensor fixed = register_parameter("fixed", torch::full({4}, 0.25), /*requires_grad=*/false);
  torch::Tensor seen = register_buffer("seen", torch::zeros({2}));
};
TORCH_MODULE(ChannelsLast);
struct ChannelsLastJob {
  ChannelsLast model() const { return ChannelsLast(); }
  torch::optim::AdamW optimizer(ChannelsLast& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01));
  }
  torch::Tensor loss(ChannelsLast& net, const data::Batch& batch) const {
    return net->conv->weight.pow(3).mean() + net->last->weight.square().mean() + batch.input.mean() +
           net->conv->bias.mean() + net->last->bias.mean();
  }
};

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("what trainers hold of a state comes to the file of all of it, and what is lost is told") {
  const auto held = [](const Group& group, Strategy strategy) {
    auto engine = sharded_engine(ChannelsLastJob{}, kLeaves, strategy, 50);
    engine->attach(group);
    for (std::uint64_t step = 0; step < 3; ++step) {
      engine->run_step(step, leaf_batches(*group, step, small));
      engine->apply();
    }
    if (auto* pieces = engine->pieces()) return as_text(write_shard(pieces->held()));
    const StateView view = engine->state().view();
    return as_text(checkpoint::write_safetensors(checkpoint::lay_out_safetensors(view.parts).value()));
  };
  const auto whole = fork_ranks(kLeaves, 1, [&](auto group) { return held(group, {}); })[0];
  REQUIRE(whole.find("optimizer/conv.weight/exp_avg") != std::string::npos);
  for (const int ranks : {2, 3}) {
    const auto shards =
        fork_ranks(kLeaves, ranks, [&](auto group) { return held(group, ShardingStrategy::kFullShard); });
    JoinedShards joined, lacks, twice;
    for (const auto& shard : shards) joined.add(std::as_bytes(std::span(shard))).value();
    CHECK((as_text(joined.finish().value()) == whole));
    const auto first = std::as_bytes(std::span(shards[0]));
    lacks.add(first).value();
    CHECK_THAT(lacks.finish().error().message(), Catch::Contains("are missing"));
    twice.add(first).value();
    CHECK_THAT(twice.add(first).error().message(), Catch::Contains("more elements than it should"));
    CHECK_FALSE(twice.add(first.first(first.size() / 2)).ok());
    CHECK_FALSE(twice.add(first.first(3)).ok());
  }
}

/// A copy that is there at once.
class FileCopy final : public StateCopy {
 public:
  explicit FileCopy(const StateView& view)
      : StateCopy(view.parts),
        file_(checkpoint::write_safetensors(checkpoint::lay_out_safetensors(view.parts).value())) {}
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), file_.data() + offset, into.size());
  }

 private:
  const std::vector<std::byte> file_;
};

std::string hash_of_walk(StateWalk& walk) {
  FinalHash hash;
  for (std::size_t i = 0; i < walk.parts().size(); ++i) {
    StatePart part = walk.parts()[i];
    part.bytes = walk.bytes(i);
    hash.add(part);
  }
  return hash.finish();
}

// A checkpoint was gathered part by part while all steps waited.
TEST_CASE("copies of shards come to the state as it was, whatever steps came since") {
  const auto joined = [](const auto& job, const Group& group, const auto& batch) -> std::string {
    auto engine = sharded_engine(job, kLeaves, ShardingStrategy::kFullShard, 50);
    engine->attach(group);
    const auto run = [&](std::uint64_t step) {
      engine->run_step(step, leaf_batches(*group, step, batch));
      engine->apply();
    };
    for (std::uint64_t step = 0; step < 3; ++step) run(step);
    const ShardedState state =
        engine->pieces()->shards([](const StateView& mine) { return std::make_unique<FileCopy>(mine); });
    const auto copy = state.copy_mine();
    const std::string then = hash_of(*engine);
    for (std::uint64_t step = 3; step < 5; ++step) run(step);
    if (hash_of(*engine) == then) return "the steps change nothing";
    std::vector<std::vector<std::byte>> files;
    for (int rank = 0; rank < group->size(); ++rank) {
      auto size = static_cast<std::int64_t>(copy->size());
      group->broadcast(std::span(&size, 1), rank)->wait();
      std::vector<std::byte>& file = files.emplace_back(static_cast<std::size_t>(size));
      if (rank == group->rank()) copy->read(0, file);
      group->broadcast({file.data(), file.size(), collectives::DType::kUInt8}, rank)->wait();
    }
    JoinedWalk walk(state, [&](std::size_t rank, std::uint64_t offset, std::span<std::byte> into) {
      std::memcpy(into.data(), files[rank].data() + offset, into.size());
    });
    return hash_of_walk(walk) == then ? "the same" : "another state";
  };
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    for (const auto& said :
         fork_ranks(kLeaves, ranks, [&](auto group) { return joined(DeepJob{.adam = true}, group, small); }))
      CHECK(said == "the same");
    for (const auto& said :
         fork_ranks(kLeaves, ranks, [&](auto group) { return joined(ChannelsLastJob{}, group, small); }))
      CHECK(said == "the same");
  }
}

TEST_CASE("a state of another model does not fit: the part is told, and both shapes") {
  const auto told = [](const auto& job, const Group& group) -> std::string {
    auto engine = sharded_engine(DeepJob{}, kLeaves, ShardingStrategy::kFullShard);
    engine->attach(group);
    auto other = make_training_model(job, kSeed);
    try {
      engine->install(TrainState(*other).view().parts);
    } catch (const Error& error) {
      return error.what();
    }
    return "it fits";
  };
  CHECK_THAT(fork_ranks(kLeaves, 2, [&](auto group) { return told(SmallJob{}, group); })[0],
             Catch::Contains("does not fit this model: fixed: the state has no such part"));
  DeepJob narrow;
  narrow.wide = 24;
  CHECK_THAT(fork_ranks(kLeaves, 2, [&](auto group) { return told(narrow, group); })[0],
             Catch::Contains("in.weight") && Catch::Contains("F32[24,16]") && Catch::Contains("F32[37,16]"));
}

TEST_CASE("evaluations of unlike length see the same weights") {
  const DeepJob job{.adam = true};
  const bool prefetch = GENERATE(false, true);
  const auto evaluate = [&](StepEngine& engine, const Group& group, int pieces) {
    std::string losses;
    for (const int epoch : {0, 1}) {
      engine.begin_evaluation(pieces);
      for (int piece = 0; piece < pieces; ++piece)
        losses += " " + std::to_string(engine.evaluate(piece, epoch, small_batch(99, piece)).back().sum);
      engine.end_evaluation();
    }
    return losses + train(engine, group, job, 6);
  };
  const std::string whole = fork_ranks(kLeaves, 1, [&](auto group) {
    auto engine = sharded_engine(job, kLeaves, {});
    train(*engine, group, job);
    return evaluate(*engine, group, 3);
  })[0];
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    const auto said = fork_ranks(kLeaves, 3, [&](auto group) {
      auto engine = sharded_engine(job, kLeaves, strategy, 100, {}, prefetch);
      train(*engine, group, job);
      return evaluate(*engine, group, group->rank() == 1 ? 3 : 0);  // the first has none
    });
    CHECK(said[1] == whole);
  }
}

/// What a step throws, by rank.
template <class Job>
std::vector<std::string> thrown_by_step(const Job& job) {
  return fork_ranks(2, 2, [&](auto group) -> std::string {
    auto engine = sharded_engine(job, 2, ShardingStrategy::kFullShard);
    engine->attach(group);
    try {
      engine->run_step(0, leaf_batches(*group, 0, small));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  });
}

TEST_CASE("trainers that use other units are told which") {
  const auto said = thrown_by_step(DeepJob{.skips_middle = true});
  CHECK_THAT(said[1], Catch::Contains("rank 1") && Catch::Contains("rank 0") && Catch::Contains("unit"));
  CHECK_THAT(said[0], Catch::Contains("rank 1"));
}

struct ChangesJob : DeepJob {
  int how = 0;
  torch::Tensor loss(DeepNet& net, const data::Batch& batch, Leaf& at) const {
    if (how == 1) {
      const torch::NoGradGuard no_grad;
      net->middle->weight.mul_(0.5);
    }
    if (how == 2) return DeepJob::loss(net, batch, at).detach().requires_grad_();
    return DeepJob::loss(net, batch, at);
  }
};

TEST_CASE("a parameter that is changed in place, or has no gradient, is an error that names it") {
  for (const auto& [how, told] :
       {std::pair(1, "middle.weight"), std::pair(2, "parameters without a gradient: in.weight")}) {
    ChangesJob job;
    job.how = how;
    CHECK_THAT(thrown_by_step(job)[0], Catch::Contains(told));
  }
}

TEST_CASE("a job whose parameters cannot be sharded is refused") {
  struct Averages : SmallJob {
    Ema ema() const { return {}; }
  };
  CHECK_THROWS_WITH(sharded_engine(Averages{}, 2, ShardingStrategy::kFullShard),
                    Catch::Contains("an average of its weights"));
}

/// Counts tensors' bytes; has no more than its budget.
class BudgetAllocator final : public c10::Allocator {
 public:
  explicit BudgetAllocator(double budget) : base_(*c10::GetCPUAllocator()) {
    budget_ = budget;
    now_ = most_ = 0;
    c10::SetCPUAllocator(this, 255);
  }
  double most() const { return most_; }
  double now() const { return now_; }
  void forget_most() { most_ = now_; }

  c10::DataPtr allocate(std::size_t bytes) TROUPE_ALLOCATE_CONST override {
    if (now_ + static_cast<double>(bytes) > budget_) throw std::runtime_error("the budget is spent");
    auto* block = new Block{base_.allocate(bytes), static_cast<double>(bytes)};
    now_ = now_ + block->bytes;
    most_ = std::max(most_, now_);
    return {block->memory.get(), block, &end, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const TROUPE_COPY_DATA_OVERRIDE {
    std::memcpy(to, from, count);
  }

 private:
  struct Block {
    c10::DataPtr memory;
    double bytes;
  };
  static void end(void* context) {
    auto* block = static_cast<Block*>(context);
    now_ = now_ - block->bytes;
    delete block;
  }
  c10::Allocator& base_;
  static inline double budget_ = 0, now_ = 0, most_ = 0;
};

/// Eight layers alike, 2.1 MB, under AdamW.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(256, 256));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::LinearImpl>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Layers);
struct LayersJob {
  Layers model() const { return Layers(); }
  torch::optim::AdamW optimizer(Layers& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01));
  }
  torch::Tensor loss(Layers& net, const data::Batch& batch) const {
    return net->forward(batch.input).square().mean();
  }
};

TEST_CASE("a model that does not fit the budget of one trainer trains on four, within 5 % of the formula") {
  constexpr double kLayer = (256 * 256 + 256) * 4;
  constexpr double kParameters = 8 * kLayer;
  constexpr double kBudget = 2.2 * kParameters;  // whole: four times the parameters
  const auto batch = [](std::uint64_t, int) { return data::Batch{torch::ones({2, 256}), {}}; };
  const auto steps = [&](Strategy strategy, const Group& group) -> std::string {
    set_up_numerics();                             // which has an allocator of its own
    auto& budget = *new BudgetAllocator(kBudget);  // tensors may outlive statics
    auto engine = sharded_engine(LayersJob{}, kLeaves, strategy, 60000);
    engine->attach(group);
    const auto run = [&](std::uint64_t step) {
      engine->run_step(step, leaf_batches(*group, step, batch));
      engine->apply();
    };
    for (std::uint64_t step = 0; step < 2; ++step) run(step);
    const double between = budget.now();
    budget.forget_most();
    for (std::uint64_t step = 2; step < 4; ++step) run(step);
    const double most = budget.most();
    const std::string hash = hash_of(*engine);  // part by part: within the budget, too
    return hash + " " + std::to_string(between / kParameters) + " " + std::to_string(most / kParameters);
  };
  CHECK(fork_ranks(kLeaves, 2, [&](auto group) { return steps({}, group); })[0].find("budget is spent") !=
        std::string::npos);
  for (const auto& said :
       fork_ranks(kLeaves, 4, [&](auto group) { return steps(ShardingStrategy::kFullShard, group); })) {
    CAPTURE(said);
    REQUIRE(said.size() > 66);
    const double between = std::stod(said.substr(65));
    const double most = std::stod(said.substr(said.rfind(' ') + 1));
    // (K + 1) P / N between steps; 3 U + (K + 2) P / N at most, of units U and no root.
    CHECK(between == Approx(3.0 / 4).epsilon(0.05));
    CHECK(most == Approx(3.0 / 8 + 4.0 / 4).epsilon(0.05));
  }
}

}  // namespace
}  // namespace troupe::train::testing
