// An actor: a plain class in a process of the cluster, called as a method is. A task: a function in a worker.
#include <iostream>
#include <troupe/session.hpp>

using namespace std::chrono_literals;

struct Counter {
  int total = 0;
  int add(int n) { return total += n; }
};
int square(int n) {
  return n * n;
}

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);  // an embedded cluster; --address HOST:PORT joins a running one
  auto counter = session.spawn<Counter>({.num_cpus = 0.1});  // .isolated = true: a process of its own
  troupe::Future<int> sum = counter.call<&Counter::add>(5);
  troupe::Future<int> squared = session.submit<&square>(7);
  std::cout << sum.get(10s) << " " << squared.get(10s) << "\n";  // throws ActorDied, TaskFailed, Timeout
}
