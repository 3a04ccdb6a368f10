#include "actors/serve/take_over.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "runtime/core/clock.hpp"
#include "runtime/link/socket/serving_sockets.hpp"

namespace troupe::serve {
namespace {

using PlainJson = nlohmann::json;

constexpr Duration kOtherAnswers = std::chrono::seconds(10);

Result<ServingAnswer> ask_other(const Predecessor& other, const char* what) {
  const std::string question = PlainJson{{"do", what}, {"port", other.port}}.dump();
  auto answer = std::move(ask_serving(std::span(&other.pid, 1), question, kOtherAnswers).front());
  if (!answer) return answer;
  const PlainJson said = PlainJson::parse(answer->text, nullptr, false);
  if (said.is_object() && !said.contains("error")) return answer;
  const PlainJson error = said.is_object() ? said["error"] : PlainJson();
  const auto part = [&](const char* key) {
    const bool is_text = error.is_object() && error.contains(key) && error[key].is_string();
    return is_text ? error[key].get<std::string>() : std::string();
  };
  return ErrorInfo{
      ErrorCode::kRefused, "process " + std::to_string(other.pid) + " does not hand over its address",
      part("why").empty() ? "its answer is not understood" : part("what") + ": " + part("why"), part("todo")};
}

}  // namespace

Result<std::optional<Predecessor>> predecessor_among(const std::vector<std::pair<int, std::string>>& answers,
                                                     const std::string& name, int port) {
  std::vector<Predecessor> all;
  for (const auto& [pid, text] : answers) {
    const PlainJson status = PlainJson::parse(text, nullptr, false);
    const PlainJson deployments =
        status.is_object() ? status.value("deployments", PlainJson::array()) : PlainJson::array();
    std::vector<std::pair<std::string, int>> served;
    for (const PlainJson& one : deployments) {
      if (!one.is_object() || !one.contains("name") || !one["name"].is_string()) continue;
      if (!one.contains("port") || !one["port"].is_number_unsigned()) continue;
      served.emplace_back(one["name"].get<std::string>(), one["port"].get<int>());
    }
    for (const auto& [its_name, its_port] : served) {
      if (its_name != name || (port != 0 && its_port != port)) continue;
      Predecessor found{pid, its_port, {}};
      for (const auto& [other, other_port] : served) {
        if (other_port == its_port) found.names.push_back(other);
      }
      all.push_back(std::move(found));
    }
  }
  if (all.size() > 1)
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take over '" + name + "'",
                     "several programs of this user on this machine serve that: processes " +
                         std::to_string(all[0].pid) + " and " + std::to_string(all[1].pid),
                     "give its port, or stop one of them"};
  if (all.empty()) return std::optional<Predecessor>();
  return std::optional(std::move(all.front()));
}

Result<std::optional<Predecessor>> find_predecessor(const std::string& name, int port) {
  auto pids = serving_pids();
  std::erase(pids, static_cast<int>(::getpid()));
  const auto said = ask_serving(pids, R"({"do":"status"})", kOtherAnswers);
  std::vector<std::pair<int, std::string>> answers;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (said[i]) answers.emplace_back(pids[i], said[i]->text);
  }
  return predecessor_among(answers, name, port);
}

Result<std::vector<UniqueFd>> ask_for_sockets(const Predecessor& predecessor) {
  auto answer = ask_other(predecessor, "hand_over");
  if (!answer) return answer.error();
  // The kernel leaves out what this process has no room for, and who waits there would be reset.
  const std::size_t came = answer->fds.size();
  if (came == 0 || PlainJson::parse(answer->text).value("sockets", PlainJson()) != PlainJson(came))
    return ErrorInfo{ErrorCode::kLimit, "cannot take over port " + std::to_string(predecessor.port),
                     "not all sockets came with the answer, but " + std::to_string(came), "raise ulimit -n"};
  return std::move(answer->fds);
}

Result<void> tell_taken(const Predecessor& predecessor) {
  auto answer = ask_other(predecessor, "taken");
  if (!answer) return answer.error();
  return {};
}

}  // namespace troupe::serve
