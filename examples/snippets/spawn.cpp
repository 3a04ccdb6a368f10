// A function of this program as four ranks of a process group.
#include <cstdio>
#include <numeric>
#include <troupe/collectives.hpp>
#include <troupe/launch.hpp>

void sum(int rank, int length) {
  auto group = troupe::collectives::init_process_group("native", "env://");
  auto values = group->allocate<float>(static_cast<std::size_t>(length));
  std::iota(values.begin(), values.end(), static_cast<float>(rank));
  group->all_reduce(values)->wait();
  if (rank == 0) std::printf("the first element is %g\n", static_cast<double>(values[0]));
}

int main() {
  troupe::launch::spawn<&sum>(4, 1000);
}
