/// A program's way into a cluster, and the actors it starts there:
///
///   int main(int argc, char** argv) {
///     auto session = troupe::init(argc, argv);
///     auto counter = session.spawn<Counter>({.num_cpus = 0.1});
///     troupe::Future<int> sum = counter.call<&Counter::add>(5);
///     std::cout << sum.get(1s) << "\n";
///   }
///
/// Link troupe::runtime (docs/use-it.md). Calls of init, spawn and call may be made from any thread.
#pragma once

#include "scheduler/init/init.hpp"
#include "troupe/actor.hpp"
