#include "actors/train/engine/state_transfer.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

/// Three parts, the middle one above a piece, and an empty one.
struct Sample {
  std::vector<std::int64_t> count{7};
  std::vector<float> weight = std::vector<float>((std::size_t{40} << 20) / 4 + 3);
  std::vector<std::uint8_t> bytes{1, 2, 3};
  std::vector<StatePart> parts;
  Sample() {
    std::iota(weight.begin(), weight.end(), 0.5F);
    parts = {{"count", checkpoint::DType::kI64, {}, std::as_bytes(std::span(count))},
             {"weight",
              checkpoint::DType::kF32,
              {static_cast<std::int64_t>(weight.size())},
              std::as_bytes(std::span(weight))},
             {"none", checkpoint::DType::kF32, {0, 4}, {}},
             {"user/bytes", checkpoint::DType::kU8, {3}, std::as_bytes(std::span(bytes))}};
  }
};

std::string sum_up(std::span<const StatePart> parts) {
  std::string text;
  for (const StatePart& part : parts) {
    checkpoint::Xxh3 hash;
    hash.update(part.bytes);
    text += part.name + " " + std::to_string(hash.digest().low) + " ";
  }
  return text;
}

TEST_CASE("a state goes to those that lack it, and to nobody else") {
  // Of two nodes, ranks 1 and 3 have no connection for collectives: a trainer's group had no other, and
  // refused.
  const auto nodes = GENERATE(std::vector<std::vector<int>>{}, std::vector<std::vector<int>>{{0, 1}, {2, 3}});
  const auto body = [](std::shared_ptr<collectives::ProcessGroup> group) -> std::string {
    int pieces = 0;
    const auto progress = [&] { ++pieces; };
    if (group->rank() == 1) {
      const Sample sample;
      send_state(*group, sample.parts, {0, 3}, progress);
      return "sent in " + std::to_string(pieces);
    }
    // It neither gets a byte nor waits for one.
    if (group->rank() == 2) return "took no part";
    const ReceivedState state = receive_state(*group, 1, progress);
    return sum_up(state.parts) + std::to_string(pieces);
  };
  const auto said = fork_ranks(collectives::deal_leaves(4, 4), body, nodes);
  Sample sample;
  std::swap(sample.parts[1], sample.parts[2]);  // as laid out: largest elements first, then by name
  CHECK(said[0] == sum_up(sample.parts) + "5");
  CHECK(said[1] == "sent in 5");
  CHECK(said[2] == "took no part");
  CHECK(said[3] == said[0]);
}

/// Sends as the page says, but for what `change` does to the bytes on their way; returns what the receiver
/// says.
std::string received(
    std::function<void(std::vector<std::byte>& prefix, std::vector<std::byte>& data)> change) {
  return fork_ranks(2, 2, [&](std::shared_ptr<collectives::ProcessGroup> group) -> std::string {
    if (group->rank() == 1) {
      try {
        return sum_up(receive_state(*group, 0, {}).parts);
      } catch (const Error& error) {
        return error.what();
      }
    }
    const std::vector<float> weight{1, 2, 3, 4};
    const std::vector<StatePart> parts{{"w", checkpoint::DType::kF32, {4}, std::as_bytes(std::span(weight))}};
    const auto layout = checkpoint::lay_out_safetensors(parts).value();
    const auto bytes = std::as_bytes(std::span(layout.prefix));
    std::vector<std::byte> prefix(bytes.begin(), bytes.end());
    std::vector<std::byte> data(parts[0].bytes.begin(), parts[0].bytes.end());
    checkpoint::Xxh3 hash;
    hash.update(data);
    std::vector<std::int64_t> digest{std::bit_cast<std::int64_t>(hash.digest().high),
                                     std::bit_cast<std::int64_t>(hash.digest().low)};
    change(prefix, data);
    std::vector<std::int64_t> sizes{static_cast<std::int64_t>(prefix.size()),
                                    static_cast<std::int64_t>(prefix.size() + data.size())};
    const auto send = [&](auto& values) {
      group
          ->send({reinterpret_cast<std::uint8_t*>(values.data()), std::as_bytes(std::span(values)).size(),
                  collectives::DType::kUInt8},
                 1)
          ->wait();
    };
    send(sizes), send(prefix), send(data), send(digest);
    return "sent";
  })[1];
}

TEST_CASE("a part that is not what was sent is found, by name") {
  CHECK(received([](auto&, auto&) {}).starts_with("w "));
  CHECK_THAT(received([](auto&, auto& data) { data[9] ^= std::byte{2}; }),
             Catch::Contains("the hash of 'w' does not hold"));
  CHECK_THAT(received([](auto& prefix, auto&) { prefix[8] = std::byte{'['}; }),
             Catch::Contains("its header does not begin with '{'"));
}

TEST_CASE("a transfer that is given up ends on both sides") {
  const auto said = fork_ranks(2, 2, [](std::shared_ptr<collectives::ProcessGroup> group) -> std::string {
    const Sample sample;
    const auto give_up = [&] {
      group->abort("a newer generation calls");
      throw CollectiveAborted({ErrorCode::kAborted, "given up", "", ""});
    };
    try {
      if (group->rank() == 0) send_state(*group, sample.parts, {1}, give_up);
      if (group->rank() == 1) receive_state(*group, 0, {});
    } catch (const CollectiveAborted&) {
      return "aborted";
    }
    return "whole";
  });
  CHECK(said == std::vector<std::string>{"aborted", "aborted"});
}

TEST_CASE("XXH3-128 is the library's, in one piece and in many") {
  checkpoint::Xxh3 hash;
  CHECK(hash.digest() == checkpoint::Digest128{0x99aa06d3014798d8, 0x6001c324468d497f});  // of nothing
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(mix(1, i));
  hash.update(bytes);
  const auto whole = hash.digest();
  hash.reset();
  for (std::size_t at = 0; at < bytes.size(); at += 777)
    hash.update(std::span(bytes).subspan(at, std::min<std::size_t>(777, bytes.size() - at)));
  CHECK(hash.digest() == whole);
  bytes[50'000] ^= std::byte{1};
  hash.reset();
  hash.update(bytes);
  CHECK_FALSE(hash.digest() == whole);
}

}  // namespace
}  // namespace troupe::train::testing
