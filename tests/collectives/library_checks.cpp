#include "tests/collectives/library_checks.hpp"

#include <algorithm>
#include <complex>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "collectives/native/kernels.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::collectives::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                             DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                             DType::kUInt8,   DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                             ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                             ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};
/// None, fewer than ranks, one that no number of ranks divides evenly, and one that 1 to 4 ranks do.
constexpr std::size_t kCounts[] = {0, 1, 1009, 12000};

std::string where(const ProcessGroup& group, const std::string& what, DType dtype, std::size_t count) {
  return "rank " + std::to_string(group.rank()) + ": wrong " + what + " of " + std::to_string(count) + " x " +
         std::string(dtype_name(dtype));
}

std::size_t index(int r) {
  return static_cast<std::size_t>(r);
}

Buffer buffer(Bytes& bytes, DType dtype) {
  return {.data = bytes.data(), .count = bytes.size() / element_size(dtype), .dtype = dtype};
}

/// values_of every rank, one after another.
Bytes values_of_all(int ranks, std::size_t count, DType dtype) {
  Bytes all;
  for (int r = 0; r < ranks; ++r) {
    const Bytes one = values_of(r, count, dtype);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

/// Part `part` of `parts`.
Bytes part_of(const Bytes& all, int part, int parts) {
  const auto size = static_cast<std::ptrdiff_t>(all.size()) / parts;
  return {all.begin() + part * size, all.begin() + (part + 1) * size};
}

void check_rooted_moves(ProcessGroup& group, DType dtype, std::size_t count) {
  const int me = group.rank(), n = group.size();
  const Bytes mine = values_of(me, count, dtype), all = values_of_all(n, count, dtype);
  const auto fails = [&](const char* what) { return where(group, what, dtype, count); };
  for (int root = 0; root < n; ++root) {
    Bytes values = mine;
    group.broadcast(buffer(values, dtype), root)->wait();
    require(values == values_of(root, count, dtype), fails("broadcast"));

    Bytes input = mine, output(me == root ? all.size() : 0);
    group.gather(buffer(input, dtype), buffer(output, dtype), root)->wait();
    require(me != root || output == all, fails("gather"));

    Bytes whole = me == root ? values_of(root, count * index(n), dtype) : Bytes{}, part(mine.size());
    group.scatter(buffer(whole, dtype), buffer(part, dtype), root)->wait();
    require(part == part_of(values_of(root, count * index(n), dtype), me, n), fails("scatter"));

    // In place on the root: its part of the larger buffer is the smaller one.
    const auto inside = [&](Bytes& all_parts) {
      return Buffer{.data = all_parts.data() + index(me) * mine.size(), .count = count, .dtype = dtype};
    };
    if (me == root)
      std::copy(mine.begin(), mine.end(), output.begin() + static_cast<long>(index(me) * mine.size()));
    group.gather(me == root ? inside(output) : buffer(input, dtype), buffer(output, dtype), root)->wait();
    require(me != root || output == all, fails("gather in place"));
    group.scatter(buffer(whole, dtype), me == root ? inside(whole) : buffer(part, dtype), root)->wait();
    require(me != root || whole == values_of(root, count * index(n), dtype), fails("scatter in place"));
  }
}

void check_exchanges(ProcessGroup& group, DType dtype, std::size_t count) {
  const int me = group.rank(), n = group.size();
  const auto fails = [&](const char* what) { return where(group, what, dtype, count); };
  Bytes mine = values_of(me, count, dtype), gathered(mine.size() * index(n));
  group.all_gather(buffer(mine, dtype), buffer(gathered, dtype))->wait();
  require(gathered == values_of_all(n, count, dtype), fails("all_gather"));
  std::fill(gathered.begin(), gathered.end(), std::byte{0});
  std::copy(mine.begin(), mine.end(), gathered.begin() + static_cast<long>(index(me) * mine.size()));
  const Buffer inside{.data = gathered.data() + index(me) * mine.size(), .count = count, .dtype = dtype};
  group.all_gather(me % 2 == 0 ? inside : buffer(mine, dtype), buffer(gathered, dtype))->wait();
  require(gathered == values_of_all(n, count, dtype), fails("all_gather in place"));

  Bytes input = values_of(me, count * index(n), dtype), output(input.size()), wanted;
  for (int r = 0; r < n; ++r) {
    const Bytes part = part_of(values_of(r, count * index(n), dtype), me, n);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  group.all_to_all(buffer(input, dtype), buffer(output, dtype))->wait();
  require(output == wanted, fails("all_to_all"));
}

/// Everybody to everybody, receives first, tags in the opposite order of the sends.
void check_messages(ProcessGroup& group, std::size_t count) {
  const int me = group.rank(), n = group.size();
  constexpr std::uint32_t kTags = 3;
  std::vector<Bytes> in, out;
  std::vector<std::shared_ptr<Work>> works;
  in.reserve(index(n) * kTags * 2);
  out.reserve(index(n) * kTags * 2);
  const auto values = [&](int from, int to, std::uint32_t tag, int which) {
    return values_of(from * 100 + to * 10 + static_cast<int>(tag) * 2 + which, count, DType::kInt16);
  };
  for (int peer = 0; peer < n; ++peer) {
    for (std::uint32_t tag = 0; tag < kTags && peer != me; ++tag) {
      for (int which = 0; which < 2; ++which) {
        in.emplace_back(count * 2);
        works.push_back(group.recv(buffer(in.back(), DType::kInt16), peer, tag));
      }
    }
  }
  for (int peer = n - 1; peer >= 0; --peer) {
    for (std::uint32_t tag = kTags; tag-- > 0 && peer != me;) {
      for (int which = 0; which < 2; ++which) {
        out.push_back(values(me, peer, tag, which));
        works.push_back(group.send(buffer(out.back(), DType::kInt16), peer, tag));
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
        require(in[at++] == values(peer, me, tag, which), where(group, "message", DType::kInt16, count));
      }
    }
  }
}

/// all_reduce, reduce to every root and reduce_scatter against `wanted` of every rank's values_of.
void check_reductions(ProcessGroup& group, DType dtype, std::size_t count, Reduction how,
                      const Bytes& wanted) {
  const int me = group.rank(), n = group.size();
  const auto fails = [&](const char* what) {
    return where(group, what + (" by " + std::string(reduce_op_name(how.op))), dtype, count);
  };
  const Bytes mine = values_of(me, count, dtype);
  Bytes values = mine;
  group.all_reduce(buffer(values, dtype), how)->wait();
  require(values == wanted, fails("all_reduce"));
  for (int root = 0; root < n; ++root) {
    values = mine;
    group.reduce(buffer(values, dtype), how, root)->wait();
    require(values == (me == root ? wanted : mine), fails("reduce"));
  }
  if (count % index(n) != 0) return;
  values = mine;
  Bytes part(mine.size() / index(n));
  group.reduce_scatter(buffer(values, dtype), buffer(part, dtype), how)->wait();
  require(part == part_of(wanted, me, n), fails("reduce_scatter"));
  require(values == mine, fails("input of reduce_scatter"));
  const Buffer inside{
      .data = values.data() + index(me) * part.size(), .count = count / index(n), .dtype = dtype};
  group.reduce_scatter(buffer(values, dtype), inside, how)->wait();
  require(part_of(values, me, n) == part, fails("reduce_scatter in place"));
}

template <class T>
T scalar(ReduceOp op, int ranks, std::size_t i) {
  const auto value = [&](int r) { return static_cast<T>(1 + (i + index(r)) % 3); };
  T all = value(0);
  for (int r = 1; r < ranks; ++r) {
    const T next = value(r);
    if (op == ReduceOp::kProduct) {
      all = static_cast<T>(all * next);
    } else if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      all = op == ReduceOp::kMin ? std::min(all, next) : std::max(all, next);
    } else {
      all = static_cast<T>(all + next);
    }
  }
  return op == ReduceOp::kAvg ? static_cast<T>(all / static_cast<T>(ranks)) : all;
}

template <class T>
void check_scalars(ProcessGroup& group, ReduceOp op) {
  if (kernel_for(dtype_of<T>(), op).combine == nullptr) return;
  const int me = group.rank(), n = group.size();
  const std::size_t count = 1200;
  std::vector<T> mine(count), wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    mine[i] = static_cast<T>(1 + (i + index(me)) % 3);
    wanted[i] = scalar<T>(op, n, i);
  }
  const auto fails = [&](const char* what) {
    return where(group, what + (" in any order by " + std::string(reduce_op_name(op))), dtype_of<T>(), count);
  };
  std::vector<T> values = mine;
  group.all_reduce(std::span(values), {op, false})->wait();
  require(values == wanted, fails("all_reduce"));
  for (int root = 0; root < n; ++root) {
    values = mine;
    group.reduce(std::span(values), root, {op, false})->wait();
    require(values == (me == root ? wanted : mine), fails("reduce"));
  }
  if (count % index(n) != 0) return;
  std::vector<T> part(count / index(n));
  group.reduce_scatter(std::span<const T>(mine), std::span(part), {op, false})->wait();
  require(std::equal(part.begin(), part.end(), wanted.begin() + static_cast<long>(part.size()) * me),
          fails("reduce_scatter"));
  values = mine;
  const auto inside = std::span(values).subspan(part.size() * index(me), part.size());
  const auto target = me % 2 == 0 ? inside : std::span(wanted).first(part.size());  // not on every rank
  group.reduce_scatter(std::span<const T>(values), target, {op, false})->wait();
  require(std::equal(part.begin(), part.end(), target.begin()), fails("reduce_scatter in place"));
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

Bytes values_of(int who, std::size_t count, DType dtype) {
  SeededRandom random(static_cast<std::uint64_t>(who) * 1000003 + static_cast<std::uint64_t>(dtype));
  Bytes bytes(count * element_size(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * element_size(dtype);
    const auto put = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    const double value = (random.uniform() - 0.5) * 8;
    switch (dtype) {
      case DType::kFloat64:
        put(value);
        break;
      case DType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DType::kFloat16:  // any bits that are no NaN and no infinity
        put(static_cast<std::uint16_t>(0x3000 | (random.next() & 0x8fff)));
        break;
      case DType::kBFloat16:
        put(static_cast<std::uint16_t>(0x3f00 | (random.next() & 0x80ff)));
        break;
      case DType::kBool:
        put(static_cast<std::uint8_t>(random.next() & 1));
        break;
      default:
        for (std::size_t b = 0; b < element_size(dtype); ++b) at[b] = static_cast<std::byte>(random.next());
    }
  }
  return bytes;
}

Bytes native_sum(int ranks, std::size_t count, DType dtype, Reduction how) {
  Bytes result;
  run(ranks, {}, [&](ProcessGroup& native) {
    Bytes values = values_of(native.rank(), count, dtype);
    native.all_reduce(buffer(values, dtype), how)->wait();
    if (native.rank() == 0) result = values;
  });
  return result;
}

void check_moves(ProcessGroup& group) {
  for (const std::size_t count : kCounts) {
    for (const DType dtype : {DType::kFloat64, DType::kBFloat16, DType::kBool}) {
      check_rooted_moves(group, dtype, count);
      check_exchanges(group, dtype, count);
    }
    check_messages(group, count);
  }
  group.barrier()->wait();
}

void check_exact(ProcessGroup& group) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      if (kernel_for(dtype, op).combine == nullptr) continue;
      for (const std::size_t count : {1009, 12000}) {  // the moves and the tree have the small ones
        Reduction how = op;
        if (op == ReduceOp::kPremulSum) how.factor = 3;
        check_reductions(group, dtype, count, how, native_sum(group.size(), count, dtype, how));
      }
    }
  }
}

