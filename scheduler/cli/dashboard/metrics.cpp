#include "scheduler/cli/dashboard/metrics.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "runtime/http/metrics.hpp"
#include "scheduler/cli/status.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cli {
namespace {

using http::Labels;
using nlohmann::json;

constexpr std::size_t kMostNodeRows = 500;

/// A page: every series lives as long as it does.
class Page {
 public:
  void gauge(const char* name, const char* help, double value, const Labels& labels = {}) {
    const auto made = metrics_.gauge(name, help, labels);
    made->set(value);
    series_.push_back(made);
  }
  void counter(const char* name, const char* help, std::uint64_t value, const Labels& labels = {}) {
    const auto made = metrics_.counter(name, help, labels);
    made->raise_to(value);
    series_.push_back(made);
  }
  void writes(const char* name, const char* help, const wire::HeadFigures& head) {
    const auto made = metrics_.histogram(name, help, {}, wire::kWriteBounds);
    if (head.write_times.size() == std::size(wire::kWriteBounds) + 1)
      made->add(head.write_times, static_cast<double>(head.write_ns) / 1e9);
    series_.push_back(made);
  }
  /// One series a state: of those that are there, or may be.
  void states(const char* name, const char* help, const std::map<std::string, int>& counts,
              Labels labels = {}) {
    labels.emplace_back("state", "");
    for (const auto& [state, count] : counts) {
      labels.back().second = state;
      gauge(name, help, count, labels);
    }
  }
  std::string text() const { return metrics_.text(); }

