#include "actors/ddp/kept_for_good.hpp"

#include <mutex>
#include <vector>

namespace troupe::train {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::shared_ptr<const void>> all;  ///< guarded by mutex
};
Kept& kept() {
  static auto* const one = new Kept;  // never ends
  return *one;
}

}  // namespace

void keep_for_good(std::shared_ptr<const void> what) {
  Kept& keeping = kept();
  const std::lock_guard lock(keeping.mutex);
  keeping.all.push_back(std::move(what));
}

}  // namespace troupe::train
