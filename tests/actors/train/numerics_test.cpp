#include "actors/train/engine/numerics.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace troupe::train {
namespace {

TEST_CASE("the fingerprint names release, kernels, instruction set and threads") {
  set_up_numerics();
  const std::string one = numerics_fingerprint();
  CAPTURE(one);
  CHECK(one.find(std::string("libtorch ") + TORCH_VERSION) == 0);
  CHECK(one.find("CPU capability") != std::string::npos);
  CHECK(one.find("threads 1") != std::string::npos);
  CHECK(at::get_num_interop_threads() == 1);
  at::set_num_threads(2);
  CHECK(numerics_fingerprint() != one);
  at::set_num_threads(1);
  CHECK(numerics_fingerprint() == one);
}

}  // namespace
}  // namespace troupe::train
