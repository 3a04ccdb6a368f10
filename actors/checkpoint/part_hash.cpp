#include "actors/checkpoint/part_hash.hpp"

#include <xxhash.h>

#include "runtime/core/assert.hpp"

namespace troupe::checkpoint {
namespace {

XXH3_state_t* raw(auto* state) {
  return reinterpret_cast<XXH3_state_t*>(state);
}

}  // namespace

void Xxh3::Free::operator()(State* state) const {
  XXH3_freeState(raw(state));
}

Xxh3::Xxh3() : state_(reinterpret_cast<State*>(XXH3_createState())) {
  TROUPE_ASSERT(state_ != nullptr, "there is memory for the state of a hash");
  reset();
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::reset() {
  XXH3_128bits_reset(raw(state_.get()));
}

void Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(raw(state_.get()), bytes.data(), bytes.size());
}

Digest128 Xxh3::digest() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(raw(state_.get()));
  return {digest.high64, digest.low64};
}

}  // namespace troupe::checkpoint
