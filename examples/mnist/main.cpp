// Trains a ConvNet on MNIST on a cluster of actors. The user's part is digits.hpp; this file reads the
// command line and shows what happens.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "actors/data/find_mnist.hpp"
#include "actors/report/json_log.hpp"
#include "actors/report/reporter.hpp"
#include "actors/report/terminal.hpp"
#include "actors/train/train.hpp"
#include "examples/mnist/digits.hpp"
#include "examples/mnist/options.hpp"

namespace {

std::atomic<int> interrupts{0};

/// Ctrl-C ends the job after the current step; twice ends it at once (the workers go with this process).
void on_interrupt(int) {
  if (interrupts.fetch_add(1) == 0) return;
  ::_exit(130);
}

std::string count(std::int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string describe(const MnistOptions& o, const std::string& data) {
  return "ConvNet on " + data + ": " + count(o.logical_ranks, "logical rank") + " x batch " +
         std::to_string(o.batch) + ", " + count(o.trainers, "trainer") + ", " + count(o.loaders, "loader") +
         ", " + count(o.nodes, "node") + ", seed " + std::to_string(o.seed);
}

/// Loaders run elsewhere, with another working directory.
std::string on_every_node(const std::string& folder) {
  return folder.empty() ? folder : std::filesystem::absolute(folder).string();
}

int run(int argc, char** argv) {
  const MnistOptions o = parse_options(argc, argv);
  auto session = troupe::init(argc, argv, {.nodes = o.nodes, .address = o.address});
  const auto found = troupe::data::find_mnist(troupe::data::default_mnist_search(o.data));

  const troupe::MonotonicClock clock;
  troupe::report::FdOutput output(STDOUT_FILENO);
  troupe::report::Reporter reporter(output, clock);
  std::optional<troupe::report::JsonLog> json;
  if (!o.json.empty()) json = troupe::report::JsonLog::open(o.json, clock).value();
  const auto show = [&](const troupe::report::Event& event) {
    reporter.show(event);
    if (!json) return;
    if (const auto written = json->write(event); !written)
      reporter.show(troupe::report::Warning{written.error().message()});
  };

  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);

  show(troupe::report::JobStarted{
      describe(o, found.folder.empty() ? "rendered digits (no MNIST found: --data names its folder)"
                                       : found.folder),
      o.epochs});
  const auto result = troupe::train::run(session, Digits{on_every_node(found.folder), o.lr, o.samples},
                                         {.logical_ranks = o.logical_ranks,
                                          .micro_batch = o.batch,
                                          .epochs = o.epochs,
                                          .trainers = o.trainers,
                                          .loaders = o.loaders,
                                          .seed = o.seed,
                                          .checkpoint_folder = o.checkpoint,
                                          .resume = o.resume,
                                          .chaos = o.chaos,
                                          .on_event = show,
                                          .stops_wanted = [] { return interrupts.load(); }});
  return result.stopped ? 130 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error.what());
    return 1;
  }
}
