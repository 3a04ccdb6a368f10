#include "collectives/nccl/api.hpp"

namespace troupe::collectives::nccl {

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace troupe::collectives::nccl
