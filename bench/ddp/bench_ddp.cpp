// bench_ddp: a training step of two processes over the native group, under the trainer's engine and by hand
// with DistributedDataParallel, against PyTorch DDP over gloo.
//
//   bench_ddp [--python PYTHON] [--rounds N] [--json FILE]
//
// Both peers live through the whole run and train in turns, so that the machine's moods hit both alike;
// figures are medians over the rounds. "alone" is the same step without engine and communication, in both
// processes at once: its share of our step is the efficiency. PYTHON has the same torch release as this
// program; without one the peer is skipped.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/ddp/worker.hpp"

namespace troupe::bench {
namespace {

struct CaseName {
  std::string name;
  std::string title;
  int steps;
};
const std::vector<CaseName> kCases{
    {"mlp", "mlp 0.4 MB", 200}, {"convnet", "convnet 0.1 MB", 20}, {"wide", "mlp 23 MB", 10}};
/// Under AdamW: of a layer that is most of it, and of 8 alike.
const std::vector<CaseName> kAdamCases{{"wide", "mlp 23 MB", 10}, {"tower", "mlp 34 MB", 5}};
constexpr double kMebibyte = 1 << 20;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A child that answers lines with lines; ends when its commands end.
class Child {
 public:
  /// `body` gets the ends of two pipes: commands to read and answers to write.
  explicit Child(const std::function<void(int commands, int answers)>& body) {
    int commands[2];
    int answers[2];
    if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::close(commands[1]);
      ::close(answers[0]);
      body(commands[0], answers[1]);
      ::_exit(0);
    }
    ::close(commands[0]);
    ::close(answers[1]);
    to_ = commands[1];
    from_ = ::fdopen(answers[0], "r");
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::close(to_);
    std::fclose(from_);
    ::waitpid(pid_, nullptr, 0);
  }

  void tell(const std::string& line) const { ::dprintf(to_, "%s\n", line.c_str()); }
  std::optional<std::string> answer() const {
    char line[256];
    if (!std::fgets(line, sizeof line, from_)) return std::nullopt;
    std::string text(line);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  double number() const {
    const auto text = answer();
    if (!text) throw std::runtime_error("a benchmark process ended early");
    return std::stod(*text);
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  FILE* from_ = nullptr;
};

/// Our two processes, forked before this one touches LibTorch.
class Ours {
 public:
  Ours() {
    auto region = std::make_shared<SharedMemory>(
        SharedMemory::create("bench_ddp", collectives::native_region_bytes(2, ddp_tree_bytes()), false)
            .value());
    for (int rank = 0; rank < 2; ++rank) {
      collectives::NativeGroupOptions options{
          .rank = rank, .size = 2, .generation = {1, 1}, .region = region};
      options.data_bytes = ddp_tree_bytes();
      workers_.push_back(std::make_unique<Child>([&](int commands, int answers) {
        workers_.clear();  // the other's pipes, or it would never see the end of its commands
        serve_ddp_worker(std::move(options), commands, answers);
      }));
    }
  }
  double step_ms(const CaseName& which, const std::string& mode) const {
    return ask(which, mode, which.steps);
  }
  double optimizer_bytes(const CaseName& which, const std::string& mode) const { return ask(which, mode, 0); }
  /// Between steps, at most, and what docs/sharding.md says of both.
  std::array<double, 4> memory(const CaseName& which, const std::string& mode) const {
    const double first = ask(which, mode, -1);
    std::array<double, 4> all{first};
    for (std::size_t i = 1; i < all.size(); ++i) all[i] = workers_[0]->number();
    return all;
  }

 private:
  double ask(const CaseName& which, const std::string& mode, int steps) const {
    for (const auto& worker : workers_) worker->tell(which.name + " " + mode + " " + std::to_string(steps));
    return workers_[0]->number();
  }
  std::vector<std::unique_ptr<Child>> workers_;
};

/// Ours and PyTorch's, or another one of ours: one row, and one object.
void row(std::ofstream& json, const std::string& title, double ours, double peer,
         const std::string& peer_name, const char* unit = "ms/step") {
  std::printf("%-34s ours %8.3f   %-34s %8.3f   ratio %.3f   %s\n", title.c_str(), ours, peer_name.c_str(),
              peer, peer / ours, unit);
  if (!json.is_open()) return;
  json << nlohmann::ordered_json{{"bench", "ddp"}, {"case", title},          {"ours", ours},
                                 {"peer", peer},   {"peer_name", peer_name}, {"ratio", peer / ours},
                                 {"unit", unit}}
       << std::endl;
}

double step_ms(const Child& peer, const CaseName& which, const std::string& mode) {
  peer.tell(which.name + " " + mode + " " + std::to_string(which.steps));
  return peer.number();
}

/// AdamW with its state on both ranks and sharded over them: ours under the engine.
void report_zero1(const Ours& ours, const Child* peer, int rounds, std::ofstream& json) {
  const CaseName& which = kCases.back();
  std::vector<double> whole, sharded, peer_whole, peer_sharded;
  for (int round = 0; round < rounds; ++round) {
    whole.push_back(ours.step_ms(which, "adam"));
    sharded.push_back(ours.step_ms(which, "sharded"));
    if (peer == nullptr) continue;
    peer_whole.push_back(step_ms(*peer, which, "adam"));
    peer_sharded.push_back(step_ms(*peer, which, "zero1"));
  }
  const std::string title = which.title + " AdamW, ZeRO-1";
  row(json, title, median(sharded), median(whole), "under the engine, without shards");
  if (peer != nullptr) {
    row(json, title, median(sharded), median(peer_whole), "PyTorch DDP");
    row(json, title, median(sharded), median(peer_sharded), "PyTorch ZeroRedundancyOptimizer");
  }
  row(json, title + ", bytes of state", ours.optimizer_bytes(which, "sharded") / kMebibyte,
      ours.optimizer_bytes(which, "adam") / kMebibyte, "without shards", "MiB");
}

/// The same with its parameters sharded, too: prefetch beside none.
void report_zero3(const Ours& ours, int rounds, std::ofstream& json) {
  const CaseName& which = kCases.back();
  std::vector<double> whole, sharded, prefetch;
  for (int round = 0; round < rounds; ++round) {
    whole.push_back(ours.step_ms(which, "adam"));
    sharded.push_back(ours.step_ms(which, "job_zero3"));
    prefetch.push_back(ours.step_ms(which, "job_prefetch"));
  }
  const std::string title = which.title + " AdamW, ZeRO-3";
  row(json, title, median(sharded), median(whole), "under the engine, without shards");
  row(json, title + " with prefetch", median(prefetch), median(sharded), "without prefetch");
}

/// AdamW by hand: DistributedDataParallel beside ZeRO-2, ZeRO-3 and its prefetch.
void report_fsdp(const Ours& ours, const Child* peer, const CaseName& which, int rounds,
                 std::ofstream& json) {
  const std::vector<std::string> modes{"hand_adam", "zero2", "zero3", "prefetch"},
      peers{"fsdp", "fully_shard"};
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < rounds; ++round) {
    for (const std::string& mode : modes) times[mode].push_back(ours.step_ms(which, mode));
    for (const std::string& mode : peers) {
      if (peer != nullptr) times[mode].push_back(step_ms(*peer, which, mode));
    }
  }
  const std::string title = which.title + " AdamW by hand, ";
  for (const std::string mode : {"zero2", "zero3", "prefetch"}) {
    row(json, title + mode, median(times[mode]), median(times["hand_adam"]), "by hand, DDP");
    if (peer == nullptr || mode == "zero2") continue;
    row(json, title + mode, median(times[mode]), median(times["fsdp"]), "PyTorch FSDP");
    row(json, title + mode, median(times[mode]), median(times["fully_shard"]), "PyTorch fully_shard (FSDP2)");
  }
  for (const std::string mode : {"zero2", "zero3", "prefetch"}) {
    const auto [between, most, between_expected, most_expected] = ours.memory(which, mode);
    row(json, title + mode + ", between steps", between / kMebibyte, between_expected / kMebibyte,
        "docs/sharding.md", "MiB");
    row(json, title + mode + ", at most", most / kMebibyte, most_expected / kMebibyte, "docs/sharding.md",
        "MiB");
  }
}

std::unique_ptr<Child> start_peer(const std::string& python) {
  auto peer = std::make_unique<Child>([&](int commands, int answers) {
    ::dup2(commands, 0);
    ::dup2(answers, 1);
    for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}) ::unsetenv(proxy);
    ::execlp(python.c_str(), python.c_str(), TROUPE_PEER_DDP, nullptr);
  });
  const auto ready = peer->answer();
  if (!ready || ready->rfind("ready ", 0) != 0) return nullptr;
  const std::string release = ready->substr(6);
  if (release.rfind(torch_version(), 0) != 0) {
    std::printf("peer skipped: %s has torch %s, this program LibTorch %s\n", python.c_str(), release.c_str(),
                torch_version().c_str());
    return nullptr;
  }
  return peer;
}

