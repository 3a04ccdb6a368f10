// troupe queue: queues of submitted jobs, what they may hold and what they do.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "runtime/core/escape.hpp"
#include "scheduler/cli/commands.hpp"
#include "scheduler/cli/job.hpp"
#include "scheduler/cli/resource_words.hpp"
#include "scheduler/cluster/queue_table.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;

constexpr const char* kQueueFooter =
    "A job is in one queue (troupe job submit --queue NAME; default). Jobs of a queue hold no more together "
    "than\n"
    "its quota: their programs, and the actors that these start. Of queues whose jobs wait, the one that "
    "holds "
    "the\n"
    "least part of the cluster for its weight goes first (dominant-resource fairness).\n"
    "  troupe queue set research --cpus 32 --gpus 4 --memory 64GiB --weight 2\n"
    "  troupe queue list\n";

struct QueueWords {
  JobClientOptions where;
  JobQueue queue;
  double cpus = 0;
  double gpus = 0;
  ResourceWords other;
  std::string output = "table";
};

std::string held(double used, const std::optional<double>& quota) {
  char text[64];
  if (quota) {
    std::snprintf(text, sizeof text, "%g of %g", used, *quota);
  } else {
    std::snprintf(text, sizeof text, "%g", used);
  }
  return text;
}

/// "  memory 1 GiB of 2 GiB, tpu 1 of 4": what is held, or has a quota.
std::string held_of_others(const JobQueue& queue) {
  std::string text;
  if (queue.memory || queue.memory_used != 0) {
    text = "  memory " + cluster::format_bytes(queue.memory_used);
    if (queue.memory) text += " of " + cluster::format_bytes(*queue.memory);
  }
  auto all = queue.resources_used;
  all.insert(queue.resources.begin(), queue.resources.end());
  for (const auto& [name, amount] : all) {
    const auto used = queue.resources_used.find(name);
    const auto quota = queue.resources.find(name);
    text += (text.empty() ? "  " : ", ") + name + " " +
            held(used == queue.resources_used.end() ? 0 : used->second,
                 quota == queue.resources.end() ? std::nullopt : std::optional(quota->second));
  }
  return text;
}

int list(const QueueWords& words) {
  const auto queues = JobClient(words.where).queues();
  if (words.output == "json") {
    json all = json::array();
    for (const JobQueue& queue : queues) all.push_back(as_json(queue));
    std::printf("%s\n", all.dump(2).c_str());
    return 0;
  }
  std::printf("%-20s %8s %-16s %-16s %7s %6s %6s\n", "queue", "weight", "CPUs", "GPUs", "share", "waits",
              "runs");
  for (const JobQueue& queue : queues) {
    std::printf("%-20s %8g %-16s %-16s %6.1f%% %6d %6d%s\n", escape_name(queue.name).c_str(), queue.weight,
                held(queue.cpus_used, queue.cpus).c_str(), held(queue.gpus_used, queue.gpus).c_str(),
                queue.share * 100, queue.waits, queue.runs, held_of_others(queue).c_str());
  }
  return 0;
}

}  // namespace

int queue(int argc, char** argv) {
  QueueWords words;
  CLI::App app("Shows and sets queues of submitted jobs.", "troupe queue");
  app.footer(kQueueFooter);
  app.require_subcommand(1);
  auto* set = app.add_subcommand("set", "Make a queue, or change its quota and weight");
  set->footer("  troupe queue set research --cpus 32 --gpus 4 --memory 64GiB --resource tpu=2 --weight 2\n");
  set->add_option("name", words.queue.name, "Its name")->required();
  auto* cpus = set->add_option("--cpus", words.cpus, "CPUs that its jobs may hold together [no limit]")
                   ->check(number_of("CPUs", 100'000));
  auto* gpus = set->add_option("--gpus", words.gpus, "GPUs that they may hold together [no limit]")
                   ->check(number_of("GPUs", 100'000));
  add_resource_options(*set, words.other,
                       {"Memory that they may hold together, as 64GiB [no limit]",
                        "NAME=AMOUNT of a custom resource that they may hold together, as often as need be"});
  set->add_option("--weight", words.queue.weight,
                  "Its share, above 0: one of weight 2 gets twice that of one of 1")
      ->capture_default_str()
      ->check(number_above_0("weight", 1'000'000));
  auto* shown = app.add_subcommand("list", "All of them: what they may hold, and what they do");
  add_output_option(*shown, words.output);
  auto* remove = app.add_subcommand("remove", "Remove a queue of which no job waits or runs");
  shown->footer("  troupe queue list -o json\n");
  remove->footer("default loses its quota and weight, and stays.\n  troupe queue remove research\n");
  remove->add_option("name", words.queue.name, "As troupe queue list shows it")->required();
  for (auto* command : {set, shown, remove}) {
    add_head_options(*command, words.where.folder, words.where.address);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say_usage(app, error);
  }
  if (cpus->count() > 0) words.queue.cpus = words.cpus;
  if (gpus->count() > 0) words.queue.gpus = words.gpus;
  if (!words.other.memory.empty()) words.queue.memory = words.other.bytes_or(0);
  words.queue.resources = words.other.amounts();
  if (shown->parsed()) return list(words);
  JobClient jobs(words.where);
  if (set->parsed()) {
    try {
      jobs.set_queue(words.queue);
    } catch (const BadInput& wrong) {
      std::fprintf(stderr, "troupe: %s\n", escape_text(wrong.what()).c_str());
      return 2;
    }
    return 0;
  }
  jobs.remove_queue(words.queue.name);
  if (words.queue.name == cluster::kDefaultQueue)
    std::printf("queue default stays, without a quota and with weight 1\n");
  return 0;
}

}  // namespace troupe::cli
