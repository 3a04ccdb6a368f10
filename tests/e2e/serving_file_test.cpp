// troupe serve run: a program that serves as a job of a cluster, as a file says; and the file's changes while
// it serves.
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/serve/serve.hpp"
#include "tests/e2e/serving_cluster.hpp"
#include "tests/e2e/support.hpp"

namespace serving_file_test {

using namespace troupe;
using Catch::Contains;
using e2e::Ran;

namespace {

/// Whatever the input, the bias.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.narrow(1, 0, 1) * 0 + bias; }
  torch::Tensor bias = register_parameter("bias", torch::zeros({1}));
};
TORCH_MODULE(Net);

struct Constant {
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.shape = {2}}; }
};

void write_weights(const std::string& path, float bias) {
  const std::vector<checkpoint::TensorView> views{
      {"bias", checkpoint::DType::kF32, {1}, {reinterpret_cast<const std::byte*>(&bias), sizeof bias}}};
  const auto bytes = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(views).value());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

using Cluster = e2e::ServingCluster;

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  return text.replace(text.find(part), part.size(), by);
}

}  // namespace

TEST_CASE("a program that serves", "[.program]") {
  auto session = init(0, nullptr);
  if (serve::configured_weights("constant").empty()) throw std::runtime_error("the file has no weights");
  // Neither the path nor the port is there: the file's are taken.
  auto served = serve::run(session, "constant", Constant{}, "/no/such/weights",
                           {.replicas = 3, .port = 1, .max_batch = 5});
  served.wait();
}

TEST_CASE("a file starts a program, and its changes are applied while it serves", "[serving]") {
  const Cluster cluster("constant");
  const auto status = [&] {
    const Ran ran = e2e::shell(TROUPE_CLI " serve status constant -o json");
    INFO(ran.output);
    return nlohmann::json::parse(ran.output);
  };
  const auto answer = [&] {
    return e2e::shell("curl -s -m 60 -d '{\"inputs\": [[1, 2]]}' " + status()["url"].get<std::string>())
        .output;
  };
  std::filesystem::create_directory(cluster.root + "/weights");
  write_weights(cluster.root + "/weights/one.safetensors", 1.5F);
  write_weights(cluster.root + "/weights/two.safetensors", 2.5F);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string text = "program = \"" + self + R"("
args = ["a program that serves"]
[deployments.constant]
weights = "weights/one.safetensors"
replicas = 1
port = 0
max_batch = 8
)";

  // Refused before anything starts.
  CHECK_THAT(cluster.run(replaced(text, "max_batch", "max_bach")).output,
             Contains("constant.toml, line 7: there is no 'deployments.constant.max_bach'") &&
                 Contains("the nearest is 'deployments.constant.max_batch'"));
  CHECK_THAT(cluster.run(replaced(text, "\"weights/", "weights/")).output,
             Contains("constant.toml: line 4: "));
  CHECK_THAT(cluster.run(replaced(text, self, "/no/such/program")).output, Contains("/no/such/program"));
  // The program's end is told with its last words.
  const Ran ended = cluster.run(replaced(text, "weights = \"weights/one.safetensors\"\n", ""));
  CHECK(ended.code == 1);
  CHECK_THAT(ended.output, Contains("the program ended before it served 'constant'") &&
                               Contains("the file has no weights"));

  const Ran first = cluster.run(text);
  INFO(first.output);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.output, Contains("is submitted") && Contains("constant: http://127.0.0.1:"));
  CHECK(answer() == "{\"outputs\": [[1.5]]}\n");
  CHECK(status()["replicas"]["max"] == 1);
  const auto pid = [&] { return status()["pid"].get<int>(); };
  const auto program = pid();

  CHECK_THAT(cluster.run(text).output, Contains("nothing has changed"));
  const std::string two =
      replaced(replaced(text, "one.safe", "two.safe"), "replicas = 1", "replicas = \"1:2\"");
  const Ran changed = cluster.run(two);
  INFO(changed.output);
  CHECK(changed.code == 0);
  CHECK_THAT(changed.output,
             Contains("constant: 1 to 2 replicas\n") && Contains("constant: weights 2 answer\n"));
  CHECK(answer() == "{\"outputs\": [[2.5]]}\n");
  CHECK(status()["replicas"]["max"] == 2);
  CHECK(pid() == program);
  CHECK_THAT(cluster.run(two).output, Contains("nothing has changed"));

  // What it cannot change while it runs.
  const std::string batch = replaced(two, "max_batch = 8", "max_batch = 16");
  const Ran refused = cluster.run(batch);
  CHECK(refused.code == 1);
  CHECK_THAT(refused.output,
             Contains("deployments.constant.max_batch was 8, is 16") && Contains("--restart"));
  CHECK(pid() == program);
  const Ran again = cluster.run(batch, "--restart");
  INFO(again.output);
  CHECK(again.code == 0);
  CHECK(pid() != program);
  CHECK(answer() == "{\"outputs\": [[2.5]]}\n");
  CHECK(e2e::shell(TROUPE_CLI " serve stop constant").code == 0);
}

// Was: it waited at the head until there was a CPU, got that before those that were wanted, loaded the
// program and was killed. One more did each time that a replica was late.
TEST_CASE("a replica that finds no CPU and is not wanted any more waits for none", "[serving]") {
  const Cluster cluster("constant");
  write_weights(cluster.root + "/one.safetensors", 1.5F);
  const auto waiting = [&] {
    return nlohmann::json::parse(cluster.troupe("status --json").output)["waiting"].size();
  };
  const auto scale = [](const char* replicas) {
    return e2e::shell(std::string(TROUPE_CLI " serve scale constant ") + replicas).code;
  };
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const Ran ran = cluster.run("program = \"" + self + R"("
args = ["a program that serves"]
num_cpus = 0
[deployments.constant]
weights = "one.safetensors"
replicas = 2
cpus = 1.0
port = 0
)");
  INFO(ran.output);
  REQUIRE(ran.code == 0);
  CHECK(waiting() == 0);
  REQUIRE(scale("3") == 0);
  CHECK(e2e::eventually([&] { return waiting() == 1; }));
  CHECK(scale("2") == 0);
  CHECK(e2e::eventually([&] { return waiting() == 0; }));
  CHECK(e2e::shell(TROUPE_CLI " serve stop constant").code == 0);
}

}  // namespace serving_file_test
