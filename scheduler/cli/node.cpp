// troupe node: the nodes of the cluster, and what is on one.
#include <cstdio>
#include <map>

#include "runtime/core/count.hpp"
#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/processes.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using cluster::format_cpus;
using nlohmann::json;

constexpr const char* kNodeFooter =
    "  troupe node list --state draining\n"
    "  troupe node show gpu-7\n"
    "troupe drain has one leave, troupe logs prints what it has logged.\n";

struct NodeWords {
  std::string folder, address, node, state;
  std::string output = "table";
  std::int64_t limit = 0;
};

int list(const NodeWords& words) {
  const auto all = ask_status(words.folder, words.address);
  NodeList nodes;
  for (const auto& node : all.nodes) {
    if (words.state.empty() || node.state == words.state) nodes.push_back(&node);
  }
  const std::size_t found = nodes.size();
  if (words.limit > 0 && found > static_cast<std::size_t>(words.limit))
    nodes.resize(static_cast<std::size_t>(words.limit));
  if (words.output == "json") {
    json shown = json::array();
    for (const auto* node : nodes) shown.push_back(as_json(*node));
    print_json(shown);
  } else {
    print_nodes(nodes);
  }
  say_left_out(found - nodes.size());
  if (found == 0 && !all.nodes.empty()) {
    std::map<std::string, int> states;
    for (const auto& node : all.nodes) ++states[node.state];
    std::string hint;
    for (const auto& [state, count] : states)
      hint += (hint.empty() ? "" : ", ") + std::to_string(count) + " " + state;
    say_none("node", all.nodes.size(), hint);
  }
  return 0;
}

int show(const NodeWords& words) {
  const auto all = ask_status(words.folder, words.address);
  const wire::NodeStatus& node = node_called(all, words.node);
  ActorList actors;
  for (const auto& actor : all.actors) {
    if (actor.record.node == node.node.id) actors.push_back(&actor);
  }
  const auto pids = ask_pids({words.address, words.folder}, all, actors);
  if (words.output == "json") {
    json shown = as_json(node);
    shown["holds"] = json::array();
    for (const auto* actor : actors) {
      shown["holds"].push_back(as_json(all, *actor));
      shown["holds"].back()["pid"] = pid_as_json(pids, actor->record.actor);
    }
    print_json(shown);
    return 0;
  }
  const auto line = [](const char* what, const std::string& text) {
    std::printf("%-12s %s\n", what, escape_name(text).c_str());
  };
  line("node", to_string(node.node.id));
  line("name", node.node.name);
  line("address", node.node.address);
  line("state", node.state);
  if (!node.why.empty()) line("drains", node.why);
  line("CPUs", format_cpus(node.cpu_used_e4) + " of " + format_cpus(node.node.cpu_e4) + " held");
  line("GPUs", format_cpus(node.gpu_used_e4) + " of " + std::to_string(node.node.gpus.size()) + " held");
  for (const auto& one : node.node.other.amounts) {
    const std::int64_t used = amount_of(node.other_used, one.name);
    const bool is_memory = one.name == cluster::kMemory;
    const auto text = [&](std::int64_t n) { return is_memory ? cluster::format_bytes(n) : format_cpus(n); };
    line(one.name.c_str(), text(used) + " of " + text(one.amount) + " held");
  }
  if (!node.node.other.labels.empty()) line("labels", labels_of(node.node));
  if (node.node.gateway) line("of", "a program, which joins the cluster through it; it holds no actors");
  std::printf("\n");
  print_actors(all, actors, pids);
  return 0;
}

}  // namespace

const wire::NodeStatus& node_called(const wire::StatusAnswer& all, const std::string& name) {
  const wire::NodeStatus* found = nullptr;
  std::string ids;
  for (const auto& node : all.nodes) {
    const std::string id = to_string(node.node.id);
    if (id == name) return node;
    if (node.node.gateway || node.node.name != name) continue;
    found = &node;
    ids += (ids.empty() ? "" : ", ") + id;
  }
  if (found == nullptr)
    throw_error({ErrorCode::kRefused, "there is no node " + name, "no live node has that name or id",
                 "troupe node list shows those that live"});
  if (ids.find(',') != std::string::npos)
    throw_error({ErrorCode::kBadInput, "cannot tell which node is meant", "several have the name " + name,
                 "give one's id: " + ids});
  return *found;
}

void say_left_out(std::size_t count) {
  if (count > 0)
    std::fprintf(stderr, "troupe: %zu more %s not shown: raise --limit\n", count, count == 1 ? "is" : "are");
}

void say_none(const char* what, std::size_t there, const std::string& hint) {
  std::fprintf(stderr, "troupe: no %s matches: %zu %s there%s\n", what, there, there == 1 ? "is" : "are",
               hint.empty() ? "" : escape_name("; " + hint).c_str());
}

int node(int argc, char** argv) {
  NodeWords words;
  CLI::App app("Shows the nodes of a cluster.", "troupe node");
  app.footer(kNodeFooter);
  app.require_subcommand(1);
  auto* listed = app.add_subcommand("list", "All of them: what they offer, and what of it is held");
  listed->footer("  troupe node list --state draining -o json\n");
  listed->add_option("--state", words.state, "Those in that state alone")
      ->check(CLI::IsMember({"alive", "silent", "expected", "draining", "leaving"}));
  listed->add_option("--limit", words.limit, "The first so many of those alone [default: all]")
      ->check(whole_number(1, 1'000'000));
  auto* shown = app.add_subcommand("show", "One of them, with the actors that are there");
  shown->footer("  troupe node show gpu-7\n");
  shown->add_option("node", words.node, "Its name or id")
      ->required()
      ->check(not_empty("give a name or an id that troupe node list shows"));
  for (auto* command : {listed, shown}) {
    add_output_option(*command, words.output);
    add_head_options(*command, words.folder, words.address);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  return listed->parsed() ? list(words) : show(words);
}

}  // namespace troupe::cli
