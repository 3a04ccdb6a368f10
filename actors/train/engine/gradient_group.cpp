#include "actors/train/engine/gradient_group.hpp"

#include <algorithm>
#include <cstdint>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using collectives::ProcessGroup;

/// What is told to one group is told to the other.
class SharedAbort final : public collectives::AbortBoard {
 public:
  explicit SharedAbort(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  void post(AbortKind, const std::string& reason) override { group_->abort(reason); }
  std::optional<AbortReason> read() override {
    std::string reason = group_->abort_reason();
    if (reason.empty()) return std::nullopt;
    return AbortReason{AbortKind::kRequested, std::move(reason)};
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

/// What every rank says, by rank, on every rank.
std::vector<std::string> said_by_all(ProcessGroup& group, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::size_t> sizes(ranks);
  group.all_gather(std::vector<std::size_t>{mine.size()}, sizes)->wait();
  std::size_t all = 0;
  for (const std::size_t size : sizes) all += size;
  std::vector<char> own(mine.begin(), mine.end()), text(all);
  group.all_gather(own, text, sizes)->wait();
  std::vector<std::string> said;
  auto at = text.begin();
  for (const std::size_t size : sizes) {
    said.emplace_back(at, at + static_cast<std::ptrdiff_t>(size));
    at += static_cast<std::ptrdiff_t>(size);
  }
  return said;
}

std::string said_by_first(ProcessGroup& group, const std::string& text) {
  return said_by_all(group, group.rank() == 0 ? text : "").front();
}

}  // namespace

std::string why_not_nccl(const GradientGroupOptions& options) {
  if (options.trainer_gpus <= 0) return "trainers compute on the CPU";
  if (options.trainer_gpus < 1) return "trainers share a GPU, which NCCL refuses";
  const bool several = std::adjacent_find(options.nodes.begin(), options.nodes.end(),
                                          std::not_equal_to<>()) != options.nodes.end();
  if (options.encrypt && several) return "they are to be encrypted between nodes, which NCCL does not do";
  const auto& have = options.have_nccl;
  const auto lacks = std::find(have.begin(), have.end(), false);
  if (lacks != have.end())
    return "the trainer of rank " + std::to_string(lacks - have.begin()) + " has no NCCL";
  return "";
}

std::shared_ptr<ProcessGroup> make_gradient_group(std::shared_ptr<ProcessGroup> group,
                                                  const GradientGroupOptions& options,
                                                  const GradientsBefore& before,
                                                  const collectives::nccl::Api& api) {
  collectives::NcclGroupOptions nccl{.rank = group->rank(),
                                     .size = group->size(),
                                     .device = options.device,
                                     .leaves = group->facts().leaves,
                                     .hosts = options.nodes,
                                     .name = "gradients",
                                     .generation = group->generation(),
                                     .timeout = options.timeout};
  nccl.exchange = [group](const std::string& mine, const collectives::NcclGroupOptions::Answer& answer) {
    const auto said = said_by_all(*group, mine);
    if (group->rank() != 0) return said_by_first(*group, "");
    std::string answered;
    try {
      answered = answer(said);
    } catch (const std::exception& error) {
      group->abort(std::string("rank 0 cannot make the gradients' group: ") + error.what());
      throw;
    }
    return said_by_first(*group, answered);
  };
  nccl.board = std::make_shared<SharedAbort>(group);
  nccl.messages = false;
  try {
    if (before.group) return collectives::succeed_nccl_group(*before.group, before.gone, std::move(nccl));
    return collectives::make_nccl_group(std::move(nccl), api);
  } catch (const std::exception& error) {
    group->abort("rank " + std::to_string(group->rank()) +
                 " cannot make the gradients' group: " + error.what());
    throw;
  }
}

std::vector<int> ranks_gone(const std::vector<ActorId>& before, const std::vector<ActorId>& now) {
  std::vector<int> gone;
  std::size_t stayed = 0;
  for (std::size_t r = 0; r < before.size(); ++r) {
    if (stayed < now.size() && before[r] == now[stayed]) {
      ++stayed;
    } else {
      gone.push_back(static_cast<int>(r));
    }
  }
  return stayed == now.size() ? gone : std::vector<int>();
}

}  // namespace troupe::train
