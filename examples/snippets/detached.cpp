// What docs/actors.md shows of detached actors: run it twice on one cluster (--address HOST:PORT), and the
// second run goes on where the first one ended.
#include <iostream>
#include <troupe/session.hpp>

using namespace std::chrono_literals;

struct Counter {
  explicit Counter(int first) : count(first) {}
  int add(int n) { return count += n; }
  int count;
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv, {.job = "counting"});
  auto counter = session.spawn<Counter>(
      {.isolated = true, .name = "counter", .get_if_exists = true, .detached = true}, 5);
  std::cout << counter.call<&Counter::add>(1).get(10s) << "\n";
}