 private:
  http::Registry metrics_;
  std::vector<std::shared_ptr<void>> series_;
};

double whole(std::int64_t e4, std::int64_t one) {
  return static_cast<double>(e4) / static_cast<double>(one);
}

void add_head(Page& page, const wire::HeadFigures& head) {
  page.counter("troupe_head_messages_total", "Messages that the head received since it started.",
               head.messages);
  page.counter("troupe_head_message_bytes_total", "Bytes of these messages.", head.message_bytes);
  page.counter("troupe_head_store_changes_total", "Changes that are durable in the head's store.",
               head.changes);
  page.writes("troupe_head_store_write_seconds", "Writes to the head's store, each with its sync to disk.",
              head);
  page.gauge("troupe_head_held_messages", "Messages of the head that wait for its store.",
             static_cast<double>(head.held));
}

void add_nodes(Page& page, const wire::StatusAnswer& status) {
  std::map<std::string, int> states{
      {"alive", 0}, {"silent", 0}, {"expected", 0}, {"draining", 0}, {"leaving", 0}};
  double cpus = 0, free_cpus = 0, gpus = 0, gpus_used = 0;
  std::size_t shown = 0;
  for (const auto& one : status.nodes) {
    if (one.node.gateway) continue;  // a program's own, which holds nothing
    ++states[one.state];
    const double its_cpus = whole(one.node.cpu_e4, cluster::kCpu),
                 its_gpus = static_cast<double>(one.node.gpus.size());
    // Tasks that go on after a wait may hold more than there is.
    const double its_free = std::max(0.0, its_cpus - whole(one.cpu_used_e4, cluster::kCpu)),
                 its_gpus_used = whole(one.gpu_used_e4, cluster::kGpu);
    cpus += its_cpus;
    free_cpus += its_free;
    gpus += its_gpus;
    gpus_used += its_gpus_used;
    if (++shown > kMostNodeRows) continue;
    const Labels labels{{"id", to_string(one.node.id)}, {"node", one.node.name}};
    page.gauge("troupe_node_cpus", "CPUs of a node.", its_cpus, labels);
    page.gauge("troupe_node_free_cpus", "CPUs of a node that nobody holds.", its_free, labels);
    page.gauge("troupe_node_gpus", "GPUs of a node.", its_gpus, labels);
    page.gauge("troupe_node_free_gpus", "GPUs of a node that nobody holds.", its_gpus - its_gpus_used,
               labels);
    for (const auto& amount : one.node.other.amounts) {
      const std::int64_t unit = amount.name == cluster::kMemory ? 1 : cluster::kCpu;
      Labels its = labels;
      its.emplace_back("resource", amount.name);
      page.gauge("troupe_node_resource", "Memory in bytes, or a custom resource, of a node.",
                 whole(amount.amount, unit), its);
      page.gauge("troupe_node_free_resource", "The same that nobody holds.",
                 whole(amount.amount - amount_of(one.other_used, amount.name), unit), its);
    }
    for (const auto& label : one.node.other.labels) {
      Labels its = labels;
      its.emplace_back("key", label.key);
      its.emplace_back("value", label.value);
      page.gauge("troupe_node_label", "1 for each label of a node.", 1, its);
    }
    page.gauge("troupe_node_actors", "Actors that the head placed on a node.", one.actors, labels);
  }
  page.states("troupe_nodes", "Nodes by state.", states);
  page.gauge("troupe_cpus", "CPUs of all nodes.", cpus);
  page.gauge("troupe_free_cpus", "CPUs of all nodes that nobody holds.", free_cpus);
  page.gauge("troupe_gpus", "GPUs of all nodes.", gpus);
  page.gauge("troupe_free_gpus", "GPUs of all nodes that nobody holds.", gpus - gpus_used);
}

void add_work(Page& page, const ClusterView& view) {
  const wire::StatusAnswer& status = view.status;
  std::map<std::string, int> actors{{"starting", 0}, {"alive", 0}, {"ending", 0}, {"restarting", 0}};
  for (const auto& actor : status.actors) ++actors[state_name(actor.record.state)];
  page.states("troupe_actors", "Actors that the head placed, by state.", actors);
  page.gauge("troupe_waiting_spawn_kinds", "Kinds of spawns that no node can hold now.",
             static_cast<double>(status.waiting.size()));
  page.gauge("troupe_placement_groups", "Placement groups, with those that wait.",
             static_cast<double>(status.groups.size()));
  const auto programs =
      std::count_if(status.jobs.begin(), status.jobs.end(), [](const auto& job) { return !job.ended; });
  page.gauge("troupe_programs", "Programs that have joined and run.", static_cast<double>(programs));

  std::map<std::string, int> jobs;
  for (int i = 0; i <= static_cast<int>(JobStatus::kStopped); ++i)
    jobs[lower(to_string(static_cast<JobStatus>(i)))] = 0;
  std::map<std::string, std::map<std::string, int>> queues;
  for (const JobInfo& job : view.jobs) {
    ++jobs[lower(to_string(job.status))];
    if (job.has_ended()) continue;
    auto& queue =
        queues.try_emplace(job.queue, std::map<std::string, int>{{"runs", 0}, {"waits", 0}}).first->second;
    ++queue[job.status == JobStatus::kQueued ? "waits" : "runs"];
  }
  page.states("troupe_jobs", "Submitted jobs that the head keeps, by state.", jobs);
  for (const auto& [queue, states] : queues)
    page.states("troupe_queue_jobs", "Submitted jobs that have not ended, by queue.", states,
                {{"queue", queue}});
}

void add_number(Page& page, const char* name, const char* help, const json& value, const Labels& labels) {
  if (value.is_number()) page.gauge(name, help, value.get<double>(), labels);
}

void add_training(Page& page, const json& run) {
  const Labels labels{{"run", run.value("name", "?")}};
  const auto field = [&](const char* key) { return run.value(key, json()); };
  add_number(page, "troupe_training_step", "The last step that a training run committed.", field("steps"),
             labels);
  add_number(page, "troupe_training_loss", "The loss of that step.", field("loss"), labels);
  add_number(page, "troupe_training_samples_per_second", "Samples that the run trains on.",
             field("samples_per_s"), labels);
  add_number(page, "troupe_training_trainers", "Trainers that are alive.", field("trainers"), labels);
  page.counter("troupe_training_deaths_survived_total", "Trainers that died, and the run went on.",
               run.value("deaths", std::uint64_t{0}), labels);
}

void add_sweep(Page& page, const json& sweep) {
  const Labels labels{{"sweep", sweep.value("name", "?")}};
  if (!sweep.contains("states")) return;  // its file does not read
  std::map<std::string, int> states{{"running", 0}, {"finished", 0}, {"stopped", 0}, {"failed", 0}};
  for (const auto& [state, count] : sweep["states"].items()) states[state] = count.get<int>();
  page.states("troupe_tune_trials", "Trials of a sweep that have reported, by state.", states, labels);
  page.gauge("troupe_tune_wanted_trials", "Trials of a sweep, in all.", sweep.value("trials", 0), labels);
  page.gauge("troupe_tune_running", "1 while a program works on the sweep.",
             sweep.value("state", "") == "running", labels);
  Labels with_metric = labels;
  with_metric.emplace_back("metric", sweep.value("metric", ""));
  const json best =
      sweep.contains("repeats") ? sweep.value("best_config", json()) : sweep.value("best", json());
  if (best.is_object())
    add_number(page, "troupe_tune_best", "The best that a trial of the sweep came to, or the best mean.",
               best.value(sweep.contains("repeats") ? "mean" : "value", json()), with_metric);
}

}  // namespace

