#include "scheduler/cli/processes.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/progress.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/jobs/head_session.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr Duration kAllAnswer = std::chrono::seconds(20);
constexpr std::size_t kMostNodes = 200;
constexpr std::uint32_t kMostListBytes = 8 << 20;

std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// "0..4" is 0, 1, 2, 3.
json list_in(const std::string& range) {
  const auto dots = range.find("..");
  const auto begin = number_in(range.substr(0, dots));
  const auto end = dots == std::string::npos ? std::nullopt : number_in(range.substr(dots + 2));
  constexpr std::int64_t kMostRanks = 100'000;
  if (!begin || !end || *end - *begin > kMostRanks) return range;
  json list = json::array();
  for (std::int64_t i = *begin; i < *end; ++i) list.push_back(i);
  return list;
}

/// "42s", "7m05s", "3h12m", "2d01h".
std::string as_time(std::int64_t s) {
  const auto two = [](std::int64_t large, char unit, std::int64_t small, char other) {
    char text[48];
    std::snprintf(text, sizeof text, "%lld%c%02lld%c", static_cast<long long>(large), unit,
                  static_cast<long long>(small), other);
    return std::string(text);
  };
  if (s < 60) return std::to_string(s) + "s";
  if (s < 3600) return two(s / 60, 'm', s % 60, 's');
  if (s < 86'400) return two(s / 3600, 'h', s / 60 % 60, 'm');
  return two(s / 86'400, 'd', s / 3600 % 24, 'h');
}

Result<node::ProcessList> ask_node(HeadSession& head, const std::string& id) {
  const auto bytes = head.ask(
      wire::LogAsk{.id = std::string(node::kProcesses) + id, .most_bytes = kMostListBytes}, kAnswers);
  if (!bytes) return bytes.error();
  const auto part = wire::decode<wire::LogPart>(*bytes);
  if (!part) return part.error();
  return wire::decode<node::ProcessList>(part->bytes);
}

HeadSession session_to(const JobClientOptions& where) {
  return HeadSession(
      ClusterFolder::find(where.folder).value(),
      where.address.empty() ? std::nullopt : std::optional(parse_endpoint(where.address).value()));
}

std::string actors_of(const node::ProcessStatus& status) {
  if (status.actors.empty()) return "-";
  const std::size_t more = status.actors.size() - 1;
  return to_string(status.actors.front()) + (more == 0 ? "" : "+" + std::to_string(more));
}

}  // namespace

bool may_have_processes(const wire::NodeStatus& node) {
  return !node.node.gateway && node.state != "expected" && node.state != "silent";
}

std::vector<SeenProcess> ask_processes(const JobClientOptions& where, const wire::StatusAnswer& all) {
  HeadSession head = session_to(where);
  std::vector<SeenProcess> seen;
  std::size_t asked = 0, left_out = 0;
  const MonotonicClock clock;
  const Instant until = clock.now() + kAllAnswer;
  for (const auto& node : all.nodes) {
    if (!may_have_processes(node)) continue;
    if (++asked > kMostNodes || clock.now() > until) {
      ++left_out;
      continue;
    }
    auto list = ask_node(head, to_string(node.node.id));
    if (!list) {
      std::fprintf(stderr, "troupe: the processes of node %s are not shown: %s\n",
                   escape_name(node.node.name).c_str(), escape_text(list.error().message()).c_str());
      continue;
    }
    for (auto& process : list->processes) seen.push_back({node.node.id, std::move(process)});
  }
  if (left_out > 0) std::fprintf(stderr, "troupe: the processes of %zu more nodes are not shown\n", left_out);
  return seen;
}

std::string package_on_its_way(const JobClientOptions& where, const JobInfo& job) {
  if (job.status != JobStatus::kStarting || job.node_id.empty()) return {};
  HeadSession head = session_to(where);
  const auto list = ask_node(head, job.node_id);
  if (!list) return {};
  for (const auto& package : list->packages) {
    if (package.submission != job.id) continue;
    return "its node fetches its package" +
           (package.total == 0 ? "" : ": " + part_of_bytes(package.bytes, package.total));
  }
  return {};
}

std::map<ActorId, std::int64_t> pids_of_actors(const std::vector<SeenProcess>& processes) {
  std::map<ActorId, std::int64_t> pids;
  for (const auto& [node, status] : processes) {
    for (const ActorId actor : status.actors) pids[actor] = status.pid;
  }
  return pids;
}

std::map<ActorId, std::int64_t> ask_pids(const JobClientOptions& where, const wire::StatusAnswer& all,
                                         const std::vector<const wire::ActorStatus*>& actors) {
  wire::StatusAnswer theirs;
  for (const auto& node : all.nodes) {
    if (std::any_of(actors.begin(), actors.end(),
                    [&](const auto* actor) { return actor->record.node == node.node.id; }))
      theirs.nodes.push_back(node);
  }
  if (theirs.nodes.empty()) return {};
  return pids_of_actors(ask_processes(where, theirs));
}

json pid_as_json(const std::map<ActorId, std::int64_t>& pids, ActorId actor) {
  const auto at = pids.find(actor);
  return at == pids.end() ? json() : json(at->second);
}

std::vector<SeenProcess> processes_of(const std::string& submission, const wire::StatusAnswer& all,
                                      std::vector<SeenProcess> seen) {
  std::set<JobId> jobs;
  for (const auto& job : all.jobs) {
    if (job.submission == submission) jobs.insert(job.job);
  }
  std::erase_if(seen, [&](const SeenProcess& process) {
    return process.status.submission != submission && !jobs.contains(process.status.job);
  });
  return seen;
}

void print_processes(const wire::StatusAnswer& all, const std::vector<SeenProcess>& processes) {
  if (processes.empty()) return;
  std::printf("\n%-8s %-18s %-18s %-32s %-7s %s\n", "pid", "actor", "node", "process", "up", "is at");
  for (const auto& [node, status] : processes) {
    std::string notes, up = "-";
    for (const auto& [key, value] : status.notes) {
      if (const auto s = number_in(value); key == node::kUpNote && s) {
        up = as_time(*s);
      } else {
        notes.append(notes.empty() ? "" : " ").append(key).append("=").append(value);
      }
    }
    std::printf("%-8lld %-18s %-18s %-32s %-7s %s\n", static_cast<long long>(status.pid),
                actors_of(status).c_str(), escape_name(node_name(all, node)).c_str(),
                escape_name(status.title).c_str(), up.c_str(),
                notes.empty() ? "-" : escape_name(notes).c_str());
  }
}

json as_json(const wire::StatusAnswer& all, const std::vector<SeenProcess>& processes) {
  json list = json::array();
  for (const auto& [node, status] : processes) {
    json row;
    for (const auto& [key, value] : status.notes) {
      const auto number = number_in(value);
      row[key] = key == "logical_ranks" ? list_in(value) : number ? json(*number) : json(value);
    }
    json actors = json::array();
    for (const ActorId actor : status.actors) actors.push_back(to_string(actor));
    row["pid"] = status.pid;
    row["node"] = to_string(node);
    row["node_name"] = node_name(all, node);
    row["title"] = status.title;
    row["submission"] = status.submission.empty() ? json() : json(status.submission);
    row["actors"] = std::move(actors);
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace troupe::cli
