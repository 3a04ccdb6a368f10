#include "collectives/gloo/use_gloo.hpp"

#include "collectives/gloo/gloo_group.hpp"
#include "collectives/rendezvous/backends.hpp"

namespace troupe::collectives {
void use_gloo() {
  register_backend("gloo", [](const BackendContext& context) -> std::shared_ptr<ProcessGroup> {
    return make_gloo_group({.rank = context.rank,
                            .size = context.size,
                            .generation = context.generation,
                            .name = context.group,
                            .timeout = context.options.operation_timeout,
                            .rendezvous = std::shared_ptr<Store>(&context.store, [](Store*) {}),
                            .host = context.address});
  });
}

}  // namespace troupe::collectives
