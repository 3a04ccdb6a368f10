#include "tests/collectives/library_checks.hpp"

#include <algorithm>
#include <cfenv>
#include <complex>
#include <functional>
#include <thread>

#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"
#include "tests/support/eventually.hpp"

namespace troupe::collectives::testing {
namespace {

std::size_t as_index(int r) {
  return static_cast<std::size_t>(r);
}

/// What `who` sends.
std::vector<std::int16_t> values_of(int who, std::size_t count) {
  SeededRandom random(static_cast<std::uint64_t>(who));
  std::vector<std::int16_t> values(count);
  for (auto& value : values) value = static_cast<std::int16_t>(random.next());
  return values;
}

/// Everybody to everybody, receives first, tags in the opposite order of the sends.
void check_messages(ProcessGroup& group, std::size_t count) {
  const int me = group.rank(), n = group.size();
  constexpr std::uint32_t kTags = 3;
  std::vector<std::vector<std::int16_t>> in, out;
  std::vector<std::shared_ptr<Work>> works;
  in.reserve(as_index(n) * kTags * 2);
  out.reserve(as_index(n) * kTags * 2);
  const auto values = [&](int from, int to, std::uint32_t tag, int which) {
    return values_of(from * 100 + to * 10 + static_cast<int>(tag) * 2 + which, count);
  };
  for (int peer = 0; peer < n; ++peer) {
    for (std::uint32_t tag = 0; tag < kTags && peer != me; ++tag) {
      for (int which = 0; which < 2; ++which) {
        in.emplace_back(count);
        works.push_back(group.recv(std::span(in.back()), peer, tag));
      }
    }
  }
  for (int peer = n - 1; peer >= 0; --peer) {
    for (std::uint32_t tag = kTags; tag-- > 0 && peer != me;) {
      for (int which = 0; which < 2; ++which) {
        out.push_back(values(me, peer, tag, which));
        works.push_back(group.send(std::span(out.back()), peer, tag));
      }
    }
  }
  group.barrier()->wait();  // apart from the collectives' order
  std::reverse(works.begin(), works.end());
  for (const auto& work : works) work->wait();
  std::size_t at = 0;
  for (int peer = 0; peer < n; ++peer) {
    for (std::uint32_t tag = 0; tag < kTags && peer != me; ++tag) {
      for (int which = 0; which < 2; ++which) {
        require(in[at++] == values(peer, me, tag, which), "a message of " + std::to_string(count));
      }
    }
  }
}

void check_any_source(ProcessGroup& group) {
  const int me = group.rank(), n = group.size();
  if (n == 1) return;
  for (const std::size_t count : {0, 1, 30000}) {  // an empty message has a sender, too
    const auto mine = values_of(me, count);
    if (me != 0) {
      group.send(std::span(mine), 0, 9)->wait();
    } else {
      std::vector<bool> seen(as_index(n));
      for (int i = 1; i < n; ++i) {
        std::vector<std::int16_t> got(count);
        const auto work = group.recv(std::span(got), kAnyRank, 9);
        work->wait();
        const int from = work->source();
        require(from > 0 && from < n && !seen[as_index(from)], "the source of a message");
        seen[as_index(from)] = true;
        require(got == values_of(from, count), "a message from any rank");
      }
    }
    group.barrier()->wait();
  }
}

template <class Expected>
void refused(const ProcessGroup& group, const std::vector<std::string>& words,
             const std::function<void()>& call) {
  const std::string text = thrown_by<Expected>(call);
  for (const auto& word : words) {
    require(text.find(word) != std::string::npos,
            "rank " + std::to_string(group.rank()) + ": '" + word + "' is not in the refusal: " + text);
  }
}

}  // namespace

void check_messages(ProcessGroup& group) {
  for (const std::size_t count : {0, 1, 1009, 12000, 350'000}) check_messages(group, count);
  check_any_source(group);
}

void check_refusals(ProcessGroup& group) {
  const int n = group.size();
  std::vector<float> values(static_cast<std::size_t>(n) * 4), part(4), odd(3);
  const auto whole = std::span<float>(values);
  refused<BadInput>(group, {"rank " + std::to_string(n)}, [&] { group.broadcast(whole, n); });
  refused<BadInput>(group, {"rank -1"}, [&] { group.reduce(whole, -1); });
  refused<BadInput>(group, {"all_reduce", "null"}, [&] { group.all_reduce(Buffer{.count = 3}, {}); });
  refused<BadInput>(group, {"CPU"}, [&] {
    group.all_reduce(Buffer{.data = values.data(), .count = 3, .device = {DeviceKind::kCuda, 0}}, {});
  });
  refused<BadInput>(group, {"all_gather", "the input has 3 elements"},
                    [&] { group.all_gather(std::span<const float>(odd), whole); });
  refused<BadInput>(group, {"all_to_all", "one dtype"}, [&] {
    group.all_to_all(buffer_of(whole),
                     {.data = values.data(), .count = values.size(), .dtype = DType::kInt32});
  });
  refused<BadInput>(group, {"overlap"}, [&] { group.all_to_all(buffer_of(whole), buffer_of(whole)); });
  refused<BadInput>(group, {"f32 by bxor"}, [&] { group.all_reduce(whole, ReduceOp::kBxor); });
  refused<BadInput>(group, {"i32 by avg"}, [&] {
    group.reduce_scatter({.data = values.data(), .count = values.size(), .dtype = DType::kInt32},
                         {.data = part.data(), .count = part.size(), .dtype = DType::kInt32}, ReduceOp::kAvg);
  });
  refused<BadInput>(group, {"f32 has no 1e+300"},
                    [&] { group.all_reduce(whole, Reduction::premul_sum(1e300)); });
  std::vector<std::size_t> counts(as_index(n) + 1, 0);
  refused<BadInput>(group, {"all_gather_v", "counts of the output"},
                    [&] { group.all_gather(part, part, counts); });
  counts.assign(as_index(n), 1);
  counts[as_index(group.rank())] = 5;
  refused<BadInput>(group, {"reduce_scatter_v"}, [&] { group.reduce_scatter(part, part, counts); });
  group.barrier()->wait();
}

void check_works(ProcessGroup& group) {
  std::vector<std::vector<float>> values(20, std::vector<float>(3001, 1));
  std::vector<std::vector<float>> moved(20, std::vector<float>(3001, static_cast<float>(group.rank())));
  std::vector<std::shared_ptr<Work>> works;
  for (auto& v : values) works.push_back(group.all_reduce(std::span(v)));
  for (auto& v : moved) works.push_back(group.broadcast(std::span(v), group.size() - 1));
  test::yield_until([&] { return works.front()->is_completed(); });
  require(works.front()->exception() == nullptr, "a good Work has an exception");
  while (!works.back()->wait_for(std::chrono::milliseconds(1))) {
  }
  std::reverse(works.begin(), works.end());
  for (const auto& work : works) {
    work->wait();
    work->wait();
    require(work->is_completed(), "complete, but it does not say so");
  }
  for (const auto& v : values) {
    require(v == std::vector<float>(3001, static_cast<float>(group.size())), "wrong sums of works");
  }
  for (const auto& v : moved) {
    require(v == std::vector<float>(3001, static_cast<float>(group.size() - 1)), "wrong moves of works");
  }
}

void check_rounding(ProcessGroup& group) {
  const int before = std::fegetround();
  for (const std::size_t count : {std::size_t{7}, std::size_t{100'000}}) {
    std::vector<float> up(count, group.rank() == 0 ? 1.0F : 0x1p-30F), down = up, nearest = up;
    std::fesetround(FE_UPWARD);
    const auto first = group.all_reduce(up);
    std::fesetround(FE_DOWNWARD);
    const auto second = group.all_reduce(down);
    std::fesetround(before);
    const auto third = group.all_reduce(nearest);
    third->wait();
    second->wait();
    first->wait();
    require(std::fegetround() == before, "a wait leaves the thread with another rounding");
    const auto is_up = [&](float sum) { return group.size() == 1 ? sum == 1 : sum > 1; };
    require(std::all_of(up.begin(), up.end(), is_up), "a sum that was launched to be rounded up");
    require(down == std::vector<float>(count, 1), "a sum that was launched to be rounded down");
    require(nearest == std::vector<float>(count, 1), "a sum that was launched to be rounded to nearest");
  }
}

void check_batch(ProcessGroup& group) {
  const int me = group.rank(), n = group.size();
  std::vector<float> sum(500, 1), mine(40000, static_cast<float>(me)), theirs(40000, -1), none;
  std::vector<Op> ops{Op::all_reduce(buffer_of(std::span(sum)), ReduceOp::kSum), Op::barrier(),
                      Op::broadcast(buffer_of(std::span(none)), 0)};
  if (n > 1) {
    ops.push_back(Op::recv(buffer_of(std::span(theirs)), (me + n - 1) % n, 5));
    ops.push_back(Op::send(buffer_of(std::span(mine)), (me + 1) % n, 5));
  }
  const auto work = group.batch(ops);
  work->wait();
  require(work->is_completed(), "a batch is complete and does not say so");
  require(sum == std::vector<float>(500, static_cast<float>(n)), "the sum of a batch");
  if (n > 1)
    require(theirs == std::vector<float>(40000, static_cast<float>((me + n - 1) % n)), "its message");
}

void check_complex(ProcessGroup& group) {
  const auto n = static_cast<double>(group.size());
  const auto me = static_cast<double>(group.rank());
  std::vector<std::complex<double>> c(300, {1, me});
  group.all_reduce(c)->wait();
  require(c.back() == std::complex<double>(n, n * (n - 1) / 2), "a sum of complex numbers");
  std::vector<std::complex<float>> f(300, {4, -2});
  group.all_reduce(f, ReduceOp::kAvg)->wait();
  require(f.front() == std::complex<float>(4, -2), "a mean of complex numbers");
  group.all_reduce(c, {ReduceOp::kSum, false})->wait();
  refused<BadInput>(group, {"c128 by max", "order"}, [&] { group.all_reduce(c, ReduceOp::kMax); });
  refused<BadInput>(group, {"c64 by bxor"}, [&] { group.all_reduce(f, ReduceOp::kBxor); });
  std::vector<std::complex<double>> gathered(300 * as_index(group.size()));
  group.all_gather(c, gathered)->wait();
  require(gathered.back() == c.back(), "complex numbers are moved");
}

/// Rank 0 has called what the others call once it has tried to give the memory back.
void check_memory(ProcessGroup& group) {
  const int me = group.rank(), n = group.size();
  const auto cannot_give = [&](void* at, const std::string& why, std::size_t count = 1) {
    refused<BadInput>(group, {why}, [&] {
      group.deallocate(Buffer{.data = at, .count = count, .dtype = DType::kFloat32});
    });
  };
  const std::string unknown = "its allocate() did not give it, or it was given back", busy = "in flight";
  const auto values = group.allocate<float>(5000), second = group.allocate<float>(1000);
  const auto other = group.allocate<float>(100);
  const TreeBuffer tree = group.allocate_tree(10, DType::kFloat32);
  require(std::count(values.begin(), values.end(), 0.0F) == 5000, "memory of the group is not zeros");
  float elsewhere = 0;
  cannot_give(&elsewhere, unknown);
  cannot_give(nullptr, unknown);
  // Was: a part of it, from its beginning, gave all of it back.
  cannot_give(values.data(), "it has 40 bytes, and its allocate() gave 20000", 10);
  cannot_give(&values[16], unknown);
  cannot_give(tree.partials.front(), unknown);
  int token = 0;
  const auto others_go_on = [&] {
    for (int peer = 1; peer < n; ++peer) group.send(std::span<const int>(&token, 1), peer, 1)->wait();
  };
  const auto await_others = [&] { group.recv(std::span(&token, 1), 0, 1)->wait(); };
  if (n > 1 && me == 0) {
    const auto sum = group.all_reduce(values);
    cannot_give(values.data(), busy, 5000);
    group.deallocate(other);
    const auto both = group.batch({Op::all_reduce(buffer_of(second), ReduceOp::kSum), Op::barrier()});
    cannot_give(second.data(), busy, 1000);
    others_go_on();
    both->wait();
    sum->wait();
    const auto got = group.recv(second, 1, 2);
    cannot_give(second.data(), busy, 1000);
    others_go_on();
    got->wait();
    require(second[999] == 1, "a message in memory of the group");
  } else if (n > 1) {
    await_others();
    group.deallocate(other);
    std::fill(values.begin(), values.end(), 1.0F);
    group.all_reduce(values)->wait();
    group.batch({Op::all_reduce(buffer_of(second), ReduceOp::kSum), Op::barrier()})->wait();
    await_others();
    std::fill(second.begin(), second.end(), 1.0F);
    if (me == 1) group.send(second, 0, 2)->wait();
  }
  require(values[4999] == static_cast<float>(n - 1), "a sum in memory of the group");
  group.deallocate(values);
  cannot_give(values.data(), unknown, 5000);
  group.deallocate(second);
  const auto again = group.allocate<float>(5000);
  require(std::count(again.begin(), again.end(), 0.0F) == 5000,
          "memory that is given out again is not zeros");
  group.deallocate(again);
  group.all_reduce_tree(tree, {})->wait();
}

void check_library(ProcessGroup& group) {
  const int size = group.size();
  run_specs(group, every_spec(size, 100), 1);
  run_specs(group, any_order_specs(size), 2);
  for (const std::size_t count : {1009, 12000, 40000}) run_specs(group, specs_of(size, count), count);
  check_messages(group);
  check_refusals(group);
  std::vector<float> own(4);
  refused<BadConfig>(group, {"itself", std::string(group.backend())},
                     [&] { group.send(std::span<const float>(own), group.rank()); });
  check_works(group);
  check_rounding(group);
  check_batch(group);
  check_complex(group);
  check_memory(group);
  group.barrier()->wait();
}

}  // namespace troupe::collectives::testing
