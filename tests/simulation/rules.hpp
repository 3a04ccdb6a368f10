/// Rules that a run breaks on purpose: by simulate's --break, and in the test that each broken one is found.
#pragma once

#include <array>
#include <variant>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

struct BreakableRule {
  const char* name;
  const char* broken;  ///< what happens then
  std::variant<bool train::Mutations::*, bool FloorMutations::*> flag;

  void break_in(Scenario& scenario) const {
    if (const auto* of_training = std::get_if<0>(&flag)) scenario.mutations.** of_training = true;
    if (const auto* of_floor = std::get_if<1>(&flag)) scenario.floor.** of_floor = true;
  }
};

inline constexpr std::array kBreakableRules = std::to_array<BreakableRule>({
    {"commit", "a step commits on the first report", &train::Mutations::commit_on_first_report},
    {"generation", "reports of an old generation count", &train::Mutations::accept_old_generation},
    {"install", "a state is installed before it is whole", &train::Mutations::install_in_place},
    {"follow", "who joins beside the steps counts as having steps that it has not taken",
     &train::Mutations::join_behind},
    {"requests", "a node that joins again does not repeat what has no answer",
     &FloorMutations::forget_requests},
    {"durable", "the head says what is not on its disk yet", &FloorMutations::say_before_durable},
    {"lines", "a line between nodes breaks, and nobody is told", &FloorMutations::forget_peers},
    {"nodes", "a process does not fail its calls when the link to their node broke",
     &FloorMutations::forget_lost_nodes},
    {"credit", "a process never gives back what it has taken up", &FloorMutations::keep_credit},
    {"unsent", "what a process tells its node while the link is full is dropped",
     &FloorMutations::drop_unsent},
    {"room", "what waits for the link to the node stays when there is room again",
     &FloorMutations::forget_room},
    {"monitors", "a monitor is not asked for again after a link broke", &FloorMutations::monitor_once},
    {"leaving", "the head does not hear that a node leaves", &FloorMutations::ignore_leaving},
    {"saves", "what an actor saves is said to be kept, and goes nowhere", &FloorMutations::forget_saves},
    {"spilled", "an object that leaves memory for disk has another byte there",
     &FloorMutations::lose_spilled_byte},
    {"files", "a file stays on the disk when its last object is gone", &FloorMutations::keep_spill_files},
    {"borrowers", "after a link broke an owner does not ask whether who borrows behind it lives",
     &FloorMutations::forget_dead_borrowers},
    {"parts", "what came before a direct connection broke is taken for the object",
     &FloorMutations::take_broken_parts},
    {"lost", "a part of a copy that was lost with its link counts as there",
     &FloorMutations::take_lost_parts},
    {"window", "more parts of a copy are asked for at a time than may be", &FloorMutations::widen_window},
    {"asks", "who could not be reached is not asked for a computed object again", &FloorMutations::ask_once},
    {"leases", "a worker that runs no tasks any more is not ended", &FloorMutations::keep_leases},
    {"retries", "a task that may run once is tried again when its worker is lost",
     &FloorMutations::retry_once},
    {"back", "a task that its worker has begun counts as taken back from it", &FloorMutations::take_back_all},
    // What such a task waits for may need the CPU that it holds: tasks never run.
    {"waits", "a worker does not say that its task waits", &FloorMutations::forget_waits},
    // The head's books differ.
    {"goes-on", "a worker does not say that its task, which had waited, goes on",
     &FloorMutations::wait_for_good},
    // The first one that asks has all CPUs, and tasks for ever: those of others never run.
    {"turns", "a process does not hear that others wait for its workers", &FloorMutations::ignore_turns},
    {"reports", "a sweep does not write down what it decided on a report", &FloorMutations::forget_reports},
    {"restarts", "the head starts an actor once more than its max_restarts lets it",
     &FloorMutations::start_too_often},
});

}  // namespace troupe::sim
