/// What the head takes of one actor into its memory.
#pragma once

#include <cstddef>

namespace troupe::cluster {

/// The most that an actor is constructed with, together with what it has saved for its next life.
inline constexpr std::size_t kMaxPayloadBytes = std::size_t{4} << 20;

}  // namespace troupe::cluster