void check_tree(ProcessGroup& group, int leaves) {
  const auto dealt = deal_leaves(leaves, group.size());
  require(group.leaves() == dealt[index(group.rank())], "other leaves");
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::size_t count : kCounts) {
      // A partial is any value of its node: the native group with one rank a leaf would add up to another.
      Bytes wanted;
      const auto fill = [&](ProcessGroup& any, TreeBuffer& tree) {
        const auto nodes = canonical_nodes(any.leaves(), leaves);
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          const Bytes values = values_of(nodes[i].begin, count, dtype);
          if (!values.empty()) std::memcpy(tree.partials[i], values.data(), values.size());
        }
      };
      run(group.size(), {.leaves = dealt}, [&](ProcessGroup& native) {
        TreeBuffer tree = native.allocate_tree(count, dtype);
        fill(native, tree);
        native.all_reduce_tree(tree, ReduceOp::kAvg)->wait();
        if (native.rank() == 0)
          wanted.assign(tree.partials[0], tree.partials[0] + count * element_size(dtype));
      });
      TreeBuffer tree = group.allocate_tree(count, dtype);
      fill(group, tree);
      group.all_reduce_tree(tree, ReduceOp::kAvg)->wait();
      require(std::equal(wanted.begin(), wanted.end(), tree.partials[0]), where(group, "tree", dtype, count));
    }
  }
}

