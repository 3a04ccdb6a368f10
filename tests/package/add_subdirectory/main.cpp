// A process group of one rank.
#include <cstdio>
#include <filesystem>
#include <troupe/collectives.hpp>

int main() {
  const auto meeting = std::filesystem::current_path() / "meeting";
  std::filesystem::remove(meeting);
  const auto group =
      troupe::collectives::init_process_group("native", "file://" + meeting.string(), {.rank = 0, .size = 1});
  const auto values = group->allocate<float>(1000);
  for (float& value : values) value = 0.435F;
  group->all_reduce(values)->wait();
  float sum = 0;
  for (const float value : values) sum += value;
  std::printf("sum %.0f\n", sum);
  return 0;
}
