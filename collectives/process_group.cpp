#include "collectives/process_group.hpp"

#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

[[noreturn]] void refuse(const ProcessGroup& group, const char* operation) {
  throw BadConfig(std::string("cannot ") + operation,
                  "the backend " + std::string(group.backend()) + " does not have it",
                  "use the backend native, or another that has it (docs/collectives.md lists them)");
}

[[noreturn]] void refuse_without_origin(const char* operation) {
  throw BadConfig(std::string("cannot ") + operation, "the group was not made by init_process_group",
                  "make it with init_process_group, or leave its members to what made it");
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  if (!origin_) refuse_without_origin("new_group");
  return origin_->new_group(*this, ranks);
}
std::shared_ptr<ProcessGroup> ProcessGroup::rebuild() {
  if (!origin_) refuse_without_origin("rebuild");
  return origin_->rebuild(*this);
}

TreeBuffer ProcessGroup::allocate_tree(std::size_t, DType) {
  refuse(*this, "allocate_tree");
}
Buffer ProcessGroup::allocate(std::size_t, DType) {
  refuse(*this, "allocate");
}
std::shared_ptr<Work> ProcessGroup::all_reduce_tree(const TreeBuffer&, Reduction) {
  refuse(*this, "all_reduce_tree");
}
std::shared_ptr<Work> ProcessGroup::all_reduce(const Buffer&, Reduction) {
  refuse(*this, "all_reduce");
}
std::shared_ptr<Work> ProcessGroup::reduce(const Buffer&, Reduction, int) {
  refuse(*this, "reduce");
}
std::shared_ptr<Work> ProcessGroup::broadcast(const Buffer&, int) {
  refuse(*this, "broadcast");
}
std::shared_ptr<Work> ProcessGroup::gather(const Buffer&, const Buffer&, int) {
  refuse(*this, "gather");
}
std::shared_ptr<Work> ProcessGroup::scatter(const Buffer&, const Buffer&, int) {
  refuse(*this, "scatter");
}
std::shared_ptr<Work> ProcessGroup::all_gather(const Buffer&, const Buffer&) {
  refuse(*this, "all_gather");
}
std::shared_ptr<Work> ProcessGroup::reduce_scatter(const Buffer&, const Buffer&, Reduction) {
  refuse(*this, "reduce_scatter");
}
std::shared_ptr<Work> ProcessGroup::all_to_all(const Buffer&, const Buffer&) {
  refuse(*this, "all_to_all");
}
std::shared_ptr<Work> ProcessGroup::send(const Buffer&, int, std::uint32_t) {
  refuse(*this, "send");
}
std::shared_ptr<Work> ProcessGroup::recv(const Buffer&, int, std::uint32_t) {
  refuse(*this, "recv");
}

}  // namespace troupe::collectives
