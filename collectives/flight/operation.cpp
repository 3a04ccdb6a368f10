#include "collectives/flight/operation.hpp"

namespace troupe::collectives::flight {

std::string to_string(const What& what) {
  const std::string elements = std::to_string(what.count) + " x " + std::string(dtype_name(what.dtype));
  const std::string how = std::string(reduce_op_name(what.op)) + (what.exact ? ", " : ", any order, ");
  const std::string at = std::to_string(what.at);
  const std::string name(name_of(what.call));
  switch (what.call) {
    case OpKind::kAllReduceTree:
      return name + "(" + how + elements + ", buffer " + at + ")";
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return name + "(" + how + elements + ")";
    case OpKind::kReduce:
      return name + "(" + how + elements + ", root " + at + ")";
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter:
      return name + "(" + elements + ", root " + at + ")";
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return name + "(" + elements + ")";
    case OpKind::kBarrier:
      return name + "()";
    case OpKind::kSend:
      return name + "(" + elements + ", to " + at + ", tag " + std::to_string(what.tag) + ")";
    case OpKind::kRecv:
      return name + "(" + elements + ", from " + at + ", tag " + std::to_string(what.tag) + ")";
  }
  return "?";
}

}  // namespace troupe::collectives::flight
