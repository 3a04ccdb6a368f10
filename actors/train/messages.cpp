#include "actors/train/messages.hpp"

namespace troupe::train {

TrainerOrder::TrainerOrder() = default;
TrainerOrder::TrainerOrder(const TrainerOrder&) = default;
TrainerOrder::TrainerOrder(TrainerOrder&&) noexcept = default;
TrainerOrder& TrainerOrder::operator=(const TrainerOrder&) = default;
TrainerOrder& TrainerOrder::operator=(TrainerOrder&&) noexcept = default;
TrainerOrder::~TrainerOrder() = default;

TrainerReport::TrainerReport() = default;
TrainerReport::TrainerReport(const TrainerReport&) = default;
TrainerReport::TrainerReport(TrainerReport&&) noexcept = default;
TrainerReport& TrainerReport::operator=(const TrainerReport&) = default;
TrainerReport& TrainerReport::operator=(TrainerReport&&) noexcept = default;
TrainerReport::~TrainerReport() = default;

}  // namespace troupe::train

namespace troupe::wire {

void Codec<train::TrainerOrder>::encode(Writer& to, const train::TrainerOrder& order) {
  write(to, static_cast<const train::TrainerOrder::Variant&>(order));
}
bool Codec<train::TrainerOrder>::decode(Reader& from, train::TrainerOrder& order) {
  return read(from, static_cast<train::TrainerOrder::Variant&>(order));
}
void Codec<train::TrainerReport>::encode(Writer& to, const train::TrainerReport& report) {
  write(to, static_cast<const train::TrainerReport::Variant&>(report));
}
bool Codec<train::TrainerReport>::decode(Reader& from, train::TrainerReport& report) {
  return read(from, static_cast<train::TrainerReport::Variant&>(report));
}

}  // namespace troupe::wire
