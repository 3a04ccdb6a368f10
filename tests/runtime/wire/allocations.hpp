/// What the test program asks of the allocator, to hold decoders to their promise. One thread.
#pragma once

#include <cstddef>

/// Bytes asked for since it was last set to 0.
extern std::size_t bytes_asked_for;
