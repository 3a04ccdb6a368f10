/// Faults on purpose. Trainers and loaders are on any host: each raises the signal in its own process.
#include <signal.h>
#include <sys/wait.h>

#include "actors/train/driver/train_driver.hpp"

namespace troupe::train {
namespace {

/// Whether a process of that id is still the embedded cluster's: another program may have got the id since.
bool is_our_child(int pid) {
  siginfo_t state{};
  return pid > 0 && ::waitid(P_PID, static_cast<id_t>(pid), &state, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

void TrainDriver::check_chaos(std::int64_t last) const {
  for (const ChaosStep& chaos : options_.chaos) {
    if (chaos.step <= last && chaos.rank < options_.trainers) continue;
    throw BadConfig("cannot cause the fault at step " + std::to_string(chaos.step),
                    "the job has " + std::to_string(last) + " steps and " +
                        std::to_string(options_.trainers) + " trainers",
                    "give a step and a rank that it has");
  }
}

void TrainDriver::cause_chaos(std::int64_t committed) {
  std::erase_if(options_.chaos,
                [&](const ChaosStep& chaos) { return chaos.step <= committed && cause(chaos); });
}

/// False: there is nobody to hit now. It is tried again at the next step.
bool TrainDriver::cause(const ChaosStep& chaos) {
  using What = ChaosStep::What;
  switch (chaos.what) {
    case What::kKillTrainer:
      return hit_trainer(chaos.rank, SIGKILL);
    case What::kStopTrainer:
      return hit_trainer(chaos.rank, SIGSTOP);
    case What::kKillLoader:
      return hit_loader();
    case What::kKillNode:
      return !options_.embedded.node_pids.empty() && hit_process(options_.embedded.node_pids.back());
    case What::kKillHead:
      return hit_process(options_.embedded.head_pid);
  }
  return false;
}

bool TrainDriver::hit_trainer(int rank, int signal) {
  const TrainerSeat* hit = nullptr;
  for (const auto& [id, seat] : trainers_) {
    const bool match = rank < 0 ? seat.rank > (hit == nullptr ? -2 : hit->rank) : seat.rank == rank;
    if (match) hit = &seat;
  }
  if (hit == nullptr) return false;
  fault_at_ = clock_.now();
  hit->handle.tell<&Trainer::raise_signal>(signal);
  return true;
}

bool TrainDriver::hit_loader() {
  const LoaderSeat* newest = nullptr;
  for (const auto& [id, seat] : loaders_) {
    if (newest == nullptr || seat.number > newest->number) newest = &seat;
  }
  if (newest == nullptr) return false;
  fault_at_ = clock_.now();
  newest->handle.tell<&Loader::raise_signal>(SIGKILL);
  return true;
}

bool TrainDriver::hit_process(int pid) {
  if (!is_our_child(pid)) return false;
  fault_at_ = clock_.now();
  ::kill(pid, SIGKILL);
  return true;
}

}  // namespace troupe::train
