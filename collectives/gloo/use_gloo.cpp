#include "collectives/gloo/use_gloo.hpp"

#include "collectives/gloo/gloo_group.hpp"
#include "collectives/init/backends.hpp"

namespace troupe::collectives {
namespace {

class InStore final : public KeyValues {
 public:
  explicit InStore(Store& store) : store_(store) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::string get(const std::string& key, Duration limit) override { return store_.get(key, limit); }

 private:
  Store& store_;
};

}  // namespace

void use_gloo() {
  register_backend("gloo", [](const BackendContext& context) -> std::shared_ptr<ProcessGroup> {
    return make_gloo_group({.rank = context.rank,
                            .size = context.size,
                            .generation = context.generation,
                            .timeout = context.operation_timeout,
                            .rendezvous = std::make_shared<InStore>(context.store),
                            .host = context.address});
  });
}

}  // namespace troupe::collectives
