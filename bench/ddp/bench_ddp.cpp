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
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
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

 private:
  double ask(const CaseName& which, const std::string& mode, int steps) const {
    for (const auto& worker : workers_) worker->tell(which.name + " " + mode + " " + std::to_string(steps));
    return workers_[0]->number();
  }
  std::vector<std::unique_ptr<Child>> workers_;
};

/// AdamW under the engine, with its state on both ranks and sharded over them.
void report_shards(const Ours& ours, const CaseName& which, int rounds) {
  std::vector<double> whole, sharded;
  for (int round = 0; round < rounds; ++round) {
    whole.push_back(ours.step_ms(which, "adam"));
    sharded.push_back(ours.step_ms(which, "sharded"));
  }
  constexpr double kMebibyte = 1 << 20;
  std::printf("%-28s whole %7.3f ms, %.1f MiB a rank   sharded %7.3f ms, %.1f MiB   ratio %.2f\n",
              (which.title + " AdamW").c_str(), median(whole),
              ours.optimizer_bytes(which, "adam") / kMebibyte, median(sharded),
              ours.optimizer_bytes(which, "sharded") / kMebibyte, median(whole) / median(sharded));
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
  const auto row = [&](const std::string& title, double ours, double peer, const std::string& peer_name) {
    std::printf("%-28s ours %8.3f ms   %-24s %8.3f ms   ratio %.2f\n", title.c_str(), ours, peer_name.c_str(),
                peer, peer / ours);
    if (!json.is_open()) return;
    json << nlohmann::ordered_json{{"bench", "ddp"},   {"case", title},          {"ours", ours},
                                   {"peer", peer},     {"peer_name", peer_name}, {"ratio", peer / ours},
                                   {"unit", "ms/step"}}
         << std::endl;
  };
  if (!figures.peer.empty())
    row(which.title, median(figures.ours), median(figures.peer), "PyTorch DDP " + torch_version() + " gloo");
  if (!figures.peer.empty())
    row(which.title + " by hand", hand, median(figures.peer), "PyTorch DDP " + torch_version() + " gloo");
  row(which.title + " by hand", hand, median(figures.ours), "under the trainer's engine");
  row(which.title + " efficiency", median(figures.ours), median(figures.alone),
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
      peer->tell(which.name + " " + std::to_string(which.steps));
      figures.peer.push_back(peer->number());
    }
    report(which, figures, json);
  }
  report_shards(ours, kCases.back(), rounds);
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
