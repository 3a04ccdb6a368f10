#include "collectives/gloo/gloo_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {

bool has_gloo() noexcept {
  return false;
}

std::unique_ptr<ProcessGroup> make_gloo_group(GlooGroupOptions /*options*/) {
  throw BadConfig("cannot make a process group of the backend gloo", "this build has no Gloo",
                  "install it (apt-get install libgloo-dev) and configure again, or use the backend native");
}

}  // namespace troupe::collectives
