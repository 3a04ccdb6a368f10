#include "actors/train/buckets.hpp"

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
  std::vector<Bucket> closed;
  std::map<collectives::DType, Open> open;
  for (std::size_t i = items.size(); i-- > 0;) {
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

}  // namespace troupe::train
