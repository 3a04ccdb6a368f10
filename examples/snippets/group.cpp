// A group of actors that is called as one, and that sums numbers among its members by a process group.
#include <iostream>
#include <span>
#include <troupe/collectives.hpp>
#include <troupe/session.hpp>

struct Shard : troupe::collectives::GroupMember {
  Shard() = default;
  explicit Shard(std::size_t at) : place(at) {}
  /// The sum of all members' numbers.
  float total(float mine) {
    auto numbers = process_group()->allocate<float>(1);
    numbers[0] = mine * static_cast<float>(place);
    process_group()->all_reduce(numbers)->wait();
    const float all = numbers[0];
    process_group()->deallocate(numbers);  // or allocate once, and use it in every call
    return all;
  }
  std::size_t place = 0;
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto group = session.spawn_group<Shard>({{"host", 2}, {"gpu", 2}}, {.isolated = true}, troupe::kPlace);
  group.form_process_group("native");
  const std::vector<float> totals = group.call_all<&Shard::total>(10.0F).get();
  std::cout << "each of " << totals.size() << " has " << totals.front() << "\n";

  session.kill(group.at({1, 0}));
  const auto outcomes = group.call_all<&Shard::total>(1.0F).outcomes();
  const auto rest = group.without({2});
  rest.form_process_group("native");
  std::cout << outcomes.size() - rest.size() << " is gone, and the others have "
            << rest.call_all<&Shard::total>(10.0F).get().front() << "\n";
}
