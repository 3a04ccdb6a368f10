#include "scheduler/cli/flight_trace.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

namespace troupe::cli {
namespace {

namespace flight = collectives::flight;
using nlohmann::json;

/// A process of the cluster, by what its dumps say of it.
struct TracedProcess {
  int rank = 0;
  int size = 0;  ///< of the group that it has this rank in
  std::vector<const flight::Dump*> groups;
};

std::int64_t end_of(const flight::Dump& dump, const flight::Operation& op) {
  const std::int64_t end = flight::is_open(op.state) ? dump.dumped_ns : op.launched_ns + op.took_ns;
  return std::max(end, op.launched_ns);
}

/// The events of a trace, one a line.
class Trace {
 public:
  explicit Trace(std::int64_t begin_ns) : begin_ns_(begin_ns) {}

  void process(int pid, const TracedProcess& of) {
    const flight::Dump& dump = *of.groups.front();
    name("process_name", pid, 0,
         "rank " + std::to_string(of.rank) + " (" + dump.host + ", pid " + std::to_string(dump.pid) + ")");
    event({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", pid}, {"args", {{"sort_index", of.rank}}}});
    int row = 0;
    for (const flight::Dump* group : of.groups) row = rows_of(*group, pid, row + 1);
  }

  std::string text() && { return std::move(text_) + "\n]}\n"; }

 private:
  /// Each operation goes to the first row that is free when it is launched. Returns the last row.
  int rows_of(const flight::Dump& dump, int pid, int first) {
    using Free = std::pair<std::int64_t, int>;
    std::priority_queue<int, std::vector<int>, std::greater<>> free;
    std::priority_queue<Free, std::vector<Free>, std::greater<>> busy;
    const std::string group = dump.group + " " + to_string(dump.generation) + ", " + dump.backend;
    int next = first;
    for (const flight::Operation& op : dump.operations) {
      while (!busy.empty() && busy.top().first <= op.launched_ns) {
        free.push(busy.top().second);
        busy.pop();
      }
      if (free.empty()) {
        name("thread_name", pid, next, next == first ? group : group + " (at the same time)");
        free.push(next++);
      }
      const int row = free.top();
      free.pop();
      const std::int64_t end = end_of(dump, op);
      busy.emplace(end, row);
      json args{{"number", op.number}, {"state", flight::name_of(op.state)}};
      if (op.call.sequence != 0) args["sequence"] = op.call.sequence;
      if (!op.error.empty()) args["error"] = op.error;
      event({{"ph", "X"},
             {"name", to_string(op.call)},
             {"pid", pid},
             {"tid", row},
             {"ts", static_cast<double>(op.launched_ns - begin_ns_) / 1e3},
             {"dur", static_cast<double>(end - op.launched_ns) / 1e3},
             {"args", std::move(args)}});
    }
    return next - 1;
  }

  void name(const char* what, int pid, int tid, const std::string& text) {
    event({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", text}}}});
  }

  void event(const json& one) {
    text_ += (text_.back() == '}' ? ",\n" : "") + one.dump(-1, ' ', false, json::error_handler_t::replace);
  }

  const std::int64_t begin_ns_;
  std::string text_ = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
};

}  // namespace

std::string trace_of(const std::vector<flight::Dump>& dumps) {
  std::map<std::pair<std::string, int>, TracedProcess> by_pid;
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  for (const flight::Dump& dump : dumps) {
    TracedProcess& process = by_pid[{dump.host, dump.pid}];
    if (dump.size > process.size) {
      process.rank = dump.rank;
      process.size = dump.size;
    }
    process.groups.push_back(&dump);
    for (const auto& op : dump.operations) begin_ns = std::min(begin_ns, op.launched_ns);
  }
  Trace trace(begin_ns);
  int pid = 0;
  for (const auto& [place, process] : by_pid) trace.process(++pid, process);
  return std::move(trace).text();
}

}  // namespace troupe::cli
