#include "actors/serve/take_over.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"

namespace troupe::serve {
namespace {

using PlainJson = nlohmann::json;

constexpr Duration kOtherAnswers = std::chrono::seconds(10);
/// Of who needs no answer: it is read in the order of the questions, however late.
constexpr Duration kOtherHears = std::chrono::seconds(1);

Result<ServingAnswer> ask_other(const Predecessor& other, const char* what,
                                Duration timeout = kOtherAnswers) {
  const std::string question = PlainJson{{"do", what}, {"port", other.port}}.dump();
  auto answer = std::move(ask_serving(std::span(&other.pid, 1), question, timeout, other.who).front());
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

std::string text_at(const PlainJson& json, const char* key) {
  const auto at = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}

/// A deployment, as its program tells of it.
struct Told {
  std::string name, url, fleet, node;
  int port = 0;
};
std::vector<Told> deployments_of(const PlainJson& status) {
  std::vector<Told> all;
  const auto list = status.is_object() ? status.find("deployments") : status.end();
  if (!status.is_object() || list == status.end() || !list->is_array()) return all;
  for (const PlainJson& one : *list) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string()) continue;
    if (!one.contains("port") || !one["port"].is_number_unsigned()) continue;
    const auto port = one["port"].get<std::uint64_t>();
    if (port == 0 || port > 65535) continue;
    all.push_back({text_at(one, "name"), text_at(one, "url"), text_at(one, "fleet"), text_at(one, "node"),
                   static_cast<int>(port)});
  }
  return all;
}

/// What it serves at that port.
Predecessor at_port(int pid, int port, const std::vector<Told>& served) {
  Predecessor found{.pid = pid, .port = port, .names = {}};
  for (const Told& one : served) {
    if (one.port != port) continue;
    found.names.push_back(one.name);
    if (found.fleet.empty()) found.fleet = one.fleet;
  }
  return found;
}

bool is_host(const Told& told, const std::string& host) {
  const Endpoint at{host == "localhost" ? "127.0.0.1" : host, static_cast<std::uint16_t>(told.port)};
  return told.url.find("://" + to_string(at) + "/") != std::string::npos;
}

ServingStatus ask_all(const std::vector<int>& pids, Serving who, std::vector<int>* silent = nullptr) {
  const auto said = ask_serving(pids, R"({"do":"status"})", kOtherAnswers, who);
  ServingStatus answers;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (said[i]) answers.emplace_back(pids[i], said[i]->text);
    if (!said[i] && said[i].error().code == ErrorCode::kTimeout && silent != nullptr)
      silent->push_back(pids[i]);
  }
  return answers;
}

std::vector<int> others(Serving who) {
  auto pids = serving_pids(who);
  std::erase(pids, static_cast<int>(::getpid()));
  return pids;
}

}  // namespace

Result<std::optional<Predecessor>> predecessor_among(const ServingStatus& programs, const Replaced& what) {
  std::vector<Predecessor> by_name, by_port;
  for (const auto& [pid, text] : programs) {
    const PlainJson status = PlainJson::parse(text, nullptr, false);
    if (!what.job.empty() && text_at(status, "job") != what.job) continue;
    const std::vector<Told> served = deployments_of(status);
    bool has_port = false;
    for (const Told& one : served) {
      if (what.port != 0 && one.port != what.port) continue;
      if (one.name == what.name) by_name.push_back(at_port(pid, one.port, served));
      has_port = has_port || (what.port != 0 && is_host(one, what.host));
    }
    if (!has_port) continue;
    by_port.push_back(at_port(pid, what.port, served));
    by_port.back().is_certain = !what.job.empty();
  }
  auto& all = by_name.empty() ? by_port : by_name;
  if (all.size() > 1)
    return ErrorInfo{ErrorCode::kBadConfig, "cannot take over '" + what.name + "'",
                     "several programs of this user on this machine serve that: processes " +
                         std::to_string(all[0].pid) + " and " + std::to_string(all[1].pid),
                     "give its port, or stop one of them"};
  if (all.empty()) return std::optional<Predecessor>();
  return std::optional(std::move(all.front()));
}

Result<std::optional<Predecessor>> find_predecessor(const Replaced& what, std::vector<int>& silent) {
  return predecessor_among(ask_all(others(Serving::kProgram), Serving::kProgram, &silent), what);
}

ErrorInfo with_silent(ErrorInfo error, const std::vector<int>& silent) {
  if (silent.empty()) return error;
  std::string processes;
  for (const int pid : silent)
    processes += (processes.empty() ? "process " : ", process ") + std::to_string(pid);
  error.why += "; " + processes + " of this user serves here, has not answered for " +
               std::to_string(kOtherAnswers / std::chrono::seconds(1)) +
               " s, and may be the one whose place this program was to take";
  error.todo = "see whether it is stopped (kill -CONT) or hangs, and end it if so; or else: " + error.todo;
  return error;
}

std::optional<Predecessor> proxy_among(const ServingStatus& proxies, const std::string& fleet,
                                       const std::string& node) {
  std::optional<Predecessor> found;
  for (const auto& [pid, text] : proxies) {
    const std::vector<Told> served = deployments_of(PlainJson::parse(text, nullptr, false));
    if (served.empty() || served.front().fleet != fleet) continue;
    const bool is_there = served.front().node == node;
    if (found && !is_there) continue;
    found = at_port(pid, served.front().port, served);
    found->who = Serving::kProxy;
    if (is_there) return found;
  }
  return found;
}

std::optional<Predecessor> find_former_proxy(const std::string& fleet, const std::string& node) {
  return proxy_among(ask_all(others(Serving::kProxy), Serving::kProxy), fleet, node);
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

void tell_not_taken(const Predecessor& predecessor) {
  static_cast<void>(ask_other(predecessor, "not_taken", kOtherHears));
}

}  // namespace troupe::serve
