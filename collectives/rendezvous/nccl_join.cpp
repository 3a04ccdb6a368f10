#include <algorithm>
#include <numeric>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/store_board.hpp"

namespace troupe::collectives {
namespace {

class NcclJoin {
 public:
  NcclJoin(const BackendContext& context, const nccl::Api& api) : c_(context), api_(api) {}

  std::shared_ptr<ProcessGroup> run() {
    const auto same = [&](const PeerInfo& peer) {
      return peer.host == c_.peers[static_cast<std::size_t>(c_.rank)].host;
    };
    const auto place = std::count_if(c_.peers.begin(), c_.peers.begin() + c_.rank, same);
    const bool one_machine = std::all_of(c_.peers.begin(), c_.peers.end(), same);
    NcclGroupOptions options{.rank = c_.rank,
                             .size = c_.size,
                             .device = device(c_.local_rank >= 0 ? c_.local_rank : static_cast<int>(place)),
                             .hosts = numbered_hosts(c_.peers),
                             .name = c_.group,
                             .generation = c_.generation,
                             .timeout = c_.options.operation_timeout,
                             .share_gpu = c_.options.share_gpu};
    options.exchange = [this](const std::string& mine, const NcclGroupOptions::Answer& answer) {
      const auto key = [](int rank) { return "says/" + std::to_string(rank); };
      if (c_.rank != 0) {
        c_.store.set(key(c_.rank), mine);
        return c_.store.get("invitation", c_.left());
      }
      std::vector<std::string> said{mine};
      for (int r = 1; r < c_.size; ++r) said.push_back(c_.store.get(key(r), c_.left()));
      std::string answered = answer(said);
      c_.store.set("invitation", answered);
      return answered;
    };
    options.board = one_machine ? make_word_board(region(), c_.generation)
                                : std::make_shared<StoreBoard>(c_.lasting_store);
    return make_nccl_group(std::move(options), api_);
  }

 private:
  /// CUDA's index of this rank's GPU, if nobody chose: its place among the ranks of its machine, or the only
  /// one that the launcher lets it see.
  int device(int place) const {
    if (c_.options.device >= 0) return c_.options.device;
    int count = 0;
    const int code = api_.cuda.cudaGetDeviceCount(&count);
    if (code == nccl::kCudaSuccess && count > 0) return place % count;
    throw_error({ErrorCode::kUnavailable, "the nccl backend is not there",
                 "rank " + c_.name(c_.rank) + " has no GPU: " +
                     (code == nccl::kCudaSuccess ? "CUDA counts none" : api_.cuda.cudaGetErrorString(code)),
                 "use the backend native, or run it where CUDA finds a GPU"});
  }

  /// Memory of all ranks, for the abort word.
  std::shared_ptr<SharedMemory> region() const {
    if (c_.size == 1) return nullptr;
    std::vector<int> ranks(static_cast<std::size_t>(c_.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return share_memory(c_, ranks, "troupe-board", kAbortWordBytes, true);
  }

  const BackendContext& c_;
  const nccl::Api& api_;
};

}  // namespace

std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context, const nccl::Api& api) {
  return NcclJoin(context, api).run();
}

std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context) {
  return join_nccl_group(context, nccl::real_api());
}

}  // namespace troupe::collectives
