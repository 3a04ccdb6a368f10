#include "actors/ddp/buckets.hpp"

#include <map>
#include <utility>

namespace troupe::train {
namespace {

constexpr std::size_t kMemberAlignment_bytes = 64;

struct Open {
  Bucket bucket;
  std::size_t bytes = 0;  ///< without padding, as PyTorch counts
};

}  // namespace

std::vector<Bucket> make_buckets(const std::vector<BucketItem>& items, const BucketOptions& options) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = items.size() - 1 - i;
  return make_buckets(items, order, options);
}

std::vector<Bucket> make_buckets(const std::vector<BucketItem>& items, const std::vector<std::size_t>& order,
                                 const BucketOptions& options) {
  std::vector<Bucket> closed;
  std::map<collectives::DType, Open> open;
  for (const std::size_t i : order) {
    const std::size_t element_bytes = collectives::element_size(items[i].dtype);
    const std::size_t step = kMemberAlignment_bytes / element_bytes;
    Open& into = open[items[i].dtype];
    into.bucket.dtype = items[i].dtype;
    into.bucket.members.push_back({i, into.bucket.count});
    into.bucket.count = (into.bucket.count + items[i].elements + step - 1) / step * step;
    into.bytes += items[i].elements * element_bytes;
    if (into.bytes >= (closed.empty() ? options.first_cap_bytes : options.cap_bytes)) {
      closed.push_back(std::move(into.bucket));
      open.erase(items[i].dtype);
    }
  }
  for (auto& [dtype, left] : open) closed.push_back(std::move(left.bucket));
  return closed;
}

void LaunchOrder::begin(const std::vector<Bucket>& buckets) {
  pending_.clear();
  for (const Bucket& bucket : buckets) pending_.push_back(bucket.members.size());
  next_ = 0;
}

}  // namespace troupe::train