std::string merged(const ServingPages& serving) {
  constexpr std::string_view kFamilies = "troupe_serve_";
  struct Family {
    std::string head, series;
  };
  std::map<std::string, Family, std::less<>> families;
  for (const auto& [process, port, page] : serving.pages) {
    const std::string where =
        "port=\"" + std::to_string(port) + "\",process=\"" + std::to_string(process) + "\"";
    std::string head;  // of the family whose lines come
    Family* family = nullptr;
    std::string_view rest = page;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      const bool is_help = line.starts_with("# HELP "), is_type = line.starts_with("# TYPE ");
      if (is_help || is_type) {
        const std::string_view of = line.substr(7);
        const std::string name(of.substr(0, of.find(' ')));
        family = name.starts_with(kFamilies) ? &families[name] : nullptr;
        if (is_help) head.clear();
        head.append(line).append("\n");
        if (is_type && family != nullptr && family->head.empty()) family->head = head;
        continue;
      }
      const std::size_t name_ends = line.find_first_of("{ ");
      if (family == nullptr || !line.starts_with(kFamilies) || name_ends == std::string_view::npos) continue;
      const bool has_labels = line[name_ends] == '{';
      family->series += std::string(line.substr(0, name_ends)) + "{" + where + (has_labels ? "," : "}") +
                        std::string(line.substr(name_ends + (has_labels ? 1 : 0))) + "\n";
    }
  }
  std::string text;
  for (const auto& [name, family] : families) {
    if (!family.series.empty()) text += family.head + family.series;
  }
  return text;
}

std::string metrics_of(const ClusterView& view, const ServingPages& serving) {
  Page page;
  page.states("troupe_serving_programs",
              "Programs that serve on the dashboard's machine, by whether they answer it.",
              {{"answering", serving.answered}, {"silent", serving.silent}});
  const bool is_up = view.error.empty();
  page.gauge("troupe_head_up", "1 where the head answers.", is_up);
  if (is_up) {
    add_head(page, view.status.head);
    add_nodes(page, view.status);
    add_work(page, view);
  }
  for (const std::string& line : view.training) {
    if (const json run = json::parse(line, nullptr, false); run.is_object()) add_training(page, run);
  }
  for (const std::string& line : view.sweeps) {
    if (const json sweep = json::parse(line, nullptr, false); sweep.is_object()) add_sweep(page, sweep);
  }
  return page.text() + merged(serving);
}

}  // namespace troupe::cli
