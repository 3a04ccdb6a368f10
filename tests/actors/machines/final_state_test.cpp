// The state that a job ended with, or holds, on its way into the program.
#include "actors/train/driver/final_state.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/engine/held_shards.hpp"

namespace troupe::train {
namespace {

constexpr int kShardsOfIt = 2;
constexpr std::size_t kBytesAPiece = 20;

/// A state of four elements that all are `value`: what a shard is, and all of it.
struct FourElements {
  explicit FourElements(float value) { elements.fill(value); }
  StatePart part(int begin, int count) const {
    return {"w",
            checkpoint::DType::kF32,
            {4},
            std::as_bytes(std::span(elements).subspan(static_cast<std::size_t>(begin),
                                                      static_cast<std::size_t>(count)))};
  }
  wire::Bytes shard(int number) const {
    const std::array held{HeldPart{part(2 * number, 2), 2 * number}};
    return write_shard(held);
  }
  wire::Bytes whole() const {
    const std::vector parts{part(0, 4)};
    return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
  }
  std::array<float, 4> elements{};
};

/// A driver whose job comes to another state of as many steps once it was asked `asks` times.
AskForPiece comes_to_another(int asks, bool in_shards) {
  return [left = asks, in_shards](int shard, std::uint64_t offset) mutable {
    const int which = left-- > 0 ? 1 : 2;
    const FourElements state(static_cast<float>(which));
    const wire::Bytes all = in_shards ? state.shard(shard) : state.whole();
    const std::size_t begin = std::min<std::size_t>(all.size(), offset);
    const std::size_t end = std::min(all.size(), begin + kBytesAPiece);
    return FinalPiece{
        static_cast<std::uint64_t>(which),
        in_shards ? kShardsOfIt : 0,
        {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)}};
  };
}

}  // namespace

// Shards of a hold that was lost and of the next one were joined: in a job that is not exact, whose parts
// nobody hashes there, to weights that no trainer ever had.
TEST_CASE("pieces of two states of a job are never joined, of shards or of one file") {
  const bool in_shards = GENERATE(true, false);
  CAPTURE(in_shards);
  const wire::Bytes first = FourElements(1).whole(), second = FourElements(2).whole();
  int whole = 0, refused = 0;
  for (int asks = 0; asks < 20; ++asks) {
    CAPTURE(asks);
    try {
      const wire::Bytes taken = join_pieces(comes_to_another(asks, in_shards));
      CHECK((taken == (asks == 0 ? second : first)));
      ++whole;
    } catch (const Unavailable& error) {
      CHECK_THAT(error.what(), Catch::Contains("come to another state"));
      ++refused;
    }
  }
  CHECK(whole > 2);
  CHECK(refused > 2);
}

TEST_CASE("a state that comes back with other bytes than its holders said is refused, and its part named") {
  std::uint64_t w = 7, b = 8;
  const auto parts = [&] {
    const auto bytes = [](const std::uint64_t& word) { return std::as_bytes(std::span(&word, 1)); };
    return std::vector<StatePart>{{"w", checkpoint::DType::kU64, {1}, bytes(w)},
                                  {"b", checkpoint::DType::kU64, {1}, bytes(b)}};
  };
  const auto said = hash_parts(parts());
  const auto file = [&](std::size_t count) {
    auto some = parts();
    some.resize(count);
    return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(some).value());
  };
  CHECK(check_parts(file(2), said).ok());
  CHECK(check_parts(file(1), said).ok());  // the weights alone
  b = 9;
  REQUIRE_FALSE(check_parts(file(2), said).ok());
  CHECK_THAT(check_parts(file(2), said).error().message(), Catch::Contains("'b' has other bytes"));
  CHECK_FALSE(check_parts({}, said).ok());
}

}  // namespace troupe::train
