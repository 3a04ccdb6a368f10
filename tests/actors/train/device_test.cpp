// What a trainer does on a device, as far as it shows without one: the order of streams and events, on a
// device that writes it down, and the way of gradients through the host, on the CPU.
#include <catch2/catch.hpp>

#include "actors/ddp/device_streams.hpp"
#include "actors/train/engine/device_batches.hpp"
#include "actors/train/engine/leaf_results.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/pinned_memory.hpp"
#include "actors/train/engine/pinned_region.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/recording_device.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("what runs aside runs behind its mark, and computing goes on behind it") {
  RecordingDevice& device = RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  const DeviceMark done = streams.aside_after(streams.here(), [&] { device.note("copy"); });
  streams.join(done);
  CHECK(device.log ==
        Lines{"e0 on s0", "s1 waits for e0", "now s1", "copy", "now s0", "e1 on s1", "s0 waits for e1"});
}

TEST_CASE("what the job computes on a stream of its own, the default stream goes on behind") {
  RecordingDevice& device = RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  streams.before_default();
  CHECK(device.log.empty());
  streams.aside([&] { streams.before_default(); });
  CHECK(device.log == Lines{"now s1", "e0 on s1", "s0 waits for e0", "now s0", "e1 on s1"});
}

TEST_CASE("what runs on the default stream runs behind computing, and computing goes on behind it") {
  RecordingDevice& device = RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  streams.on_default([&] { device.note("reduce"); });
  streams.synchronize();
  CHECK(device.log == Lines{"reduce", "host waits for s0"});
  RecordingDevice::anew();
  streams.aside([&] { streams.on_default([&] { device.note("reduce"); }); });
  CHECK(device.log == Lines{"now s1", "e0 on s1", "s0 waits for e0", "now s0", "reduce", "now s1", "e1 on s0",
                            "s1 waits for e1", "now s0", "e2 on s1"});
}

TEST_CASE("an exception aside leaves the computing stream as it was") {
  RecordingDevice& device = RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  CHECK_THROWS_AS(streams.aside([] { throw std::runtime_error("no"); }), std::runtime_error);
  CHECK(device.log == Lines{"now s1", "now s0"});
}

TEST_CASE("on the CPU nothing is enqueued, and every mark is reached") {
  const DeviceStreams streams(torch::kCPU);
  bool ran = false;
  const DeviceMark done = streams.aside_after(streams.here(), [&] { ran = true; });
  CHECK(ran);
  CHECK(done.reached());
  CHECK_FALSE(streams.computing());
}

TEST_CASE("a wait for the device looks about, and ends with what that throws") {
  RecordingDevice& device = RecordingDevice::anew();
  const DeviceStreams streams(RecordingDevice::device());
  device.looks_until_reached = 3;
  int looks = 0;
  DeviceStreams::wait(streams.here(), [&] { ++looks; });
  CHECK(looks == 3);
  device.looks_until_reached = 1'000'000;
  CHECK_THROWS_AS(DeviceStreams::wait(streams.here(), [] { throw std::runtime_error("aborted"); }),
                  std::runtime_error);
}

TEST_CASE("a batch comes aside, waits for nothing, and is given back once its copy is reached") {
  RecordingDevice& device = RecordingDevice::anew();
  DeviceBatches batches(torch::kCPU, RecordingDevice::device());
  batches.begin();
  device.looks_until_reached = 2;
  batches.take(small_batch(0, 0));
  batches.take(small_batch(0, 1));
  CHECK(device.log == Lines{"now s1", "now s0", "e0 on s1", "s0 waits for e0", "now s1", "now s0", "e1 on s1",
                            "s0 waits for e1"});
  CHECK(batches.done() == 0);
  CHECK(batches.done() == 0);
  CHECK(batches.done() == 1);  // the second one is looked at from here on
  batches.wait();
  CHECK(batches.done() == 2);
  batches.begin();
  CHECK(batches.done() == 0);
}

