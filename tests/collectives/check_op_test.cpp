/// What calls refuse before anybody takes part.

#include "collectives/check_op.hpp"

#include <catch2/catch.hpp>
#include <functional>

#include "runtime/core/error.hpp"
#include "tests/collectives/ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

alignas(64) std::byte memory[4096];

Buffer at(std::size_t offset, std::size_t count, DType dtype = DType::kFloat32) {
  return {memory + offset, count, dtype, {}, nullptr};
}

}  // namespace

TEST_CASE("parts have to fit, whatever the operation") {
  const GroupFacts group{.rank = 1, .size = 4};
  struct Row {
    OpKind kind;
    Buffer input, output;
    const char* why;  ///< null: right
  };
  const Row rows[] = {
      {OpKind::kAllGather, at(0, 3), at(1024, 12), nullptr},
      {OpKind::kAllGather, at(0, 0), at(0, 0), nullptr},
      {OpKind::kAllGather, {}, {}, nullptr},
      {OpKind::kAllGather, at(0, 3), at(1024, 11), "3 elements and the output 11, with 4 ranks"},
      {OpKind::kAllGather, at(0, 3), at(1024, 16), "the output holds size() x the input"},
      {OpKind::kAllGather, at(0, 3), at(1024, 12, DType::kInt32), "the input has f32 and the output i32"},
      {OpKind::kAllGather, at(12, 3), at(0, 12), nullptr},  // in place, as part 1
      {OpKind::kAllGather, at(0, 3), at(0, 12), "overlap"},
      {OpKind::kAllGather, at(44, 3), at(0, 12), "overlap"},
      {OpKind::kAllGather, at(48, 3), at(0, 12), nullptr},  // right behind
      {OpKind::kReduceScatter, at(0, 12), at(1024, 3), nullptr},
      {OpKind::kReduceScatter, at(0, 12), at(12, 3), nullptr},  // in place
      {OpKind::kReduceScatter, at(0, 12), at(24, 3), "overlap"},
      {OpKind::kReduceScatter, at(0, 13), at(1024, 3), "the input holds size() x the output"},
      {OpKind::kReduceScatter, at(0, 3), at(1024, 12), "the input holds size() x the output"},
      {OpKind::kAllToAll, at(0, 8), at(1024, 8), nullptr},
      {OpKind::kAllToAll, at(0, 8), at(1024, 12), "both hold size() parts"},
      {OpKind::kAllToAll, at(0, 7), at(1024, 7), "both hold size() parts"},
      {OpKind::kAllToAll, at(0, 8), at(0, 8), "overlap"},
      {OpKind::kAllToAll, {nullptr, 8, DType::kFloat32}, at(0, 8), "the input is null and has 8 elements"},
      {OpKind::kAllToAll, at(0, 8), {nullptr, 8, DType::kFloat32}, "the output is null and has 8 elements"},
      {OpKind::kAllToAll, at(2, 8), at(1024, 8), "the input is not aligned to its elements (f32)"},
      {OpKind::kAllToAll, at(0, 8), at(1028, 8, DType::kFloat64), "the output is not aligned"},
      {OpKind::kAllToAll, at(0, 8), at(1024, 8, static_cast<DType>(77)), "the output has dtype 77"},
      {OpKind::kAllToAll,
       at(0, 8),
       {memory, 8, DType::kFloat32, {DeviceKind::kCuda, 0}},
       "memory of the CPU"},
      {OpKind::kAllToAll, at(0, 8), {memory, 8, DType::kFloat32, {DeviceKind::kCpu, 1}}, "different devices"},
      {OpKind::kAllGather, at(0, (std::size_t{1} << 62) + 3), at(0, 12), "larger than 2^40"},
      {OpKind::kReduceScatter, at(0, ~std::size_t{0}), at(0, 3), "larger than 2^40"},
  };
  for (const Row& row : rows) {
    Op op{.kind = row.kind, .input = row.input, .output = row.output};
    complete_op(op, group);
    if (row.why == nullptr) {
      CHECK_NOTHROW(check_op(op, group));
      CHECK(op.count == row.input.count / (row.kind == OpKind::kAllGather ? 1 : 4));
    } else {
      CHECK_THROWS_WITH(
          check_op(op, group),
          Catch::StartsWith("cannot " + std::string(name_of(row.kind)) + ": ") && Catch::Contains(row.why));
    }
  }
}

TEST_CASE("an operation that does not exist is refused") {
  const GroupFacts group{.rank = 0, .size = 2};
  for (const int kind : {15, 99, 255}) {
    Op op{.kind = static_cast<OpKind>(kind), .input = at(0, 1), .output = at(0, 1)};
    complete_op(op, group);
    CHECK_THROWS_WITH(check_op(op, group), Catch::Contains("there is no operation " + std::to_string(kind)));
  }
}