void check_any_order(ProcessGroup& group) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    check_scalars<float>(group, op);
    check_scalars<double>(group, op);
    check_scalars<std::int8_t>(group, op);
    check_scalars<std::int16_t>(group, op);
    check_scalars<std::int32_t>(group, op);
    check_scalars<std::int64_t>(group, op);
    check_scalars<std::uint8_t>(group, op);
  }
  // Halves, which a library may lack: 1 + 1 + ... is exact.
  std::vector<std::uint16_t> ones(100, 0x3c00);
  const Buffer halves{.data = ones.data(), .count = ones.size(), .dtype = DType::kFloat16};
  group.all_reduce(halves, {ReduceOp::kMax, false})->wait();
  require(ones == std::vector<std::uint16_t>(100, 0x3c00), where(group, "max", DType::kFloat16, 100));
}

void check_refusals(ProcessGroup& group) {
  const int n = group.size();
  const std::string name(group.backend());
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
  refused<BadConfig>(group, {"itself", name}, [&] { group.send(buffer_of(whole), group.rank()); });
  refused<BadInput>(group, {"f32 by bxor"}, [&] { group.all_reduce(whole, ReduceOp::kBxor); });
  refused<BadInput>(group, {"i32 by avg"}, [&] {
    group.reduce_scatter({.data = values.data(), .count = values.size(), .dtype = DType::kInt32},
                         {.data = part.data(), .count = part.size(), .dtype = DType::kInt32}, ReduceOp::kAvg);
  });
  refused<BadInput>(group, {"f32 has no 1e+300"},
                    [&] { group.all_reduce(whole, Reduction::premul_sum(1e300)); });
  group.barrier()->wait();
}

