/// What calls refuse before anybody takes part.

#include "collectives/check_buffers.hpp"

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
  const Call call{"do it", 1, 4, DeviceKind::kCpu};
  struct Row {
    Parts parts;
    Buffer input, output;
    const char* why;  ///< null: right
  };
  const Row rows[] = {
      {Parts::kGathered, at(0, 3), at(1024, 12), nullptr},
      {Parts::kGathered, at(0, 0), at(0, 0), nullptr},
      {Parts::kGathered, {}, {}, nullptr},
      {Parts::kGathered, at(0, 3), at(1024, 11), "3 elements and the output 11, with 4 ranks"},
      {Parts::kGathered, at(0, 3), at(1024, 16), "the output holds size() x the input"},
      {Parts::kGathered, at(0, 3), at(1024, 12, DType::kInt32), "the input has f32 and the output i32"},
      {Parts::kGathered, at(12, 3), at(0, 12), nullptr},  // in place, as part 1
      {Parts::kGathered, at(0, 3), at(0, 12), "overlap"},
      {Parts::kGathered, at(44, 3), at(0, 12), "overlap"},
      {Parts::kGathered, at(48, 3), at(0, 12), nullptr},  // right behind
      {Parts::kScattered, at(0, 12), at(1024, 3), nullptr},
      {Parts::kScattered, at(0, 12), at(12, 3), nullptr},  // in place
      {Parts::kScattered, at(0, 12), at(24, 3), "overlap"},
      {Parts::kScattered, at(0, 13), at(1024, 3), "the input holds size() x the output"},
      {Parts::kScattered, at(0, 3), at(1024, 12), "the input holds size() x the output"},
      {Parts::kExchanged, at(0, 8), at(1024, 8), nullptr},
      {Parts::kExchanged, at(0, 8), at(1024, 12), "both hold size() parts"},
      {Parts::kExchanged, at(0, 7), at(1024, 7), "both hold size() parts"},
      {Parts::kExchanged, at(0, 8), at(0, 8), "overlap"},
      {Parts::kExchanged, {nullptr, 8, DType::kFloat32}, at(0, 8), "the input is null and has 8 elements"},
      {Parts::kExchanged, at(0, 8), {nullptr, 8, DType::kFloat32}, "the output is null and has 8 elements"},
      {Parts::kExchanged, at(2, 8), at(1024, 8), "the input is not aligned to its elements (f32)"},
      {Parts::kExchanged, at(0, 8), at(1028, 8, DType::kFloat64), "the output is not aligned"},
      {Parts::kExchanged, at(0, 8), at(1024, 8, static_cast<DType>(77)), "the output has dtype 77"},
      {Parts::kExchanged,
       at(0, 8),
       {memory, 8, DType::kFloat32, {DeviceKind::kCuda, 0}},
       "memory of the CPU"},
      {Parts::kExchanged, at(0, 8), {memory, 8, DType::kFloat32, {DeviceKind::kCpu, 1}}, "different devices"},
      {Parts::kGathered, at(0, (std::size_t{1} << 62) + 3), at(0, 12), "larger than 2^40"},
      {Parts::kScattered, at(0, ~std::size_t{0}), at(0, 3), "larger than 2^40"},
  };
  for (const Row& row : rows) {
    if (row.why == nullptr) {
      const std::size_t part = check_parts(call, row.parts, row.input, row.output);
      CHECK(part == row.input.count / (row.parts == Parts::kGathered ? 1 : 4));
    } else {
      CHECK_THROWS_WITH(check_parts(call, row.parts, row.input, row.output),
                        Catch::StartsWith("cannot do it: ") && Catch::Contains(row.why));
    }
  }
}

TEST_CASE("a backend says which device it serves") {
  const Call call{"reduce", 0, 2, DeviceKind::kCuda};
  CHECK_THROWS_WITH(check_buffer(call, "buffer", at(0, 1)), Catch::Contains("memory of a CUDA device"));
  CHECK_NOTHROW(check_buffer(call, "buffer", {memory, 1, DType::kFloat32, {DeviceKind::kCuda, 0}, nullptr}));
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
        [&] { group.recv(good, -1, 0); },
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
