/// The collectives of a simulated generation: a ProcessGroup whose ranks exchange bytes over hosts that may
/// be cut off. Each rank leaves an operation by itself: one may have the result while another was aborted.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/train/plan.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::sim {

struct Cluster;
struct Trainer;

/// What the ranks of one generation share.
struct Group {
  Group(Cluster& in, const train::GenerationPlan& with);
  /// Blocks until all ranks are there and reach each other. Throws as GroupMaker::form.
  void join(int rank, Trainer& trainer, Duration timeout, const std::function<bool()>& abandoned);
  /// From `host`: ranks there see it at once, others when word reaches them, if it does.
  void abort(int host, const std::string& reason);

  /// What every rank gave to operation `number`; blocks. Throws CollectiveAborted and Timeout.
  const std::vector<wire::Bytes>& exchange(int rank, std::uint64_t number, Duration timeout);
  void give(int rank, std::uint64_t number, const char* what, wire::Bytes bytes);
  void send(int from, int to, wire::ByteView bytes);
  wire::Bytes receive(int rank, int from, Duration timeout);

  Cluster& cluster;
  const train::GenerationPlan plan;
  struct Rank {
    Trainer* trainer = nullptr;
    std::string aborted;                          ///< why; empty: it is not
    std::atomic<std::uint32_t> changes{0};        ///< it is woken when something has
    std::map<int, std::deque<wire::Bytes>> mail;  ///< by sender
    bool received = false;                        ///< a state
  };
  std::deque<Rank> ranks;

 private:
  struct Round {
    std::string what;
    int given = 0;
    std::vector<wire::Bytes> bytes;  ///< by rank
  };
  void wake(int rank);
  bool reaches(int from, int to) const;
  /// Waits until `ready`; throws what ends the wait.
  void await(int rank, Duration timeout, const char* what, const std::function<bool()>& ready);
  std::map<std::uint64_t, Round> rounds_;
};

/// One rank's end.
class SimGroup final : public collectives::ProcessGroup {
 public:
  SimGroup(std::shared_ptr<Group> group, int rank, Duration timeout, SharedMemory region);
  std::string abort_reason() const override { return group_->ranks[rank()].aborted; }

  /// Every rank's bytes, in their order; blocks.
  std::vector<wire::Bytes> exchange(const char* what, wire::Bytes bytes);
  const train::GenerationPlan& plan() const { return group_->plan; }

 private:
  std::shared_ptr<collectives::Work> launch(std::span<const collectives::Op> operations) override;
  void stop(const std::string& reason) override;
  std::shared_ptr<collectives::Work> launch(const collectives::Op& op);

  std::shared_ptr<Group> group_;
  const Duration timeout_;
  const SharedMemory region_;  ///< its abort word: the node aborts it when a member dies
  std::uint64_t operations_ = 0;
};

}  // namespace troupe::sim
