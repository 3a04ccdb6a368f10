#include "collectives/native/rank_view.hpp"

#include "collectives/group_facts.hpp"

namespace troupe::collectives {
namespace {

std::vector<int> places_of(const std::vector<int>& locals, std::size_t size) {
  std::vector<int> places(size, -1);
  for (std::size_t i = 0; i < locals.size(); ++i) places[RankView::index_of(locals[i])] = static_cast<int>(i);
  return places;
}

}  // namespace

RankView::RankView(int its_rank, std::string its_name, std::vector<int> hosts, Region its_region)
    : rank(its_rank),
      size(static_cast<int>(hosts.size())),
      name(std::move(its_name)),
      layout(std::move(hosts)),
      host(layout.host_of(rank)),
      locals(layout.members(host)),
      region(std::move(its_region)),
      local_index(places_of(locals, index_of(size))),
      mine(cell(rank)) {}

void RankView::throw_aborted() const {
  throw_error({ErrorCode::kAborted, group_called(name) + " was aborted",
               region_abort_reason(region.abort_word()).text, kAfterAbort});
}

void RankView::fail(AbortKind kind, const std::string& reason) const {
  abort_region(region.abort_word(), reason, kind);
  throw_aborted();
}

}  // namespace troupe::collectives
