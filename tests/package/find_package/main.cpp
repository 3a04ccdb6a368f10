// Three actors add up parts of a sum; a process group of one rank confirms it.
#include <cstdio>
#include <filesystem>
#include <string>
#include <troupe/collectives.hpp>
#include <troupe/session.hpp>

struct Adder {
  int from = 0;
  int sum(int count) {
    int total = 0;
    for (int i = 0; i < count; ++i) total += from + i;
    return total;
  }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  std::vector<troupe::Future<int>> parts;
  for (int i = 0; i < 3; ++i)
    parts.push_back(session.spawn<Adder>({.num_cpus = 0.1}, 10 * i).call<&Adder::sum>(10));
  int total = 0;
  for (const int part : troupe::get_all(parts, std::chrono::minutes(1))) total += part;

  const auto meeting = std::filesystem::current_path() / "meeting";
  std::filesystem::remove(meeting);
  const auto group =
      troupe::collectives::init_process_group("native", "file://" + meeting.string(), {.rank = 0, .size = 1});
  const auto value = group->allocate<float>(1);
  value[0] = static_cast<float>(total);
  group->all_reduce(value)->wait();
  std::printf("sum %g\n", value[0]);
  return 0;
}
