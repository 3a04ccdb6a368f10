// Objects that tasks compute, one or several: they stay where they were computed, and are computed again when
// they are lost.
#include <iostream>
#include <numeric>
#include <troupe/session.hpp>
#include <tuple>
#include <utility>
#include <vector>

using Numbers = std::vector<double>;

Numbers load(int count) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0.0);
  return all;
}
Numbers scale(const troupe::View<double>& numbers, double by) {
  Numbers all(numbers.begin(), numbers.end());
  for (double& one : all) one *= by;
  return all;
}
std::tuple<double, Numbers> split(const Numbers& numbers) {
  const double mean =
      std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
  Numbers rest = numbers;
  for (double& one : rest) one -= mean;
  return {mean, std::move(rest)};
}
double sum(const troupe::View<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  troupe::ObjectRef<Numbers> loaded = session.compute<&load>(1'000'000);
  troupe::ObjectRef<Numbers> scaled = session.with({.max_retries = 5}).compute<&scale>(loaded, 2.0);
  std::cout << session.submit<&sum>(scaled).get() << "\n";
  auto [mean, rest] = session.compute<&split>(scaled);  // a std::tuple<double, Numbers>: two references
  std::cout << mean.get() << " " << session.submit<&sum>(rest).get() << "\n";
}
