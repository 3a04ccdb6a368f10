#include "runtime/objects/offer_table.hpp"

#include <utility>

namespace troupe::objects {

void OfferTable::add(std::uint64_t number, Offer offer) {
  offers_.insert_or_assign(number, std::move(offer));
}

void OfferTable::add_answer(std::uint64_t number, Offer offer) {
  add(number, std::move(offer));
  answers_.insert(number);
}

HandlePtr OfferTable::take(std::uint64_t number, ProcessAddress by) {
  const auto at = offers_.find(number);
  if (at == offers_.end() || at->second.to != by) return nullptr;
  HandlePtr object = std::move(at->second.object);
  offers_.erase(at);
  return object;
}

std::vector<HandlePtr> OfferTable::withdraw(const std::function<bool(ProcessAddress)>& is_down) {
  std::vector<HandlePtr> gone;
  for (auto at = offers_.begin(); at != offers_.end();) {
    if (!is_down(at->second.to)) {
      ++at;
      continue;
    }
    gone.push_back(std::move(at->second.object));
    at = offers_.erase(at);
  }
  return gone;
}

std::vector<HandlePtr> OfferTable::clear() {
  return withdraw([](ProcessAddress) { return true; });
}

HandlePtr OfferTable::copy_for(ProcessAddress to, const ObjectName& of) const {
  for (const auto& [number, offer] : offers_) {
    if (offer.copy_of == of && offer.to == to) return offer.object;
  }
  return nullptr;
}

}  // namespace troupe::objects
