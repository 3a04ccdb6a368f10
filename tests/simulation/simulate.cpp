/// simulate [--seed N] [--count N] [--verbose] [--break RULE]: replays one seed, or runs many.
/// A seed that breaks something tells its story: the last events, with when, who and what.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulation/totals.hpp"

namespace {

using troupe::sim::Scenario;

bool break_rule(const char* rule, Scenario& scenario) {
  const auto is = [rule](const char* name) { return std::strcmp(rule, name) == 0; };
  bool* const flag = is("commit")       ? &scenario.mutations.commit_on_first_report
                     : is("generation") ? &scenario.mutations.accept_old_generation
                     : is("install")    ? &scenario.mutations.install_in_place
                     : is("follow")     ? &scenario.mutations.join_behind
                     : is("requests")   ? &scenario.floor.forget_requests
                     : is("durable")    ? &scenario.floor.say_before_durable
                     : is("lines")      ? &scenario.floor.forget_peers
                     : is("nodes")      ? &scenario.floor.forget_lost_nodes
                     : is("credit")     ? &scenario.floor.keep_credit
                     : is("unsent")     ? &scenario.floor.drop_unsent
                     : is("room")       ? &scenario.floor.forget_room
                     : is("monitors")   ? &scenario.floor.monitor_once
                     : is("leaving")    ? &scenario.floor.ignore_leaving
                     : is("saves")      ? &scenario.floor.forget_saves
                     : is("spilled")    ? &scenario.floor.lose_spilled_byte
                     : is("files")      ? &scenario.floor.keep_spill_files
                     : is("borrowers")  ? &scenario.floor.forget_dead_borrowers
                     : is("parts")      ? &scenario.floor.take_broken_parts
                     : is("lost")       ? &scenario.floor.take_lost_parts
                     : is("window")     ? &scenario.floor.widen_window
                     : is("asks")       ? &scenario.floor.ask_once
                     : is("leases")     ? &scenario.floor.keep_leases
                     : is("retries")    ? &scenario.floor.retry_once
                     : is("back")       ? &scenario.floor.take_back_all
                     : is("waits")      ? &scenario.floor.forget_waits
                     : is("goes-on")    ? &scenario.floor.wait_for_good
                     : is("turns")      ? &scenario.floor.ignore_turns
                     : is("reports")    ? &scenario.floor.forget_reports
                     : is("restarts")   ? &scenario.floor.start_too_often
                                        : nullptr;
  if (flag != nullptr) *flag = true;
  return flag != nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool verbose = false;
  bool sweeps = false;
  Scenario broken_rules;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
    } else if (std::strcmp(argv[i], "--sweeps") == 0) {
      sweeps = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--break") == 0 && i + 1 < argc &&
               break_rule(argv[i + 1], broken_rules)) {
      ++i;
    } else {
      const bool help = std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0;
      std::fprintf(
          help ? stdout : stderr,
          "usage: simulate [--seed N] [--count N] [--verbose] [--sweeps] [--break RULE]\n"
          "  --verbose  tells what happens while it does; a seed that breaks something tells its "
          "last events anyway\n"
          "  --sweeps   the program sweeps, instead of training one job\n"
          "  --break    breaks a rule on purpose:\n"
          "    commit      a step commits on the first report\n"
          "    generation  reports of an old generation count\n"
          "    install     a state is installed before it is whole\n"
          "    follow      who joins beside the steps counts as having steps that it has not taken\n"
          "    requests    a node that joins again does not repeat what has no answer\n"
          "    durable     the head says what is not on its disk yet\n"
          "    lines       a line between nodes breaks, and nobody is told\n"
          "    nodes       a process does not fail its calls when the link to their node broke\n"
          "    credit      a process never gives back what it has taken up\n"
          "    unsent      what a process tells its node while the link is full is dropped\n"
          "    room        what waits for the link to the node stays when there is room again\n"
          "    monitors    a monitor is not asked for again after a link broke\n"
          "    leaving     the head does not hear that a node leaves\n"
          "    saves       what an actor saves is said to be kept, and goes nowhere\n"
          "    spilled     an object that leaves memory for disk has another byte there\n"
          "    files       a file stays on the disk when its last object is gone\n"
          "    borrowers   after a link broke an owner does not ask whether who borrows behind it lives\n"
          "    parts       what came before a direct connection broke is taken for the object\n"
          "    lost        a part of a copy that was lost with its link counts as there\n"
          "    window      more parts of a copy are asked for at a time than may be\n"
          "    asks        who could not be reached is not asked for a computed object again\n"
          "    leases      a worker that runs no tasks any more is not ended\n"
          "    retries     a task that may run once is tried again when its worker is lost\n"
          "    back        a task that its worker has begun counts as taken back from it\n"
          "    waits       a worker does not say that its task waits\n"
          "    goes-on     a worker does not say that its task, which had waited, goes on\n"
          "    turns       a process does not hear that others wait for its workers\n"
          "    reports     a sweep does not write down what it decided on a report\n"
          "    restarts    the head starts an actor once more than its max_restarts lets it\n");
      return help ? 0 : 2;
    }
  }
  int broken = 0;
  troupe::sim::Totals all;
  for (std::uint64_t s = seed; s < seed + count; ++s) {
    troupe::sim::Scenario scenario =
        sweeps ? troupe::sim::draw_sweep_scenario(s) : troupe::sim::draw_scenario(s);
    scenario.mutations = broken_rules.mutations;
    scenario.floor = broken_rules.floor;
    troupe::sim::Cluster cluster(std::move(scenario), verbose);
    cluster.run();
    const bool bad = !cluster.world.violated().empty();
    broken += bad ? 1 : 0;
    all.add(cluster);
    if (bad) {
      std::printf("\nThe last events of seed %llu:\n", static_cast<unsigned long long>(s));
      for (const std::string& line : cluster.world.story()) std::printf("%s\n", line.c_str());
    }
    if (count == 1 || bad) {
      std::printf("seed %llu: %s; %llu events, %.1f s, %d commits, %d generations, trace %s\n",
                  static_cast<unsigned long long>(s), bad ? cluster.world.violated().c_str() : "good",
                  static_cast<unsigned long long>(cluster.world.events()),
                  troupe::to_seconds(cluster.world.now()), cluster.commits, cluster.generations,
                  troupe::to_hex(cluster.world.trace_hash()).c_str());
    }
  }
  std::printf(
      "%ld commits, %ld generations, %ld states received, %ld steps followed, %ld rewinds, %ld heads, %ld "
      "drivers\n",
      all.commits, all.generations, all.transfers, all.followed, all.rewinds, all.heads, all.drivers);
  std::printf("%ld calls answered, %ld failed, %ld deaths told, %ld actors started again\n", all.answers,
              all.calls_failed, all.deaths_told, all.restarted);
  std::printf("%ld lives went on from a saved state\n", all.lives_with_state);
  std::printf("%ld placement groups got their room, %ld were removed; %ld detached actors were taken over\n",
              all.groups_ready, all.groups_removed, all.taken_over);
  std::printf(
      "%ld objects put, %ld values read, %ld pieces written to disk, %ld refused; %ld found no room, %ld "
      "were "
      "lost\n",
      all.objects, all.values_read, all.written, all.writes_refused, all.no_room, all.lost);
  std::printf(
      "%ld copies between nodes, %ld failed, %ld were hit, %ld windows were full; %ld came directly, %ld "
      "connections broke\n",
      all.copies, all.copies_failed, all.copies_hit, all.full_windows, all.direct, all.direct_broken);
  std::printf(
      "%ld objects computed, %ld tasks answered, %ld begun again, %ld cancelled; %ld crashes; %ld times one "
      "left its CPUs to others, %ld workers were given back for others\n",
      all.computed, all.tasks_answered, all.tasks_again, all.tasks_cancelled, all.crashes, all.tasks_waited,
      all.turns);
  std::printf("%d of %llu seeds broke an invariant\n", broken, static_cast<unsigned long long>(count));
  return broken == 0 ? 0 : 1;
}
