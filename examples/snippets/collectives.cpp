// Ranks agree on a sum, in an ordinary program under any launcher: no cluster, no LibTorch.
#include <cstdio>
#include <numeric>
#include <troupe/collectives.hpp>

int main() {
  // The ranks meet at env://, tcp://HOST:PORT or file:///PATH.
  auto group = troupe::collectives::init_process_group("native", "env://");
  auto values = group->allocate<float>(1 << 20);  // moved without a copy
  std::iota(values.begin(), values.end(), 0.0F);
  group->all_reduce(values)->wait();  // the same bits on any number of machines
  std::printf("rank %d of %d: %g\n", group->rank(), group->size(), values[1]);
  return values[1] == static_cast<float>(group->size()) ? 0 : 1;
}