TEST_CASE("what one operation of a batch writes no other one reads or writes") {
  const GroupFacts group{.rank = 0, .size = 2};
  const auto refused = [&](std::vector<Op> ops) {
    for (Op& op : ops) complete_op(op, group);
    try {
      check_apart(ops, group);
      return std::string();
    } catch (const BadInput& error) {
      return std::string(error.what());
    }
  };
  const auto sum = [](const Buffer& buffer) { return Op::all_reduce(buffer, ReduceOp::kSum); };
  CHECK_THAT(
      refused({sum(at(0, 4)), sum(at(0, 4))}),
      Catch::Contains("operations 0, all_reduce(sum, 4 x f32), and 1, all_reduce(sum, 4 x f32), overlap"));
  CHECK_THAT(refused({sum(at(64, 4)), Op::recv(at(0, 2), 1), sum(at(76, 4))}),
             Catch::Contains("operations 0, "));
  CHECK_THAT(refused({Op::send(at(0, 100), 1), Op::send(at(8, 2), 1), Op::recv(at(396, 2), 1)}),
             Catch::Contains("operations 0, send"));
  CHECK(
      refused({sum(at(0, 4)), sum(at(16, 4)), Op::recv(at(32, 1), 1), Op::barrier(), sum(at(0, 0))}).empty());
  CHECK(
      refused({Op::send(at(0, 8), 1), Op::send(at(0, 8), 1), Op::send(at(4, 1), 1)}).empty());  // it is read
  CHECK(refused({Op::all_gather(at(0, 2), at(0, 4)), sum(at(16, 1))}).empty());                 // in place
  CHECK(refused({Op::broadcast(at(0, 4), 0), Op::send(at(0, 4), 1)}).empty());  // the root reads
  CHECK_FALSE(refused({Op::broadcast(at(0, 4), 1), Op::send(at(0, 4), 1)}).empty());
  CHECK(refused({sum(at(0, 4))}).empty());
}

TEST_CASE("a group says which device it serves") {
  const GroupFacts group{.size = 2, .device = {DeviceKind::kCuda, 3}};
  const auto check = [&](const Buffer& buffer) {
    Op op = Op::reduce(buffer, {}, 0);
    complete_op(op, group);
    check_op(op, group);
  };
  CHECK_THROWS_WITH(check(at(0, 1)), Catch::Contains("memory of a CUDA device"));
  CHECK_THROWS_WITH(check({memory, 1, DType::kFloat32, {DeviceKind::kCuda, 0}, nullptr}),
                    Catch::Contains("is on cuda:0, and this rank's device is cuda:3"));
  CHECK_NOTHROW(check({memory, 1, DType::kFloat32, {DeviceKind::kCuda, 3}, nullptr}));
}

TEST_CASE("every operation of the native group refuses bad input, and the group stays good") {
  run(2, {}, [](ProcessGroup& group) {
    std::vector<float> one(4), two(8);
    const Buffer null{nullptr, 4, DType::kFloat32, {}, nullptr};
    const Buffer good = buffer_of(std::span(one)), large = buffer_of(std::span(two));
    const Buffer device{one.data(), 4, DType::kFloat32, {DeviceKind::kCuda, 0}, nullptr};
    const Buffer huge{one.data(), ~std::size_t{0} / 2, DType::kFloat32, {}, nullptr};
    const int me = group.rank();
    const std::function<void()> calls[] = {
        [&] { group.all_reduce(null, {}); },
        [&] { group.all_reduce(device, {}); },
        [&] { group.all_reduce(huge, {}); },
        [&] { group.reduce(null, {}, 0); },
        [&] { group.reduce(good, {}, 2); },
        [&] { group.reduce(good, {}, -1); },
        [&] { group.broadcast(null, 0); },
        [&] { group.broadcast(good, 2); },
        [&] { group.gather(null, large, 0); },
        [&] { group.gather(good, good, me); },
        [&] { group.gather(good, large, 7); },
        [&] { group.scatter(large, null, 0); },
        [&] { group.scatter(good, good, me); },
        [&] { group.scatter(large, good, -3); },
        [&] { group.all_gather(good, good); },
        [&] { group.all_gather(large, good); },
        [&] { group.reduce_scatter(good, large, {}); },
        [&] { group.reduce_scatter(device, good, {}); },
        [&] { group.all_to_all(large, large); },
        [&] { group.all_to_all(large, good); },
        [&] { group.send(null, 0, 0); },
        [&] { group.send(good, 2, 0); },
        [&] { group.recv(device, 0, 0); },
        [&] { group.recv(good, -2, 0); },
        [&] { group.send(good, kAnyRank, 0); },
        [&] { group.batch({Op::barrier().within(Duration{-1})}); },
        [&] { group.allocate(huge.count, DType::kInt8); },
        [&] { group.all_reduce_tree(group.allocate_tree(3, DType::kFloat32), Reduction::premul_sum(0.5)); },
        [&] {
          group.allocate(3, DType::kFloat32);
          group.all_reduce_tree({.partials = {}, .count = 3, .dtype = DType::kFloat32, .index = 1}, {});
        },
    };
    for (std::size_t i = 0; i < std::size(calls); ++i) {
      try {
        calls[i]();
      } catch (const Error& e) {
        if (e.code() == ErrorCode::kBadInput || e.code() == ErrorCode::kLimit) continue;
        throw std::runtime_error("call " + std::to_string(i) + " threw " + e.what());
      }
      throw std::runtime_error("call " + std::to_string(i) + " was not refused");
    }
    one = {1, 2, 3, 4};
    group.all_reduce(std::span(one))->wait();
    if (one[3] != 8) throw std::runtime_error("wrong sum");
  });
}
