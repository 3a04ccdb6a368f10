// Actor calls between two processes of one node: synchronous, asynchronous, and the creation of light actors.
// Tasks. Objects of 100 B and of 100 MiB: put, and read by a task of the same node. With
// --ray PYTHON the same is measured of Ray in the same run (ray_peer.py); without it Ray's figures for this
// kind of machine are quoted from docs/performance.md and marked so.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/runtime/timing.hpp"
#include "scheduler/init/init.hpp"

namespace {

using namespace troupe;
using bench::median;
using bench::seconds_of;

/// Ray 2.60, its C++ API, the better figure of each kind, on a 2-core Xeon virtual machine.
const std::map<std::string, double> kQuotedRay = {{"actor call, synchronous", 2230},
                                                  {"actor call, asynchronous", 11300},
                                                  {"actor creation, light", 2.9},
                                                  {"task, synchronous", 840},
                                                  {"task, asynchronous", 1720}};

struct Echo {
  int add(int n) { return n + 1; }
};

constexpr std::size_t kLargeFloats = std::size_t{25} << 20;

int next(int n) {
  return n + 1;
}
double ends(const View<float>& numbers) {
  return double(numbers[0]) + double(numbers[numbers.size() - 1]);
}

double synchronous(const ActorHandle<Echo>& echo, int calls) {
  return calls / seconds_of([&] {
           for (int i = 0; i < calls; ++i) echo.call<&Echo::add>(i).get();
         });
}

double asynchronous(const ActorHandle<Echo>& echo, int calls) {
  std::vector<Future<int>> answers;
  answers.reserve(calls);
  return calls / seconds_of([&] {
           for (int i = 0; i < calls; ++i) answers.push_back(echo.call<&Echo::add>(i));
           for (const auto& answer : answers) answer.get();
         });
}

double tasks_synchronous(const Session& session, int tasks) {
  return tasks / seconds_of([&] {
           for (int i = 0; i < tasks; ++i) session.submit<&next>(i).get();
         });
}

double tasks_asynchronous(const Session& session, int tasks) {
  std::vector<Future<int>> answers;
  answers.reserve(std::size_t(tasks));
  return tasks / seconds_of([&] {
           for (int i = 0; i < tasks; ++i) answers.push_back(session.submit<&next>(i));
           for (const auto& answer : answers) answer.get();
         });
}

/// Copies a second into memory that is there: what a put can reach at best.
double copies(std::size_t bytes, int times) {
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  return times / seconds_of([&] {
           for (int i = 0; i < times; ++i) {
             std::memcpy(to.data(), from.data(), bytes);
             asm volatile("" : : "r"(to.data()) : "memory");  // each is seen
           }
         });
}

/// Puts a second, gets of one's own and reads by a task, of a vector of so many floats.
void measure_objects(const Session& session, std::size_t floats, int times, const std::string& size,
                     std::map<std::string, std::vector<double>>& rates) {
  const std::vector<float> values(floats, 1.0F);
  std::vector<ObjectRef<std::vector<float>>> put;
  rates["put, " + size].push_back(times / seconds_of([&] {
                                    for (int i = 0; i < times; ++i) put.push_back(session.put(values));
                                  }));
  rates["view, " + size].push_back(times / seconds_of([&] {
                                     for (const auto& one : put) one.view();
                                   }));
  rates["object read by a task, " + size].push_back(times / seconds_of([&] {
                                                      for (const auto& one : put)
                                                        session.submit<&ends>(one).get();
                                                    }));
}

double creation(const Session& session, int actors) {
  std::vector<Future<ActorHandle<Echo>>> spawned;
  std::vector<ActorHandle<Echo>> handles;
  const double rate = actors / seconds_of([&] {
                        for (int i = 0; i < actors; ++i) spawned.push_back(session.spawn_async<Echo>());
                        for (auto& one : spawned) handles.push_back(one.get());
                      });
  for (const auto& handle : handles) session.kill(handle);
  return rate;
}

std::map<std::string, double> run_ray(const std::string& python) {
  const std::string command = "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY; '" +
                              python + "' " TROUPE_SOURCE_DIR "/bench/runtime/ray_peer.py 2>/dev/null";
  std::string text;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    ::pclose(pipe);
  }
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_object()) return {};
  return parsed.get<std::map<std::string, double>>();
}

}  // namespace

int main(int argc, char** argv) try {
  int rounds = 7;
  int calls = 20'000;
  std::string json, ray;
  CLI::App app("Measures actor calls across processes of one node.");
  app.add_option("--rounds", rounds, "Rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--calls", calls, "Calls a round")
      ->capture_default_str()
      ->check(CLI::Range(100, 10'000'000));
  app.add_option("--json", json, "Write the results to this file, an object a line");
  app.add_option("--ray", ray, "A python with ray: measures it in the same run (pip install ray)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  auto session = init(argc, argv);
  const auto echo = session.spawn<Echo>({.isolated = false});
  synchronous(echo, 1000);
  std::map<std::string, std::vector<double>> ours;
  for (int i = 0; i < rounds; ++i) {
    ours["actor call, synchronous"].push_back(synchronous(echo, calls));
    ours["actor call, asynchronous"].push_back(asynchronous(echo, 10 * calls));
    ours["actor creation, light"].push_back(creation(session, 200));
    ours["task, synchronous"].push_back(tasks_synchronous(session, calls));
    ours["task, asynchronous"].push_back(tasks_asynchronous(session, 10 * calls));
    measure_objects(session, 25, calls / 10, "100 B", ours);
    measure_objects(session, kLargeFloats, 3, "100 MiB", ours);
    ours["memcpy, 100 MiB"].push_back(copies(kLargeFloats * sizeof(float), 3));
  }
  // The memory of a round's objects is that of the round before; of the first round it is new.
  ours["put, 100 MiB, into new memory"] = {ours["put, 100 MiB"].front()};
  auto peer = ray.empty() ? std::map<std::string, double>{} : run_ray(ray);
  const bool quoted = peer.empty();
  if (quoted) {
    std::printf(
        "Ray was not measured: its figures are quoted. To measure it: python3 -m venv V && V/bin/pip install "
        "ray, "
        "then --ray V/bin/python\n");
    peer = kQuotedRay;
  }
  std::ofstream out;
  if (!json.empty()) out.open(json);
  if (!json.empty() && !out)
    throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
  std::printf("%-34s %14s %14s %8s\n", "", "troupe /s", quoted ? "Ray /s (quoted)" : "Ray /s", "ratio");
  for (const auto& [name, values] : ours) {
    const double rate = median(values);
    const bool has_peer = peer.contains(name);
    const double ratio = has_peer ? rate / peer[name] : 0;
    std::printf("%-34s %14.0f", name.c_str(), rate);
    has_peer ? std::printf(" %14.0f %8.1f\n", peer[name], ratio) : std::printf(" %14s %8s\n", "-", "-");
    nlohmann::json row{{"bench", "runtime"}, {"case", name}, {"ours", rate}, {"unit", "1/s"}};
    if (has_peer) {
      row["peer"] = peer[name];
      row["peer_name"] = quoted ? "Ray 2.60 C++ API (quoted)" : "Ray (Python)";
      row["ratio"] = ratio;
    }
    out << row.dump() << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_runtime: %s\n", error.what());
  return 1;
}
