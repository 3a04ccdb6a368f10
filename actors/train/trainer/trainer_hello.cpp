#include "actors/train/trainer/trainer_hello.hpp"

#include <unistd.h>

#include "actors/checkpoint/folder_lock.hpp"
#include "actors/train/floor.hpp"

namespace troupe::train {

TrainerHello hello_of(const GroupMaker& groups, TrainEngine& engine, TrainFloor& floor,
                      const RunSettings& settings) {
  return {::getpid(),
          groups.address(),
          engine.numerics(),
          hash_layout(engine.state().parts),
          groups.has_nccl(),
          floor.who(),
          checkpoint::FolderLock::is_of(*floor.files({}), settings.checkpoint_folder, settings.folder_lock)};
}

}  // namespace troupe::train