void check_works(ProcessGroup& group) {
  std::vector<std::vector<float>> values(20, std::vector<float>(3001, 1));
  std::vector<std::vector<float>> moved(20, std::vector<float>(3001, static_cast<float>(group.rank())));
  std::vector<std::shared_ptr<Work>> works;
  for (auto& v : values) works.push_back(group.all_reduce(std::span(v)));
  for (auto& v : moved) works.push_back(group.broadcast(std::span(v), group.size() - 1));
  while (!works.front()->is_completed()) std::this_thread::yield();
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

namespace {

using Counts = std::vector<std::size_t>;

/// Elements that rank `from` gives rank `to`, of 97 kinds of patterns: small, none, and larger than a stage.
std::size_t given(int from, int to, std::size_t scale) {
  const auto mixed = index(from) * 3 + index(to) * 5;
  return mixed % 4 == 1 ? 0 : mixed % 7 * scale + mixed % 3;
}

Counts parts_of(int ranks, std::size_t scale) {
  Counts counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(given(r, r, scale));
  return counts;
}

/// Where the part of `rank` begins.
std::ptrdiff_t begin_of(const Counts& counts, int rank, std::size_t element) {
  std::size_t at = 0;
  for (int r = 0; r < rank; ++r) at += counts[index(r)];
  return static_cast<std::ptrdiff_t>(at * element);
}

void check_uneven_parts(ProcessGroup& group, DType dtype, std::size_t scale) {
  const int me = group.rank(), n = group.size();
  const std::size_t element = element_size(dtype);
  const Counts counts = parts_of(n, scale);
  const std::size_t own = counts[index(me)],
                    total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto fails = [&](const char* what) { return where(group, what, dtype, total); };

  Bytes wanted;
  for (int r = 0; r < n; ++r) {
    const Bytes one = values_of(r, counts[index(r)], dtype);
    wanted.insert(wanted.end(), one.begin(), one.end());
  }
  Bytes mine = values_of(me, own, dtype), all(total * element);
  group.all_gather(buffer(mine, dtype), buffer(all, dtype), counts)->wait();
  require(all == wanted, fails("uneven all_gather"));
  std::fill(all.begin(), all.end(), std::byte{0});
  std::copy(mine.begin(), mine.end(), all.begin() + begin_of(counts, me, element));
  const Buffer inside{.data = all.data() + begin_of(counts, me, element), .count = own, .dtype = dtype};
  group.all_gather(me % 2 == 0 ? inside : buffer(mine, dtype), buffer(all, dtype), counts)->wait();
  require(all == wanted, fails("uneven all_gather in place"));

  const Bytes sum = native_sum(n, total, dtype, ReduceOp::kSum);
  Bytes input = values_of(me, total, dtype), part(own * element);
  const auto at = sum.begin() + begin_of(counts, me, element);
  const Bytes wanted_part(at, at + static_cast<std::ptrdiff_t>(part.size()));
  group.reduce_scatter(buffer(input, dtype), buffer(part, dtype), counts, ReduceOp::kSum)->wait();
  require(part == wanted_part, fails("uneven reduce_scatter"));
  require(input == values_of(me, total, dtype), fails("input of an uneven reduce_scatter"));
  const Buffer place{.data = input.data() + begin_of(counts, me, element), .count = own, .dtype = dtype};
  group.reduce_scatter(buffer(input, dtype), place, counts, ReduceOp::kSum)->wait();
  require(own == 0 || std::memcmp(place.data, wanted_part.data(), part.size()) == 0,
          fails("uneven reduce_scatter in place"));

  Counts out, in;
  Bytes to_all, from_all;
  for (int r = 0; r < n; ++r) {
    out.push_back(given(me, r, scale));
    in.push_back(given(r, me, scale));
    const Bytes to = values_of(me * n + r, out.back(), dtype), from = values_of(r * n + me, in.back(), dtype);
    to_all.insert(to_all.end(), to.begin(), to.end());
    from_all.insert(from_all.end(), from.begin(), from.end());
  }
  Bytes got(from_all.size());
  group.all_to_all(buffer(to_all, dtype), out, buffer(got, dtype), in)->wait();
  require(got == from_all, fails("uneven all_to_all"));
}

void check_any_source(ProcessGroup& group) {
  const int me = group.rank(), n = group.size();
  if (n == 1) return;
  for (const std::size_t count : {0, 1, 30000}) {  // an empty message has a sender, too
    Bytes mine = values_of(me, count, DType::kFloat32);
    if (me != 0) {
      group.send(buffer(mine, DType::kFloat32), 0, 9)->wait();
    } else {
      std::vector<bool> seen(index(n));
      for (int i = 1; i < n; ++i) {
        Bytes got(mine.size());
        const auto work = group.recv(buffer(got, DType::kFloat32), kAnyRank, 9);
        work->wait();
        const int from = work->source();
        require(from > 0 && from < n && !seen[index(from)], "the source of a message");
        seen[index(from)] = true;
        require(got == values_of(from, count, DType::kFloat32), "a message from any rank");
      }
    }
    group.barrier()->wait();
  }
}

}  // namespace

void check_uneven(ProcessGroup& group) {
  for (const DType dtype : {DType::kFloat32, DType::kUInt8, DType::kFloat64}) {
    for (const std::size_t scale : {0, 1, 700, 40000}) check_uneven_parts(group, dtype, scale);
  }
  check_any_source(group);
  const int n = group.size();
  std::vector<float> values(4), more(4);
  const std::vector<std::size_t> short_list(index(n) + 1, 0);
  refused<BadInput>(group, {"all_gather_v", "counts of the output"},
                    [&] { group.all_gather(values, more, short_list); });
  std::vector<std::size_t> wrong(index(n), 1);
  wrong[index(group.rank())] = 5;
  refused<BadInput>(group, {"reduce_scatter_v"}, [&] { group.reduce_scatter(values, more, wrong); });
  group.barrier()->wait();
}

void check_new_dtypes(ProcessGroup& group) {
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
  std::vector<std::complex<double>> gathered(300 * index(group.size()));
  group.all_gather(c, gathered)->wait();
  require(gathered.back() == c.back(), "complex numbers are moved");
  const auto unsigned_ones = [&]<class T>(T big) {
    std::vector<T> values(100, static_cast<T>(big - static_cast<T>(group.rank())));
    group.all_reduce(values, ReduceOp::kMax)->wait();
    require(values.front() == big, "the largest of unsigned numbers");
  };
  unsigned_ones(std::uint16_t{65535});
  unsigned_ones(std::uint32_t{4294967295});
  unsigned_ones(std::uint64_t{18446744073709551615U});
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    // 1, of which up to 8 are added without rounding.
    Bytes ones(100, std::byte{dtype == DType::kFloat8E4M3 ? std::uint8_t{0x38} : std::uint8_t{0x3c}});
    const Bytes one = ones;
    group.all_reduce(buffer(ones, dtype), ReduceOp::kAvg)->wait();
    require(ones == one, where(group, "mean", dtype, 100));
    group.all_reduce(buffer(ones, dtype), {ReduceOp::kMax, false})->wait();
    require(ones == one, where(group, "max", dtype, 100));
  }
}

}  // namespace troupe::collectives::testing
