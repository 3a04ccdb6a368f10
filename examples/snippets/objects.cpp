// A task and an object: a function of yours that some worker runs, on a value that each node gets once.
#include <iostream>
#include <numeric>
#include <troupe/session.hpp>
#include <vector>

using namespace std::chrono_literals;

double measure(const troupe::View<float>& points) {
  return std::accumulate(points.begin(), points.end(), 0.0) / static_cast<double>(points.size());
}

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  std::vector<float> samples(1'000'000, 0.5F);
  auto points = session.put(std::move(samples));  // a std::vector<float>
  troupe::Future<double> mean = session.submit<&measure>(points);
  std::cout << mean.get(30s) << "\n";
}
