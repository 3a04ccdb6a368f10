#pragma once

#include <string>
#include <vector>

#include "actors/checkpoint/part_hash.hpp"
#include "actors/train/settings.hpp"

namespace troupe::train {

class GroupMaker;
class TrainEngine;
class TrainFloor;

/// What a new trainer says of itself.
struct TrainerHello {
  int pid = 0;
  std::string data_address;
  std::string numerics;  ///< fingerprint: an exact job takes no trainer that computes otherwise
  std::vector<checkpoint::PartHash>
      layout;              ///< of its state as model() and optimizer() made it: the same in all
  bool has_nccl = false;   ///< GroupMaker::has_nccl
  std::string who;         ///< "pid 77 on b"
  bool has_folder = true;  ///< it sees the checkpoint folder that the run has locked
};

/// REQUIRES: no step was taken.
TrainerHello hello_of(const GroupMaker& groups, TrainEngine& engine, TrainFloor& floor,
                      const RunSettings& settings);

}  // namespace troupe::train
