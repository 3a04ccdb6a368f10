/// Rules broken on purpose, so that the simulator's own test can show that it finds them broken. All off
/// everywhere else.
#pragma once

namespace troupe::train {

struct Mutations {
  bool commit_on_first_report = false;  ///< a step commits when one member has applied it
  bool accept_old_generation = false;   ///< a report of an old generation counts
  bool install_in_place = false;        ///< a receiver counts as having the state before it is whole
  bool join_behind = false;             ///< a follower counts as having steps that it has not taken
};

}  // namespace troupe::train
