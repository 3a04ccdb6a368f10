// What programs of one user tell each other of what they serve, and files that people and runs write.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "actors/serve/control.hpp"
#include "actors/serve/take_over.hpp"
#include "runtime/config/serving_file.hpp"
#include "runtime/core/error.hpp"
#include "runtime/link/socket/named_socket.hpp"
#include "scheduler/cli/dashboard/training_curve.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {
namespace {

using serve::Controlled, serve::DeploymentStatus, serve::Replicas, serve::VersionId;

/// A deployment that does what it is asked.
struct Willing final : Controlled {
  DeploymentStatus status() override {
    return {.name = "digits", .url = "http://127.0.0.1:8000/v1/digits", .port = 8000, .view = {}, .pids = {}};
  }
  void scale(Replicas) override {}
  VersionId update_from(const std::string&) override { return 2; }
  VersionId roll_back() override { return 1; }
  void stop_serving() override {}
  std::vector<UniqueFd> listening() override { return {}; }
  void leave() override {}
  std::string metrics() override { return ""; }
};

}  // namespace

bool serving_question(std::span<const std::byte> bytes) {
  static Willing deployment;
  static auto* const control = [] {
    auto* made = new serve::Control(listen_by_name("troupe-fuzz-" + std::to_string(::getpid())).value());
    made->add(deployment);
    return made;
  }();
  const std::string answer = control->answer(text_of(bytes));
  decoded();
  check(answer.starts_with('{') && answer.ends_with('}'), "an answer is an object");
  return answer.find("\"error\":{") == std::string::npos;
}

bool serving_status(std::span<const std::byte> bytes) {
  const serve::ServingStatus answers{{7, std::string(text_of(bytes))}};
  const auto by_name = serve::predecessor_among(answers, {"digits", "127.0.0.1", 0, ""});
  const auto by_port = serve::predecessor_among(answers, {"other", "127.0.0.1", 8000, ""});
  const auto proxy = serve::proxy_among(answers, "1", "2");
  decoded();
  for (const auto* found : {&by_name, &by_port}) {
    if (!found->ok() || !**found) continue;
    const serve::Predecessor& other = ***found;
    check(other.pid == 7 && other.port > 0 && other.port <= 65535 && !other.names.empty(),
          "whose place is taken serves something at a port");
  }
  return by_name.ok() && *by_name && proxy;
}

bool serving_file(std::span<const std::byte> bytes) {
  if (bytes.size() > config::kMostServingBytes) return false;
  const auto file = config::parse_serving_file(text_of(bytes), "digits.toml");
  decoded();
  if (!file) return false;
  const auto text = config::to_toml(*file);
  if (!text) return true;  // it is longer than what came
  const auto again = config::parse_serving_file(*text, "digits.toml");
  check(again.ok(), "what was read can be written and read again");
  const auto changes = config::changes_between(*file, *again);
  check(changes.running.empty() && changes.restarted.empty(), "and says the same");
  return true;
}

bool training_curve(std::span<const std::byte> bytes) {
  cli::TrainingCurve whole("run"), cut("run");
  whole.feed(text_of(bytes));
  const auto all = whole.as_json();
  decoded();
  check(all["losses"].size() <= cli::TrainingCurve::kMostPoints, "losses are bounded");
  for (std::size_t at = 0; at < bytes.size(); at += 7)
    cut.feed(text_of(bytes.subspan(at, std::min<std::size_t>(7, bytes.size() - at))));
  check(cut.as_json() == all, "how bytes are cut does not matter");
  return !all["losses"].empty();
}

}  // namespace troupe::fuzz
