// One target for libFuzzer: TROUPE_FUZZ_TARGET is its name.
#include <cstdint>

#include "tests/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)troupe::fuzz::TROUPE_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
