// How fast one loader makes batches: samples gathered, augmented and normalised into a trainer's slot,
// against PyTorch's DataLoader without workers, which does the same in one process.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "actors/data/batch_builder.hpp"
#include "actors/data/cifar10.hpp"
#include "actors/data/find_mnist.hpp"
#include "actors/data/idx_dataset.hpp"
#include "actors/data/sampler.hpp"
#include "actors/data/transforms.hpp"
#include "runtime/core/fd.hpp"

using namespace troupe;
using namespace troupe::data;

namespace {

constexpr std::int64_t kBatch = 64;
constexpr int kRounds = 5;
constexpr std::size_t kSlots = 6;

/// The median of some rounds of a second: samples a second.
double measure(const Dataset& dataset) {
  std::vector<double> rates;
  std::uint64_t epoch = 0;
  SharedMemory memory;
  LeafSampler sampler({.dataset_size = dataset.size(), .batch = kBatch});
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    double seconds = 0;
    std::int64_t samples = 0;
    for (; seconds < 1; ++epoch) {
      for (std::int64_t step = 0; step < sampler.steps_per_epoch() && seconds < 1; ++step) {
        const auto indices = sampler.indices(epoch, step, 0);
        BatchBuilder batch(dataset, indices, {0, epoch});
        if (memory.size() == 0) memory = SharedMemory::create("bench", kSlots * batch.total(), true).value();
        const std::size_t slot = static_cast<std::size_t>(step) % kSlots * (memory.size() / kSlots / 64 * 64);
        batch.write({memory.data() + slot, batch.total()}, {epoch, static_cast<std::uint64_t>(step), 0});
        samples += static_cast<std::int64_t>(indices.size());
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    }
    rates.push_back(static_cast<double>(samples) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

/// What the peer prints for a case: samples a second; 0 without one.
double run_peer(const std::string& python, const std::string& name, const std::string& folder) {
  if (python.empty()) return 0;
  const std::string command = python + " " TROUPE_LOADER_PEER " " + name + " '" + folder + "'";
  FILE* pipe = ::popen(command.c_str(), "r");
  double rate = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &rate) != 1)
    std::fprintf(stderr, "bench_data: no answer of: %s\n", command.c_str());
  if (pipe != nullptr) ::pclose(pipe);
  return rate;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string python;
  std::string json;
  CLI::App app("Measures a loader's own work, one process, against PyTorch's DataLoader.");
  app.add_option("--python", python, "A Python with torch and numpy: the peer");
  app.add_option("--json", json, "Write the result to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto mnist = find_mnist(default_mnist_search(""));
  if (mnist.folder.empty()) {
    std::fprintf(stderr, "bench_data: %s\n", mnist.reason.c_str());
    return 1;
  }
  if (python.empty()) std::printf("no peer: --python names a Python with torch and numpy\n");
  std::ofstream out(json);
  const auto show = [&](const std::string& name, const Dataset& dataset, const std::string& folder) {
    const double ours = measure(dataset);
    const double peer = run_peer(python, name, folder);
    std::printf("%-28s %12.0f samples/s a loader   DataLoader %9.0f   %.1f x\n", name.c_str(), ours, peer,
                peer > 0 ? ours / peer : 0);
    out << R"({"bench":"data","case":")" << name << R"(","ours":)" << ours << R"(,"peer":)" << peer
        << R"(,"peer_name":"PyTorch DataLoader","ratio":)" << (peer > 0 ? ours / peer : 0)
        << R"(,"unit":"samples/s"})"
        << "\n";
  };
  show("mnist", Idx(mnist.folder, Split::kTrain, {.mean = 0.1307F, .std = 0.3081F}), mnist.folder);
  const auto [cifar, reason] = find_cifar10(default_mnist_search(""));
  if (cifar.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 0;
  }
  show("cifar10-crop-flip",
       map(Cifar10(cifar, Split::kTrain),
           compose(random_crop(32, {.padding = 4}), random_horizontal_flip(),
                   normalize({0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F}))),
       cifar);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_data: %s\n", error.what());
  return 1;
}
