// HTTP to a replica and back: what it adds to a model that does nothing, and how many requests a second there
// are beside a loop in this process that calls the same net on full batches.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/ddp/freed_memory.hpp"
#include "actors/train/engine/numerics.hpp"
#include "bench/serve/http_load.hpp"
#include "examples/mnist/model.hpp"
#include "troupe/serve.hpp"

using namespace troupe;

struct NothingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return input; }
};
TORCH_MODULE(Nothing);

struct Identity {
  Nothing model() const { return Nothing(); }
  data::FieldSpec input() const { return {.shape = {16}}; }
};
struct Images {
  ConvNet model() const { return ConvNet(); }
  data::FieldSpec input() const { return {.shape = {1, 28, 28}}; }
};

namespace {

constexpr std::int64_t kBatch = 64;
constexpr double kShare = 0.7;  ///< of the most that there was, for the latency under load

struct Case {
  std::string name;
  double ours = 0;
  double peer = 0;
  std::string peer_name;
  std::string unit;
};

wire::Bytes weights_of(const torch::nn::Module& net) {
  std::vector<checkpoint::TensorView> views;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    views.push_back({name,
                     tensor.scalar_type() == torch::kLong ? checkpoint::DType::kI64 : checkpoint::DType::kF32,
                     tensor.sizes().vec(),
                     {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
  };
  for (const auto& item : net.named_parameters()) add(item.key(), item.value());
  for (const auto& item : net.named_buffers()) add(item.key(), item.value());
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(views).value());
}

std::string raw_request(const std::string& name, const data::Shape& sample) {
  std::string shape = "1";
  std::size_t elements = 1;
  for (const auto extent : sample) {
    shape += ", " + std::to_string(extent);
    elements *= static_cast<std::size_t>(extent);
  }
  return http_request(
      "POST", "/v1/" + name,
      "Content-Type: application/octet-stream\r\nTensor-Dtype: float32\r\nTensor-Shape: " + shape + "\r\n",
      std::string(elements * sizeof(float), '\0'));
}

std::string json_request(const std::string& path) {
  std::string body = R"({"inputs": [[0)";
  for (int i = 1; i < 16; ++i) body += ", 0.125";
  return http_request("POST", path, "Content-Type: application/json\r\n", body + "]]}");
}

/// Samples a second of the net in this process, on full batches.
double in_process(const torch::Tensor& batch, const std::function<torch::Tensor(const torch::Tensor&)>& net,
                  double seconds) {
  const torch::NoGradGuard no_grad;
  const MonotonicClock clock;
  (void)net(batch);
  std::int64_t samples = 0;
  const Instant begin = clock.now();
  while (to_seconds(clock.now() - begin) < seconds) samples += net(batch).size(0);
  return static_cast<double>(samples) / to_seconds(clock.now() - begin);
}

/// Another server that gives back what it gets: "ray=8100/identity" (peers.py).
struct Peer {
  std::string name;
  std::uint16_t port = 0;
  std::string request;
  std::vector<double> p50_us, rate;
  int failed = 0;  ///< answers other than 200
};

Peer peer_of(const std::string& text) {
  const auto equals = text.find('='), slash = text.find('/');
  const int port = equals < slash ? std::atoi(text.c_str() + equals + 1) : 0;
  if (port < 1 || port > 65535 || slash == std::string::npos)
    throw BadConfig("cannot read --peer", "'" + text + "' is no NAME=PORT/PATH", "write ray=8100/identity");
  return {text.substr(0, equals), static_cast<std::uint16_t>(port), json_request(text.substr(slash)), {}, {}};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  int rounds = 5;
  double seconds = 2;
  int connections = 64;
  int full = 3 * kBatch;
  std::string json;
  std::vector<std::string> others;
  CLI::App app("Measures serving: HTTP to a replica and back.");
  app.add_option("--rounds", rounds, "Rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--seconds", seconds, "Of each measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  app.add_option("--connections", connections, "Of the loaded server")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--full", full, "Connections of the images' second row: enough for full batches")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--peer", others,
                 "NAME=PORT/PATH of a server that gives JSON back, as bench/serve/peers.py does");
  app.add_option("--json", json, "Write the results to this file, an object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::vector<Peer> peers;
  for (const auto& one : others) peers.push_back(peer_of(one));
  auto session = init(argc, argv);
  train::keep_freed_memory();  // as a replica
  train::set_up_numerics();    // the same: one thread
  ConvNet net;
  net->eval();
  auto identity =
      serve::run(session, "identity", Identity{}, weights_of(*Nothing()), {.port = 0, .max_batch = kBatch});
  auto images = serve::run(session, "images", Images{}, weights_of(*net),
                           {.port = identity.port(), .max_batch = kBatch});
  const auto port = static_cast<std::uint16_t>(identity.port());

  const std::string raw = raw_request("identity", {16});
  const std::string text = json_request("/v1/identity");
  const std::string image = raw_request("images", {1, 28, 28});
  const std::string health = http_request("GET", "/healthz", "", "");
  std::vector<double> raw_p50, raw_p99, text_p50, health_p50, raw_rate, text_rate, image_rate, full_rate,
      image_loop;
  std::vector<double> text_at_p50, text_at_p99, image_at_p50, image_at_p99, lag_p99;
  int failed = 0;
  const auto run = [&](const std::string& request, int at_a_time) {
    auto result = load(port, request, at_a_time, seconds);
    failed += result.failed;
    return result;
  };
  const auto at_share = [&](const std::string& request, int at_a_time, double most, std::vector<double>& p50,
                            std::vector<double>& p99) {
    const auto result = load_open(port, request, at_a_time, kShare * most, seconds);
    failed += result.failed;
    p50.push_back(result.percentile(50) * 1e6);
    p99.push_back(result.percentile(99) * 1e6);
    lag_p99.push_back(result.lag_p99_s * 1e6);
  };
  (void)run(raw, connections);
  for (int i = 0; i < rounds; ++i) {
    const auto alone = run(raw, 1);
    raw_p50.push_back(alone.percentile(50) * 1e6);
    raw_p99.push_back(alone.percentile(99) * 1e6);
    text_p50.push_back(run(text, 1).percentile(50) * 1e6);
    health_p50.push_back(run(health, 1).percentile(50) * 1e6);
    raw_rate.push_back(run(raw, connections).rate());
    text_rate.push_back(run(text, connections).rate());
    image_rate.push_back(run(image, connections).rate());
    full_rate.push_back(run(image, full).rate());
    at_share(text, full, text_rate.back(), text_at_p50, text_at_p99);
    at_share(image, full, full_rate.back(), image_at_p50, image_at_p99);
    image_loop.push_back(in_process(
        torch::zeros({kBatch, 1, 28, 28}), [&](const torch::Tensor& in) { return net->forward(in); },
        seconds));
    for (Peer& peer : peers) {
      const auto alone_there = load(peer.port, peer.request, 1, seconds);
      const auto loaded = load(peer.port, peer.request, connections, seconds);
      peer.p50_us.push_back(alone_there.percentile(50) * 1e6);
      peer.rate.push_back(loaded.rate());
      peer.failed += alone_there.failed + loaded.failed;
    }
  }
  std::vector<Case> cases{
      {"raw request, alone: p50", median(raw_p50), median(health_p50), "GET /healthz", "us"},
      {"raw request, alone: p99", median(raw_p99), median(health_p50), "GET /healthz p50", "us"},
      {"JSON request, alone: p50", median(text_p50), median(health_p50), "GET /healthz", "us"},
      {"raw requests", median(raw_rate), 0, "", "1/s"},
      {"JSON requests", median(text_rate), 0, "", "1/s"},
      {"images, ConvNet", median(image_rate), median(image_loop), "loop in the process, batches of 64",
       "1/s"},
      {"images, " + std::to_string(full) + " connections", median(full_rate), median(image_loop),
       "loop in the process, batches of 64", "1/s"},
      {"JSON at 70 %, open: p99", median(text_at_p99), median(text_at_p50), "p50 of the same", "us"},
      {"images at 70 %, open: p99", median(image_at_p99), median(image_at_p50), "p50 of the same", "us"},
      {"generator's lag: p99", median(lag_p99), 0, "", "us"}};
  for (const Peer& peer : peers) {
    cases.push_back({"JSON request, alone: p50", median(text_p50), median(peer.p50_us), peer.name, "us"});
    cases.push_back({"JSON requests", median(text_rate), median(peer.rate), peer.name, "1/s"});
  }
  std::ofstream out;
  if (!json.empty()) out.open(json);
  if (!json.empty() && !out)
    throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
  std::printf("%-26s %12s %12s   %s\n", "", "ours", "peer", "peer");
  for (const Case& one : cases) {
    std::printf("%-26s %9.0f %-4s %9.0f   %s\n", one.name.c_str(), one.ours, one.unit.c_str(), one.peer,
                one.peer_name.c_str());
    const double ratio = one.peer == 0 ? 0 : one.unit == "us" ? one.peer / one.ours : one.ours / one.peer;
    out << nlohmann::json{{"bench", "serve"}, {"case", one.name},           {"ours", one.ours},
                          {"peer", one.peer}, {"peer_name", one.peer_name}, {"ratio", ratio},
                          {"unit", one.unit}}
               .dump()
        << "\n";
  }
  for (const Peer& peer : peers)
    if (peer.failed > 0)
      std::printf("%s answered %d requests with an error\n", peer.name.c_str(), peer.failed);
  if (failed > 0) std::printf("%d of our requests were not answered with 200\n", failed);
  return failed == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_serve: %s\n", error.what());
  return 1;
}