struct Figures {
  std::vector<double> ours, hand, alone, peer;
};

void report(const CaseName& which, const Figures& figures, std::ofstream& json) {
  const double hand = median(figures.hand);
  if (!figures.peer.empty())
    row(json, which.title, median(figures.ours), median(figures.peer),
        "PyTorch DDP " + torch_version() + " gloo");
  if (!figures.peer.empty())
    row(json, which.title + " by hand", hand, median(figures.peer),
        "PyTorch DDP " + torch_version() + " gloo");
  row(json, which.title + " by hand", hand, median(figures.ours), "under the trainer's engine");
  row(json, which.title + " efficiency", median(figures.ours), median(figures.alone),
      "own step without communication");
}

int run(const std::string& python, int rounds, const std::string& json_path) {
  const Ours ours;
  const auto peer = start_peer(python);
  if (!peer) {
    std::printf(
        "PyTorch DDP is missing: python3 -m venv VENV && VENV/bin/pip install torch==%s numpy, then --python "
        "VENV/bin/python\n",
        torch_version().c_str());
  }
  std::ofstream json;
  if (!json_path.empty()) json.open(json_path);
  for (const CaseName& which : kCases) {
    Figures figures;
    for (int round = 0; round < rounds; ++round) {
      figures.ours.push_back(ours.step_ms(which, "ours"));
      figures.hand.push_back(ours.step_ms(which, "hand"));
      figures.alone.push_back(ours.step_ms(which, "alone"));
      if (!peer) continue;
      figures.peer.push_back(step_ms(*peer, which, "ddp"));
    }
    report(which, figures, json);
  }
  report_zero1(ours, peer.get(), rounds, json);
  report_zero3(ours, rounds, json);
  for (const CaseName& which : kAdamCases) report_fsdp(ours, peer.get(), which, rounds, json);
  return 0;
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  CLI::App app("A training step of two processes, against PyTorch DDP over gloo");
  std::string python = "python3";
  int rounds = 9;
  std::string json;
  app.add_option("--python", python, "Python that has torch, of this program's release")
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Turns of each peer")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", json, "Write one object a line to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return troupe::bench::run(python, rounds, json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_ddp: %s\n", error.what());
    return 1;
  }
}