TEST_CASE("a leaf's loss is copied behind its forward, and read when all leaves are under way") {
  RecordingDevice& device = RecordingDevice::anew();
  LeafResults results(RecordingDevice::device());
  results.begin();
  device.looks_until_reached = 4;
  for (const double loss : {0.5, 0.25}) {
    Leaf at({0, 0, 0}, 1);
    at.weight(3);
    at.count("hits", 2.0, 4.0);
    results.add(torch::tensor(loss), at);
  }
  CHECK(device.log == Lines{"e0 on s0", "e1 on s0"});
  CHECK(device.looks == 0);  // nothing was waited for
  const auto all = results.all([] {});
  CHECK(device.looks == 8);
  REQUIRE(all.size() == 2);
  CHECK(all[0].loss == 0.5);
  CHECK(all[1].loss == 0.25);
  CHECK(all[1].weight == 3.0);
  CHECK((all[1].figures == std::vector<Figure>{{"hits", 2.0, 4.0}}));
}

/// What a double of the CUDA runtime was told.
std::vector<std::string>& told_cuda() {
  static std::vector<std::string> told;
  return told;
}
int cuda_answers = 0;

void* cuda_double(const std::string& name) {
  if (name == "cudaHostRegister")
    return reinterpret_cast<void*>(+[](void*, std::size_t bytes, unsigned) {
      told_cuda().push_back("pin " + std::to_string(bytes));
      return cuda_answers;
    });
  if (name == "cudaHostUnregister")
    return reinterpret_cast<void*>(+[](void*) {
      told_cuda().emplace_back("unpin");
      return 0;
    });
  if (name == "cudaGetLastError")
    return reinterpret_cast<void*>(+[] {
      told_cuda().emplace_back("forget");
      return 0;
    });
  return reinterpret_cast<void*>(+[](int) { return "out of memory"; });
}

TEST_CASE(
    "batches' memory is pinned while it is there; where CUDA refuses, LibTorch does not find its error") {
  std::vector<std::byte> memory(4096);
  const c10::Device gpu(c10::DeviceType::CUDA, 0);
  told_cuda().clear();
  cuda_answers = 0;
  auto pinned = pin_memory(memory, gpu, cuda_double);
  CHECK(pinned);
  CHECK(told_cuda() == Lines{"pin 4096"});
  pinned.reset();
  CHECK(told_cuda() == Lines{"pin 4096", "unpin"});
  told_cuda().clear();
  cuda_answers = 2;
  CHECK_FALSE(pin_memory(memory, gpu, cuda_double));
  CHECK(told_cuda() == Lines{"pin 4096", "forget"});
  told_cuda().clear();
  CHECK_FALSE(pin_memory(memory, torch::kCPU, cuda_double));
  CHECK_FALSE(pin_memory(memory, gpu, [](const char*) -> void* { return nullptr; }));
  CHECK(told_cuda().empty());
}

TEST_CASE("a generation's memory is pinned as a whole, and unpinned before it goes") {
  told_cuda().clear();
  cuda_answers = 0;
  const c10::Device gpu(c10::DeviceType::CUDA, 0);
  const auto pin = [&](std::span<std::byte> memory) { return pin_memory(memory, gpu, cuda_double); };
  auto region = pin_region(SharedMemory::create("a generation", 3 * 4096, false).value(), pin,
                           [] { told_cuda().emplace_back("drop"); });
  REQUIRE(region->data() != nullptr);
  std::shared_ptr<SharedMemory> other = region;
  region.reset();
  CHECK(told_cuda() == Lines{"pin 12288"});
  other.reset();
  CHECK(told_cuda() == Lines{"pin 12288", "unpin", "drop"});
}

TEST_CASE("where another group reduces gradients, the trainers' own has no memory for them") {
  const StepEngine engine(make_training_model(SmallJob{}, 7), {.logical_ranks = 4, .seed = 7});
  CHECK_FALSE(engine.allocations(true).empty());
  CHECK(engine.allocations(false).empty());
  ReducerOptions unused;
  unused.allow_unused = true;
  const StepEngine counts(make_training_model(SmallJob{}, 7),
                          {.logical_ranks = 4, .seed = 7, .reducer = unused});
  CHECK(counts.allocations(false).size() == 1);  // which parameters were used
}

