#include "actors/serve/call_graph.hpp"

#include <algorithm>
#include <deque>

namespace troupe::serve {

std::optional<ErrorInfo> CallGraph::add(Id id, const std::string& name, const std::set<std::string>& asks) {
  const auto refuse = [&](std::string why, std::string todo) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot serve '" + name + "'", std::move(why), std::move(todo)};
  };
  if (const auto cycle = way(asks, name); !cycle.empty()) {
    std::string text;
    for (const auto& one : cycle)
      text += (text.empty() ? "" : ", which") + std::string(" asks '") + one + "'";
    return refuse("it would ask itself: it" + text, "take a handle out, so that calls go one way");
  }
  const auto count = [&](const std::string& of) {
    return std::count_if(nodes_.begin(), nodes_.end(),
                         [&](const auto& one) { return one.second.name == of; });
  };
  for (const auto& one : asks) {
    if (count(one) == 1) continue;
    if (count(one) > 1)
      return refuse("it asks '" + one + "', and two deployments of this program have that name",
                    "give one of them another name");
    return refuse("it asks '" + one + "', which this program does not run",
                  "run that first; there is " + (nodes_.empty() ? std::string("none") : names()));
  }
  if (const auto callers = callers_of(name); !callers.empty() && count(name) > 0)
    return refuse("'" + name_of(callers.front()) + "' asks the deployment that has this name",
                  "give it another name");
  nodes_[id] = {name, asks};
  return {};
}

void CallGraph::remove(Id id) {
  nodes_.erase(id);
}

std::optional<CallGraph::Id> CallGraph::find(const std::string& name) const {
  for (const auto& [id, node] : nodes_) {
    if (node.name == name) return id;
  }
  return {};
}

std::vector<CallGraph::Id> CallGraph::callers_of(const std::string& name) const {
  std::vector<Id> ids;
  for (const auto& [id, node] : nodes_) {
    if (node.asks.contains(name)) ids.push_back(id);
  }
  return ids;
}

std::vector<CallGraph::Id> CallGraph::all_callers_of(const std::string& name) const {
  std::set<Id> found;
  std::deque<std::string> names{name};
  for (; !names.empty(); names.pop_front()) {
    for (const Id id : callers_of(names.front())) {
      if (found.insert(id).second) names.push_back(name_of(id));
    }
  }
  return {found.begin(), found.end()};
}

std::vector<CallGraph::Id> CallGraph::asked_by(Id id) const {
  std::vector<Id> ids;
  const auto at = nodes_.find(id);
  if (at == nodes_.end()) return ids;
  for (const auto& [one, node] : nodes_) {
    if (at->second.asks.contains(node.name)) ids.push_back(one);
  }
  return ids;
}

std::string CallGraph::name_of(Id id) const {
  const auto at = nodes_.find(id);
  return at == nodes_.end() ? std::string() : at->second.name;
}

/// The shortest way of calls from one of these names to `to`, both included; empty: there is none.
std::vector<std::string> CallGraph::way(const std::set<std::string>& from, const std::string& to) const {
  std::map<std::string, std::string> before;  // who asks it
  std::deque<std::string> next;
  for (const auto& name : from) {
    before.emplace(name, "");
    next.push_back(name);
  }
  for (; !next.empty(); next.pop_front()) {
    if (next.front() == to) {
      std::vector<std::string> names;
      for (std::string at = to; !at.empty(); at = before.at(at)) names.insert(names.begin(), at);
      return names;
    }
    for (const auto& [id, node] : nodes_) {
      if (node.name != next.front()) continue;
      for (const auto& asked : node.asks) {
        if (before.emplace(asked, node.name).second) next.push_back(asked);
      }
    }
  }
  return {};
}

std::string CallGraph::names() const {
  std::set<std::string> sorted;
  for (const auto& [id, node] : nodes_) sorted.insert(node.name);
  std::string all;
  for (const auto& name : sorted) all += (all.empty() ? "'" : ", '") + name + "'";
  return all;
}

}  // namespace troupe::serve
