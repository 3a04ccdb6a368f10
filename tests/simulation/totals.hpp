/// What many seeds came to.
#pragma once

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

struct Totals {
  long commits = 0, generations = 0, states_taken = 0, transfers = 0, followed = 0, rewinds = 0;
  long heads = 0, drivers = 0;
  long answers = 0, calls_failed = 0, deaths_told = 0, restarted = 0, groups_ready = 0, groups_removed = 0,
       taken_over = 0, lives_with_state = 0;
  long objects = 0, values_read = 0, written = 0, writes_refused = 0, no_room = 0, lost = 0;
  long copies = 0, copies_failed = 0, copies_hit = 0, full_windows = 0, direct = 0, direct_broken = 0;
  long computed = 0, tasks_answered = 0, tasks_again = 0, tasks_cancelled = 0, crashes = 0, tasks_waited = 0,
       turns = 0;
  long reports = 0, failures = 0, clones = 0;  ///< of sweeps

  /// Of a run that is over.
  void add(const Cluster& of) {
    commits += of.commits;
    generations += of.generations;
    states_taken += of.states_taken;
    transfers += of.transfers;
    followed += of.followed;
    rewinds += of.rewinds;
    heads += of.head_starts;
    drivers += of.driver_starts;
    answers += of.load.answers;
    calls_failed += of.load.errors;
    deaths_told += of.load.deaths_told;
    restarted += of.load.restarted;
    groups_ready += of.load.groups_ready;
    groups_removed += of.load.groups_removed;
    taken_over += of.load.taken_over;
    lives_with_state += of.load.saved.begun_with_state;
    objects += of.values.put;
    values_read += of.values.values_read;
    written += of.values.written;
    writes_refused += of.values.writes_refused;
    no_room += of.values.no_room;
    lost += of.values.lost;
    copies += of.copies.made;
    copies_failed += of.copies.failed;
    copies_hit += of.copies.hit;
    full_windows += of.copies.full_windows;
    direct += of.copies.direct;
    direct_broken += of.copies.direct_broken;
    computed += of.values.computed;
    tasks_answered += of.submissions.answers;
    tasks_again += of.submissions.begun_again;
    tasks_cancelled += of.submissions.cancels;
    crashes += of.submissions.crashes;
    tasks_waited += of.submissions.waits;
    turns += of.submissions.turns;
    if (!of.sweep) return;
    reports += of.sweep->reports;
    failures += of.sweep->failures;
    clones += of.sweep->clones;
  }
};

}  // namespace troupe::sim
