#include "actors/ddp/autocast.hpp"

#include <ATen/autocast_mode.h>

#include <string>

#include "runtime/core/error.hpp"

namespace troupe::train {

Autocast::Autocast(torch::ScalarType dtype, bool enabled) : before_(cpu_autocast()) {
  if (dtype != torch::kBFloat16) {
    throw BadConfig(std::string("no autocast to ") + torch::toString(dtype), "the CPU has bfloat16 alone",
                    "use torch::kBFloat16");
  }
  at::autocast::increment_nesting();
  set_cpu_autocast({enabled, dtype});
}

Autocast::~Autocast() {
  // The outermost drops the casts of parameters that it kept.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_cpu_autocast(before_);
}

}  // namespace troupe::train