/// Trains some steps and returns the state's hash.
std::string train(const std::shared_ptr<collectives::ProcessGroup>& group, const ReducerOptions& reducer) {
  set_up_numerics();
  StepEngine engine(make_training_model(SmallJob{}, 7), {.logical_ranks = 4, .seed = 7, .reducer = reducer});
  engine.attach(group);
  for (std::uint64_t step = 0; step < 6; ++step) {
    engine.run_step(
        step, leaf_batches(*group, step, [](std::uint64_t s, int leaf) { return small_batch(s, leaf); }));
    engine.apply();
  }
  return engine.state().hash();
}

TEST_CASE(
    "gradients that go through the host have the bits of those that do not, for any number of trainers") {
  ReducerOptions direct;
  direct.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};
  ReducerOptions through = direct;
  through.through_host = true;
  through.place_gradients = false;
  const auto expected = fork_ranks(4, 1, [&](auto group) { return train(group, direct); });
  CHECK(expected[0].size() == 64);
  for (const int ranks : {1, 2, 3}) {
    for (const std::string& hash : fork_ranks(4, ranks, [&](auto group) { return train(group, through); }))
      CHECK(hash == expected[0]);
  }
}

TEST_CASE(
    "a bucket is copied behind its last gradient, reduced once it is there, and computing goes on behind the "
    "mean") {
  RecordingDevice& device = RecordingDevice::anew();
  set_up_numerics();
  ReducerOptions options;
  options.buckets = {.cap_bytes = 128, .first_cap_bytes = 64};
  options.through_host = true;
  options.streams = RecordingDevice::device();
  StepEngine engine(make_training_model(SmallJob{}, 7), {.logical_ranks = 1, .seed = 7, .reducer = options});
  engine.attach(lone_group(1));
  device.looks_until_reached = 5;
  engine.begin_step(0);
  CHECK(device.log.empty());
  engine.run_leaf({0, small_batch(0, 0)});
  const int copied = static_cast<int>(device.log.size()) / 5;  // e on s0, s1 waits, now s1, now s0, e on s1
  CHECK(copied >= 3);
  for (int bucket = 0; bucket < copied; ++bucket) {
    const std::string ready = "e" + std::to_string(2 * bucket);
    const std::string there = "e" + std::to_string(2 * bucket + 1);
    CHECK(device.at(ready + " on s0") == 5 * bucket);
    CHECK(device.at("s1 waits for " + ready) == 5 * bucket + 1);
    CHECK(device.at(there + " on s1") == 5 * bucket + 4);
  }
  const std::size_t before = device.log.size();
  engine.finish_step();
  CHECK(device.looks == 5 * copied);  // each was waited for, and none but for its own copy
  REQUIRE(device.log.size() == before + 3 * static_cast<std::size_t>(copied) + 1);
  CHECK(device.log.back() == "s0 waits for e" + std::to_string(3 * copied - 1));
  CHECK(device.log[device.log.size() - 2] == "e" + std::to_string(3 * copied - 1) + " on s1");
}

struct Split : torch::nn::Module {
  Split() {
    here = register_parameter("here", torch::ones({2}));
    there = register_parameter("there", torch::empty({2}, torch::kMeta));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x * here; }
  torch::Tensor here, there;
};

struct SplitJob {
  std::shared_ptr<Split> model() const { return std::make_shared<Split>(); }
  torch::optim::SGD optimizer(std::shared_ptr<Split>& net) const {
    return torch::optim::SGD(net->parameters(), 0.1);
  }
  torch::Tensor loss(std::shared_ptr<Split>& net, const data::Batch& batch) const {
    return net->forward(batch.input).sum();
  }
};

TEST_CASE("a model on two devices is refused, with the tensor") {
  CHECK_THROWS_WITH(make_training_model(SplitJob{}, 1),
                    Catch::Contains("the model is on two devices") && Catch::Contains("there is on meta"));
}

TEST_CASE("a trainer that is to compute on a GPU says why it cannot") {
  CHECK(computing_device(false) == torch::Device(torch::kCPU));
  if (at::globalContext().hasCUDA()) return;
  const char* why =
      at::Context::hasCUDART() ? "CUDA finds no GPU in this process" : "this LibTorch was built without CUDA";
  CHECK_THROWS_WITH(computing_device(true), Catch::Contains("a trainer cannot compute on its GPU") &&
                                                Catch::Contains(why) && Catch::Contains("trainer_gpus"));
}

}  // namespace
}  // namespace troupe::train::testing
