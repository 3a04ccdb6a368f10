// pi as the area under 4 / (1 + x^2), by a tree of tasks: each halves its interval until it is short enough.
#include <cstdio>
#include <troupe/session.hpp>

double area(double from, double to, int depth) {
  if (depth > 0) {
    auto session = troupe::this_actor().session();
    const double middle = (from + to) / 2;
    auto left = session.submit<&area>(from, middle, depth - 1);
    auto right = session.submit<&area>(middle, to, depth - 1);
    return left.get() + right.get();  // runs one of them itself, if no worker has begun it
  }
  constexpr int kSlices = 1'000'000;
  const double width = (to - from) / kSlices;
  double sum = 0;
  for (int i = 0; i < kSlices; ++i) {
    const double x = from + (i + 0.5) * width;
    sum += 4 / (1 + x * x);
  }
  return sum * width;
}

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv, {.nodes = 2});
  const double pi = session.submit<&area>(0, 1, 8).get();
  std::printf("pi is %.10f\n", pi);
}
