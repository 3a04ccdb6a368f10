#include "collectives/flight/operation.hpp"

namespace troupe::collectives::flight {

std::string to_string(const What& what) {
  const std::string elements = std::to_string(what.count) + " x " + std::string(dtype_name(what.dtype));
  const std::string how = std::string(reduce_op_name(what.op)) + (what.exact ? ", " : ", any order, ");
  const std::string at = std::to_string(what.at);
  const std::string name(name_of(what.call));
  switch (what.call) {
    case Call::kAllReduceTree:
      return name + "(" + how + elements + ", buffer " + at + ")";
    case Call::kAllReduce:
    case Call::kReduceScatter:
      return name + "(" + how + elements + ")";
    case Call::kReduce:
      return name + "(" + how + elements + ", root " + at + ")";
    case Call::kBroadcast:
    case Call::kGather:
    case Call::kScatter:
      return name + "(" + elements + ", root " + at + ")";
    case Call::kAllGather:
    case Call::kAllToAll:
      return name + "(" + elements + ")";
    case Call::kBarrier:
      return name + "()";
    case Call::kSend:
      return name + "(" + elements + ", to " + at + ", tag " + std::to_string(what.tag) + ")";
    case Call::kRecv:
      return name + "(" + elements + ", from " + at + ", tag " + std::to_string(what.tag) + ")";
  }
  return "?";
}

}  // namespace troupe::collectives::flight
