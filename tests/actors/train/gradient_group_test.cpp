// Gradients over NCCL, with the trainers' own group beside it for everything else: ranks are threads over the
// double of NCCL (nccl_double.hpp), whose device memory is the host's, so that LibTorch computes on the CPU.
#include "actors/train/engine/gradient_group.hpp"

#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/on_host.hpp"
#include "tests/actors/train/train_jobs.hpp"
#include "tests/collectives/nccl_double.hpp"
#include "tests/collectives/nccl_faults.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"

namespace troupe::train::testing {
namespace {

using namespace std::chrono_literals;
using collectives::ProcessGroup;
using collectives::testing::fail_rank_1;
using collectives::testing::NcclDouble;
using test::contains;

constexpr int kLeaves = 4;

/// Without dropout, since threads share LibTorch's generator; and without buffers, whose broadcast would find
/// errors, too.
struct PlainNetImpl : torch::nn::Module {
  PlainNetImpl() : in(16, 24), out(24, 4) {
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
  torch::nn::Linear in, out;
};
TORCH_MODULE(PlainNet);

struct PlainJob {
  PlainNet model() const { return {}; }
  torch::optim::Adam optimizer(PlainNet& net) const { return torch::optim::Adam(net->parameters(), 0.01); }
  torch::Tensor loss(PlainNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
};

/// Which also has trainers with shards tell each other norms.
struct ClippedJob : PlainJob {
  void apply(Apply& a) const {
    a.clip_grad_norm(0.1);
    a.step();
  }
};

/// Weights are drawn from LibTorch's generator, which threads share.
std::unique_lock<std::mutex> hold_generator() {
  static std::mutex generator;
  return std::unique_lock(generator);
}

struct Trained {
  std::unique_ptr<StepEngine> engine;
  /// Of ClippedJob; none: whole.
  explicit Trained(std::optional<ShardingStrategy> strategy) {
    const auto hold = hold_generator();
    EngineOptions options{.logical_ranks = kLeaves, .seed = 7};
    if (strategy)
      options.shard_parameters = FsdpOptions{.min_num_params = 50, .sharding_strategy = *strategy};
    engine = std::make_unique<StepEngine>(make_training_model(ClippedJob{}, 7), options);
  }
  explicit Trained(bool buffers = true) {
    const auto hold = hold_generator();
    ReducerOptions reducer;
    reducer.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};  // several buckets in a small net
    engine = std::make_unique<StepEngine>(
        buffers ? make_training_model(SmallJob{.dropout = 0}, 7) : make_training_model(PlainJob{}, 7),
        EngineOptions{.logical_ranks = kLeaves, .seed = 7, .reducer = reducer});
  }
  void step(ProcessGroup& group, std::uint64_t number) {
    engine->run_step(number, leaf_batches(group, number, [](std::uint64_t step, int leaf) {
                       return small_batch(step, leaf);
                     }));
    group.barrier()->wait();  // a step is applied once every trainer has reduced it, as the driver orders
    engine->apply();
  }
  std::string hash() { return engine->state().hash(); }
};

std::string hash_of_one(std::uint64_t steps, bool buffers) {
  Trained alone(buffers);
  const auto group = lone_group(kLeaves);
  alone.engine->attach(group);
  for (std::uint64_t step = 0; step < steps; ++step) alone.step(*group, step);
  return alone.hash();
}

/// Who is in a generation: process p computes on device p of the double.
struct Members {
  std::vector<int> processes;  ///< by rank
  std::uint32_t counter = 1;   ///< of the generation
  std::function<GradientsBefore(int process)> before{};
};
Members members(int ranks, std::uint32_t counter = 1) {
  Members all{.processes = {}, .counter = counter};
  for (int p = 0; p < ranks; ++p) all.processes.push_back(p);
  return all;
}

/// Threads as trainers: gives each their own group, and the group of gradients beside it. What each threw.
using Body =
    std::function<void(std::shared_ptr<ProcessGroup> group, std::shared_ptr<ProcessGroup> gradients)>;
std::vector<std::string> run_ranks(const Members& generation, NcclDouble& library, const Body& body) {
  set_up_numerics();
  const int ranks = static_cast<int>(generation.processes.size());
  collectives::testing::Layout layout;
  layout.leaves = collectives::deal_leaves(kLeaves, ranks);
  layout.generation = {1, generation.counter};
  auto all = collectives::testing::options_of(ranks, layout);
  std::vector<std::string> thrown(all.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < all.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        const std::shared_ptr<ProcessGroup> group = collectives::make_native_group(std::move(all[r]));
        const int p = generation.processes[r];
        auto gradients =
            make_gradient_group(group, {.trainer_gpus = 1, .device = p, .timeout = 30s},
                                generation.before ? generation.before(p) : GradientsBefore{}, library.api(p));
        body(group, std::move(gradients));
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

/// Generations of one job, whose trainers keep their group of gradients for the next one.
struct Generations {
  NcclDouble library;
  std::map<int, std::shared_ptr<ProcessGroup>> kept{};  ///< by process
  std::vector<int> processes{};                         ///< of the last one, by rank
  std::uint32_t counter = 0;

  /// The next one, of these processes; those that are not among them are gone. `body` has the rank's process.
  using NextBody =
      std::function<void(int process, ProcessGroup& group, const std::shared_ptr<ProcessGroup>& gradients)>;
  void next(const std::vector<int>& with, const NextBody& body) {
    const auto ids = [](const std::vector<int>& of) {
      std::vector<ActorId> actors;
      for (const int p : of) actors.push_back({static_cast<std::uint64_t>(p) + 1});
      return actors;
    };
    const std::vector<int> gone = ranks_gone(ids(processes), ids(with));
    auto groups = std::exchange(kept, {});
    for (const int p : with) kept[p] = nullptr;  // so that no thread changes the map
    const auto before = [&](int p) {
      return gone.empty() ? GradientsBefore{} : GradientsBefore{std::move(groups.at(p)), gone};
    };
    if (gone.empty()) groups.clear();
    const auto thrown = run_ranks({with, ++counter, before}, library, [&](auto group, auto gradients) {
      const int p = with[static_cast<std::size_t>(group->rank())];
      body(p, *group, gradients);
      group->barrier()->wait();
      kept.at(p) = std::move(gradients);
    });
    for (const auto& what : thrown) CHECK(what == "");
    processes = with;
  }
  /// How often process p made a communicator: from another one, and from scratch.
  std::pair<int, int> made(int p) const {
    return {library.calls(p, "ncclCommShrink"), library.calls(p, "ncclCommInitRankConfig")};
  }
};

TEST_CASE("gradients over NCCL have the bits of the trainers' own group, for any number of trainers") {
  const std::string expected = hash_of_one(8, true);
  REQUIRE(expected.size() == 64);
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    NcclDouble library;
    std::vector<std::string> hashes(static_cast<std::size_t>(ranks));
    const auto thrown = run_ranks(members(ranks), library, [&](auto group, auto gradients) {
      REQUIRE(gradients);
      Trained trained;
      group->barrier()->wait();  // a step seeds LibTorch's generator
      trained.engine->attach(group, gradients);
      for (std::uint64_t step = 0; step < 8; ++step) trained.step(*group, step);
      hashes[static_cast<std::size_t>(group->rank())] = trained.hash();
      trained.engine->detach();
      group->barrier()->wait();
    });
    for (const auto& what : thrown) CHECK(what == "");
    for (const auto& hash : hashes) CHECK(hash == expected);
    CHECK(library.calls(0, "ncclCommInitRankConfig") == 1);
    CHECK(library.misuse() == std::vector<std::string>{});
  }
}

TEST_CASE("a step whose gradients cannot be reduced is not applied, and runs again with the same bits") {
  const std::string expected = hash_of_one(3, false);
  const std::string how = GENERATE("error", "hang", "call");  // in step 1
  CAPTURE(how);
  NcclDouble library;
  std::vector<std::unique_ptr<Trained>> trained(2);
  std::vector<std::string> after(2), before(2);
  std::barrier have_stepped(2);
  const auto thrown = run_ranks(members(2), library, [&](auto group, auto gradients) {
    const auto rank = static_cast<std::size_t>(group->rank());
    trained[rank] = std::make_unique<Trained>(false);
    group->barrier()->wait();  // a step seeds LibTorch's generator
    trained[rank]->engine->attach(group, gradients);
    trained[rank]->step(*group, 0);
    before[rank] = trained[rank]->hash();
    have_stepped.arrive_and_wait();  // or the fault may come into the other's step 0
    std::jthread node;
    if (rank == 1) node = fail_rank_1(library, how, group);
    try {
      group->barrier()->wait();
      trained[rank]->step(*group, 1);
    } catch (...) {
      node = {};
      after[rank] = trained[rank]->hash();
      const std::string reason = group->abort_reason();
      trained[rank]->engine->detach();
      CHECK(!reason.empty());
      if (how == "hang") CHECK(contains(reason, "the process of rank 1 is gone"));
      throw;
    }
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    CHECK(thrown[rank] != "");
    CHECK(after[rank] == before[rank]);
  }
  // The next generation.
  const auto again = run_ranks(members(2, 2), library, [&](auto group, auto gradients) {
    Trained& one = *trained[static_cast<std::size_t>(group->rank())];
    one.engine->attach(group, gradients);
    for (std::uint64_t step = 1; step < 3; ++step) one.step(*group, step);
    CHECK(one.hash() == expected);
    one.engine->detach();
    group->barrier()->wait();
  });
  for (const auto& what : again) CHECK(what == "");
  trained.clear();
  CHECK(library.misuse() == std::vector<std::string>{});
}

std::string clipped_hash_of_one(std::uint64_t steps) {
  Trained alone(std::optional<ShardingStrategy>{});
  const auto group = lone_group(kLeaves);
  alone.engine->attach(group);
  for (std::uint64_t step = 0; step < steps; ++step) alone.step(*group, step);
  return alone.hash();
}

TEST_CASE(
    "sharded gradients and parameters over NCCL have the bits of whole ones, on any number of trainers") {
  const auto strategy = GENERATE(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp);
  const std::string expected = clipped_hash_of_one(6);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks, static_cast<int>(strategy));
    NcclDouble library;
    std::vector<std::string> hashes(static_cast<std::size_t>(ranks));
    const auto thrown = run_ranks(members(ranks), library, [&](auto group, auto gradients) {
      Trained trained(strategy);
      group->barrier()->wait();  // a step seeds LibTorch's generator
      trained.engine->attach(group, on_host(std::move(gradients)));
      for (std::uint64_t step = 0; step < 6; ++step) trained.step(*group, step);
      trained.engine->begin_evaluation(group->rank() == 1 ? 2 : 0);
      for (int piece = 0; group->rank() == 1 && piece < 2; ++piece)
        trained.engine->evaluate(piece, 0, small_batch(99, piece));
      trained.engine->end_evaluation();
      hashes[static_cast<std::size_t>(group->rank())] = hash_of(*trained.engine);
      trained.engine->detach();
      group->barrier()->wait();
    });
    for (const auto& what : thrown) CHECK(what == "");
    for (const auto& hash : hashes) CHECK(hash == expected);
    CHECK(library.calls(0, "ncclGroupEnd") > 6 * 4);  // a step: two units twice, and their gradients
    CHECK(library.misuse() == std::vector<std::string>{});
  }
}

TEST_CASE("a sharded step that NCCL fails is not applied; from its state before, it has the same bits") {
  const std::string expected = clipped_hash_of_one(3);
  const std::string how = GENERATE("error", "hang", "call");  // see above
  CAPTURE(how);
  NcclDouble library;
  std::vector<StatePart> parts;
  std::vector<std::vector<std::byte>> memory;
  std::barrier both(2);
  const auto thrown = run_ranks(members(2), library, [&](auto group, auto gradients) {
    Trained trained(ShardingStrategy::kFullShard);
    group->barrier()->wait();  // a step seeds LibTorch's generator
    trained.engine->attach(group, on_host(std::move(gradients)));
    trained.step(*group, 0);
    {
      const auto walk = trained.engine->pieces()->walk(0);
      for (std::size_t i = 0; i < walk->parts().size(); ++i) {
        const auto bytes = walk->bytes(i);
        if (group->rank() != 0) continue;
        memory.emplace_back(bytes.begin(), bytes.end());
        parts.push_back(walk->parts()[i]);
        parts.back().bytes = memory.back();
      }
    }
    both.arrive_and_wait();  // or the fault may come into the other's walk
    std::jthread node;
    if (group->rank() == 1) node = fail_rank_1(library, how, group);
    trained.step(*group, 1);
  });
  for (const auto& what : thrown) CHECK(what != "");
  const auto again = run_ranks(members(2, 2), library, [&](auto group, auto gradients) {
    Trained trained(ShardingStrategy::kFullShard);
    group->barrier()->wait();  // a step seeds LibTorch's generator
    trained.engine->attach(group, on_host(std::move(gradients)));
    trained.engine->install(parts);
    for (std::uint64_t step = 1; step < 3; ++step) trained.step(*group, step);
    CHECK(hash_of(*trained.engine) == expected);
    trained.engine->detach();
    group->barrier()->wait();
  });
  for (const auto& what : again) CHECK(what == "");
  CHECK(library.misuse() == std::vector<std::string>{});
}

TEST_CASE("an error of NCCL is one of the trainers' group, with its words") {
  NcclDouble library;
  const auto thrown = run_ranks(members(2), library, [&](auto group, auto gradients) {
    const collectives::Buffer buffer = gradients->allocate(8, collectives::DType::kFloat32);
    if (group->rank() == 1) library.async_error(1, 6);
    try {
      gradients->all_reduce(buffer, {})->wait_for(Duration::max());
    } catch (const Error&) {
    }
    group->barrier()->wait();
    group->barrier()->wait();
  });
  for (const auto& what : thrown) CHECK_THAT(what, Catch::Contains("ncclCommGetAsyncError on rank 1"));
}

TEST_CASE("survivors of a generation shrink its communicator, and train on with the same bits") {
  const std::string expected = hash_of_one(6, false);
  Generations job;
  std::map<int, std::unique_ptr<Trained>> trained;
  for (const int p : {0, 1, 2}) trained[p] = std::make_unique<Trained>(false);
  const auto train = [&](std::uint64_t from) {
    return [&, from](int p, ProcessGroup& group, const std::shared_ptr<ProcessGroup>& gradients) {
      const std::shared_ptr<ProcessGroup> own(&group, [](ProcessGroup*) {});
      group.barrier()->wait();  // a step seeds LibTorch's generator
      trained[p]->engine->attach(own, gradients);
      for (std::uint64_t step = from; step < from + 2; ++step) trained[p]->step(group, step);
      trained[p]->engine->detach();
    };
  };
  job.next({0, 1, 2}, train(0));
  job.next({0, 2}, train(2));
  for (const int p : {0, 2}) CHECK(job.made(p) == std::pair(1, 1));
  // A trainer more: all start from scratch. The newcomer has the state.
  trained[3] = std::make_unique<Trained>(false);
  trained[3]->engine->state().install(trained[0]->engine->state().view().parts).value();
  job.next({0, 2, 3}, train(4));
  for (const int p : {0, 2}) CHECK(job.made(p) == std::pair(1, 2));
  CHECK(job.made(3) == std::pair(0, 1));
  for (const int p : {0, 2, 3}) CHECK(trained[p]->hash() == expected);
  trained.clear();
  job.kept.clear();
  CHECK(job.library.misuse() == std::vector<std::string>{});
  CHECK(job.library.leaked() == "");
}

TEST_CASE(
    "survivors start from scratch where NCCL keeps an error of the dead one, or one has no group before") {
  const bool error = GENERATE(true, false);
  Generations job;
  const auto reduce = [](int, ProcessGroup&, const std::shared_ptr<ProcessGroup>& gradients) {
    const collectives::Buffer buffer = gradients->allocate(8, collectives::DType::kFloat32);
    gradients->all_reduce(buffer, {})->wait_for(Duration::max());
  };
  job.next({0, 1, 2}, reduce);
  if (error) {
    job.library.async_error(2, 6);  // ncclRemoteError
  } else {
    job.kept.at(2).reset();  // its last generation failed where the others' did not
  }
  job.next({0, 2}, reduce);
  for (const int p : {0, 2}) CHECK(job.made(p) == std::pair(0, 2));
  job.kept.clear();
  CHECK(job.library.misuse() == std::vector<std::string>{});
}

/// Of "2 streams 3 events" five.
int things(const std::string& leaked) {
  std::istringstream words(leaked);
  int sum = 0;
  std::string what;
  for (int count = 0; words >> count >> what;) sum += count;
  return sum;
}

TEST_CASE("a thousand generations, of which every other one shrinks, leave nothing behind") {
  Generations job;
  const auto reduce = [](int, ProcessGroup&, const std::shared_ptr<ProcessGroup>& gradients) {
    const collectives::Buffer buffer = gradients->allocate(8, collectives::DType::kFloat32);
    gradients->all_reduce(buffer, {})->wait_for(Duration::max());
  };
  using collectives::testing::open_descriptors, collectives::testing::running_threads;
  std::size_t descriptors = 0, threads = std::numeric_limits<std::size_t>::max();
  int kept = 0;
  for (int i = 0; i < 500; ++i) {
    job.next({0, 1, 2}, reduce);
    job.next({0, 1}, reduce);
    // One that is ending may be counted, so that the fewest of some generations are those that stay.
    if (i >= 9 && i < 30) threads = std::min(threads, running_threads());
    if (i != 9) continue;
    descriptors = open_descriptors();
    kept = things(job.library.leaked());
  }
  CHECK(job.made(0) == std::pair(500, 500));
  CHECK(open_descriptors() == descriptors);
  CHECK(test::eventually([&] { return running_threads() == threads; }));
  CHECK(things(job.library.leaked()) <= kept + 4);  // a group makes events as it needs them
  job.kept.clear();
  CHECK(job.library.leaked() == "");
  CHECK(job.library.misuse() == std::vector<std::string>{});
}

TEST_CASE("the ranks that a list of trainers has lost") {
  using Actors = std::vector<ActorId>;
  const Actors before = {{7}, {3}, {9}, {5}};
  CHECK(ranks_gone(before, {{7}, {9}}) == std::vector{1, 3});
  CHECK(ranks_gone(before, {{5}}) == std::vector{0, 1, 2});
  CHECK(ranks_gone(before, before).empty());
  CHECK(ranks_gone(before, {{9}, {7}}).empty());       // in another order
  CHECK(ranks_gone(before, {{7}, {9}, {4}}).empty());  // with somebody new
  CHECK(ranks_gone({}, before).empty());
}

TEST_CASE("a trainer that cannot make the group of gradients ends the others' wait, with its reason") {
  NcclDouble library;
  library.fail_call(1, "ncclCommInitRankConfig", 3);
  const auto thrown = run_ranks(members(2), library, [](auto, auto) {});
  for (const auto& what : thrown) {
    CAPTURE(what);
    CHECK(contains(what, "ncclCommInitRankConfig"));
  }
}

TEST_CASE("NCCL is for whole GPUs, and for what may go between nodes as it is") {
  GradientGroupOptions options{.trainer_gpus = 1, .nodes = {0, 0, 2, 2}};
  CHECK(why_not_nccl(options).empty());
  options.encrypt = true;
  CHECK(contains(why_not_nccl(options), "encrypted"));
  options.nodes = {0, 0, 0};
  CHECK(why_not_nccl(options).empty());
  options.have_nccl = {true, true, false};
  CHECK(contains(why_not_nccl(options), "the trainer of rank 2 has no NCCL"));
  options.have_nccl = {true, true, true};
  CHECK(why_not_nccl(options).empty());
  options.trainer_gpus = 0.5;
  CHECK(contains(why_not_nccl(options), "share a GPU"));
  options.trainer_gpus = 0;
  CHECK(contains(why_not_nccl(options), "CPU"));
}

}  // namespace
}  // namespace troupe::train::testing
