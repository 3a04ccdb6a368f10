// Sorts more numbers than memory has room for: a task makes each block, others cut it into ranges, further
// ones merge what is of one range. Between them lie objects: those that do not fit are on disk, those that
// died with their process are computed again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <troupe/session.hpp>

using Numbers = std::vector<std::uint64_t>;
using NumbersView = troupe::View<std::uint64_t>;

/// Stands for a file of numbers.
Numbers read_block(std::uint64_t block, std::uint64_t size) {
  std::mt19937_64 random(block);
  Numbers numbers(size);
  for (auto& number : numbers) number = random();
  return numbers;
}

/// Those of the `range`th of `ranges` equal parts of all numbers, in order.
Numbers in_range(const NumbersView& numbers, std::uint64_t range, std::uint64_t ranges) {
  const std::uint64_t width = UINT64_MAX / ranges + 1;
  const auto inside = [low = range * width, width](std::uint64_t number) {
    return number >= low && number - low < width;
  };
  Numbers found;
  found.reserve(std::count_if(numbers.begin(), numbers.end(), inside));
  std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(found), inside);
  std::sort(found.begin(), found.end());
  return found;
}

/// Each of the four is in order, and so is what comes back.
Numbers merged(const NumbersView& a, const NumbersView& b, const NumbersView& c, const NumbersView& d) {
  Numbers all;
  all.reserve(a.size() + b.size() + c.size() + d.size());
  for (const auto* part : {&a, &b, &c, &d}) {
    const auto middle = static_cast<std::ptrdiff_t>(all.size());
    all.insert(all.end(), part->begin(), part->end());
    std::inplace_merge(all.begin(), all.begin() + middle, all.end());
  }
  return all;
}

struct Summary {
  std::uint64_t count = 0, sum = 0, first = 0, last = 0;
  bool in_order = true;
};

Summary summary(const NumbersView& numbers) {
  Summary of{.count = numbers.size()};
  for (const auto number : numbers) of.sum += number;
  of.in_order = std::is_sorted(numbers.begin(), numbers.end());
  if (!numbers.empty()) of.first = *numbers.begin(), of.last = *(numbers.end() - 1);
  return of;
}

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);  // takes --address HOST:PORT
  std::vector<std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--address") ++i;
    if (!word.starts_with("--address")) given.push_back(word);
  }
  const double megabytes = !given.empty() ? std::atof(given[0].c_str()) : 64;
  const std::uint64_t blocks = given.size() > 1 ? std::strtoull(given[1].c_str(), nullptr, 10) : 8;
  const std::uint64_t ranges = blocks / 2;
  if (!(megabytes > 0) || ranges < 2)
    return std::printf("usage: sort [--address HOST:PORT] [MEGABYTES [BLOCKS, 4 or more]]\n"), 2;
  const auto size = static_cast<std::uint64_t>(megabytes * 1e6 / 8 / static_cast<double>(blocks));

  std::vector<troupe::Future<Summary>> before, after;
  std::vector<std::vector<troupe::ObjectRef<Numbers>>> parts(ranges);
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const auto numbers = session.compute<&read_block>(block, size);
    before.push_back(session.submit<&summary>(numbers));
    for (std::uint64_t range = 0; range < ranges; ++range)
      parts[range].push_back(session.compute<&in_range>(numbers, range, ranges));
  }
  const auto none = session.put(Numbers{});
  for (auto& of : parts) {
    while (of.size() > 1) {
      of.resize((of.size() + 3) / 4 * 4, none);
      std::vector<troupe::ObjectRef<Numbers>> fewer;
      for (std::size_t i = 0; i < of.size(); i += 4)
        fewer.push_back(session.compute<&merged>(of[i], of[i + 1], of[i + 2], of[i + 3]));
      of = std::move(fewer);
    }
    after.push_back(session.submit<&summary>(of.front()));
    of.clear();
  }

  std::uint64_t count = 0, sum = 0, last = 0;
  for (auto& block : before) {
    const auto found = block.get();
    count += found.count, sum += found.sum;
  }
  for (auto& range : after) {
    const auto found = range.get();
    count -= found.count, sum -= found.sum;
    if (found.count == 0) continue;
    if (!found.in_order || found.first < last) return std::printf("a range is not in order\n"), 1;
    last = found.last;
  }
  std::printf("%llu numbers in order, %s\n", static_cast<unsigned long long>(blocks * size),
              count == 0 && sum == 0 ? "none lost" : "not those that were there");
  return count == 0 && sum == 0 ? 0 : 1;
}
