// troupe dump: has workers write down what they are at: their threads' stacks, and the flight recorder's
// rings.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "runtime/core/count.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/jobs/head_session.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr const char* kDumpFooter =
    "For a job that hangs: each worker writes the stacks of its threads, and what its rank in process "
    "groups\n"
    "did last, into a folder of its node. The workers go on. For the head's owner, and for a node's own "
    "machine.\n"
    "  troupe dump                     all of the cluster\n"
    "  troupe dump mnist-1ace0943      the workers of a job, by its id or name\n"
    "  troupe dump gpu-7               those of a node\n"
    "troupe flight-recorder FOLDER says of the files which rank diverged.\n"
    "Exit code: 1 where a worker or node did not answer.\n";

constexpr std::uint32_t kMostDumpBytes = 8 << 20;

struct DumpWords {
  JobClientOptions where;
  std::string name;
  std::string output = "table";
};

/// A node's question: of all its workers, or of a job's.
struct Question {
  const wire::NodeStatus* node;
  std::string job;
};

std::vector<Question> questions_about(const DumpWords& words, const wire::StatusAnswer& all) {
  std::vector<Question> questions;
  const auto is_node = [&](const wire::NodeStatus& n) {
    return !n.node.gateway && (words.name == n.node.name || words.name == to_string(n.node.id));
  };
  if (std::any_of(all.nodes.begin(), all.nodes.end(), is_node)) return {{&node_called(all, words.name), ""}};
  if (words.name.empty()) {
    for (const auto& node : all.nodes) {
      if (!node.node.gateway) questions.push_back({&node, ""});
    }
    return questions;
  }
  std::string submission;
  for (const JobInfo& job : JobClient(words.where).list()) {
    if (!job.has_ended() && (job.id == words.name || job.name == words.name)) submission = job.id;
  }
  bool is_job = !submission.empty();
  std::optional<std::vector<SeenProcess>> seen;
  for (const auto& job : all.jobs) {
    const bool is_it = job.name == words.name || to_string(job.job) == words.name ||
                       (!submission.empty() && job.submission == submission);
    if (job.ended || !is_it) continue;
    is_job = true;
    if (!seen) seen = ask_processes(words.where, all);  // the head knows of no light actors
    for (const auto& node : all.nodes) {
      const bool has_it = std::any_of(seen->begin(), seen->end(), [&](const SeenProcess& process) {
        return process.node == node.node.id && process.status.job == job.job;
      });
      if (has_it) questions.push_back({&node, to_string(job.job)});
    }
  }
  if (!is_job)
    throw_error({ErrorCode::kRefused, "cannot dump " + words.name,
                 "no live node and no job that runs has that id or name",
                 "troupe status shows those that there are"});
  if (questions.empty())
    throw_error({ErrorCode::kRefused, "cannot dump job " + words.name, "it has no workers now",
                 "a program that does not use troupe is looked at with gdb or py-spy: troupe job status has "
                 "its pid"});
  return questions;
}

}  // namespace

int dump(int argc, char** argv) {
  DumpWords words;
  CLI::App app("Has workers write down what they are at, and says where.", "troupe dump");
  app.footer(kDumpFooter);
  app.add_option("name", words.name, "Id or name of a job or node [default: all nodes]")->check(not_empty());
  add_output_option(app, words.output);
  add_head_options(app, words.where.folder, words.where.address);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  const auto all = ask_status(words.where.folder, words.where.address);
  HeadSession head(ClusterFolder::find(words.where.folder).value(),
                   words.where.address.empty() ? std::nullopt
                                               : std::optional(parse_endpoint(words.where.address).value()));
  bool is_whole = true;
  json rows = json::array();
  for (const auto& [node, job] : questions_about(words, all)) {
    const std::string name = escape_name(node->node.name);
    const auto bytes = head.ask(wire::LogAsk{.id = std::string(node::kDump) + to_string(node->node.id) +
                                                   (job.empty() ? "" : "/" + job),
                                             .most_bytes = kMostDumpBytes},
                                kAnswers);
    const auto part = bytes ? wire::decode<wire::LogPart>(*bytes) : Result<wire::LogPart>(bytes.error());
    const auto list = part ? wire::decode<node::DumpList>(part->bytes) : Result<node::DumpList>(part.error());
    if (!list) {
      is_whole = false;
      std::fprintf(stderr, "troupe: node %s: %s\n", name.c_str(),
                   escape_text(list.error().message()).c_str());
      continue;
    }
    json processes = json::array();
    for (const auto& p : list->processes) {
      processes.push_back({{"pid", p.pid}, {"title", p.title}, {"answered", p.answered}});
      is_whole = is_whole && p.answered;
      if (!p.answered)
        std::fprintf(stderr, "troupe: node %s: %s (pid %lld) did not answer: it is stopped, or starts\n",
                     name.c_str(), escape_name(p.title).c_str(), static_cast<long long>(p.pid));
    }
    rows.push_back({{"node", to_string(node->node.id)},
                    {"node_name", node->node.name},
                    {"folder", list->folder},
                    {"processes", processes},
                    {"files", list->files}});
    if (words.output == "json") continue;
    const auto answered = std::count_if(list->processes.begin(), list->processes.end(),
                                        [](const auto& p) { return p.answered; });
    std::printf("node %s: %lld of %s, in %s\n", name.c_str(), static_cast<long long>(answered),
                count_of(static_cast<std::int64_t>(list->processes.size()), "worker").c_str(),
                escape_name(list->folder).c_str());
    for (const std::string& file : list->files)
      std::printf("  %s\n", escape_name(file.substr(std::min(list->folder.size() + 1, file.size()))).c_str());
  }
  if (words.output == "json") print_json(rows);
  return is_whole ? 0 : 1;
}

}  // namespace troupe::cli
