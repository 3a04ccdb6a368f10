// Values to bytes and back: every kind of value, bit for bit; and any bytes at all give a value or an error,
// for little memory.
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <set>
#include <unordered_map>

#include "runtime/core/random.hpp"
#include "runtime/wire/messages.hpp"
#include "tests/runtime/wire/allocations.hpp"

using namespace troupe;
using wire::Bytes;
using wire::ByteView;

namespace {

enum class Colour : std::uint8_t { kRed, kGreen, kBlue };
constexpr Colour troupe_last(Colour) {
  return Colour::kBlue;
}

struct Empty {
  bool operator==(const Empty&) const = default;
};
struct Point {
  float x = 0, y = 0, z = 0;
  bool operator==(const Point&) const = default;
};
struct Padded {
  std::uint8_t small = 1;
  std::uint64_t large = 2;
  bool operator==(const Padded&) const = default;
};
struct Everything {
  bool flag = true;
  std::int8_t byte = -1;
  std::uint64_t number = std::numeric_limits<std::uint64_t>::max();
  double real = -0.0;
  Colour colour = Colour::kBlue;
  std::string text = std::string("with\0zero", 9);
  Bytes bytes{std::byte{1}, std::byte{255}};
  std::vector<float> floats{1.5F, -0.0F, std::numeric_limits<float>::denorm_min()};
  std::vector<bool> flags{true, false, true};
  std::vector<std::string> names{"", "a name that is long enough to be on the heap"};
  std::vector<Padded> padded{{3, 4}, {5, 6}};
  std::array<std::int32_t, 3> triple{1, 2, 3};
  std::map<std::string, std::vector<int>> map{{"a", {1}}, {"b", {}}};
  std::unordered_map<int, std::string> index{{1, "one"}, {2, "two"}};
  std::set<std::uint16_t> set{7, 9};
  std::optional<std::string> there = "yes";
  std::optional<Point> missing;
  std::pair<int, std::string> pair{3, "three"};
  std::tuple<> nothing;
  std::variant<std::monostate, Point, std::string> one_of = Point{1, 2, 3};
  std::vector<Empty> empties{{}, {}, {}};
  std::chrono::milliseconds wait{1500};
  std::deque<std::int16_t> deque{-5, 5};
  std::list<std::pair<Point, Empty>> list{{{1, 1, 1}, {}}};
  bool operator==(const Everything&) const = default;
};

/// Lists its fields, being no aggregate.
class Account {
 public:
  Account() = default;
  Account(std::string owner, std::int64_t balance) : owner_(std::move(owner)), balance_(balance) {}
  auto troupe_fields() { return std::tie(owner_, balance_); }
  bool operator==(const Account&) const = default;

 private:
  std::string owner_;
  std::int64_t balance_ = 0;
};

/// Travels as its bytes.
struct Tensor {
  std::vector<std::uint32_t> shape;
  std::shared_ptr<std::vector<float>> storage = std::make_shared<std::vector<float>>();
};

struct Tree {
  int value = 0;
  std::vector<Tree> children;
};
struct Chain {
  int value = 0;
  std::unique_ptr<Chain> next;
};

std::size_t depth_of(const Tree& tree) {
  return tree.children.empty() ? 1 : 1 + depth_of(tree.children[0]);
}

/// Not inlined: GCC 12 warns of a read beyond the bytes that there is not.
template <class T>
[[gnu::noinline]] bool same_after_the_way(const T& value) {
  const auto back = wire::decode<T>(wire::encode(value));
  return back.value() == value;
}

}  // namespace

template <>
struct troupe::wire::Codec<Tensor> {
  static void encode(Writer& to, const Tensor& tensor) {
    write(to, tensor.shape);
    to.append_count(tensor.storage->size());
    to.append(std::as_bytes(std::span(*tensor.storage)));
  }
  static bool decode(Reader& from, Tensor& tensor) {
    std::uint32_t count = 0;
    ByteView bytes;
    if (!read(from, tensor.shape) || !from.read_count(count, sizeof(float))) return false;
    if (!from.view(bytes, count * sizeof(float))) return false;
    std::size_t elements = 1;
    for (const auto n : tensor.shape) elements *= n;
    if (elements != count) return from.fail("a tensor's shape does not fit its elements");
    tensor.storage->resize(count);
    std::memcpy(tensor.storage->data(), bytes.data(), bytes.size());
    return true;
  }
};

TEST_CASE("every kind of value is the same after the way") {
  const Everything value;
  CHECK(same_after_the_way(value));
  const auto back = wire::decode<Everything>(wire::encode(value)).value();
  CHECK(std::signbit(back.real));
  CHECK(std::signbit(back.floats[1]));
  CHECK(same_after_the_way(Account("somebody", -3)));
  CHECK(same_after_the_way(std::vector<Account>{{"a", 1}, {"b", 2}}));
  CHECK(same_after_the_way(std::array<std::string, 2>{"x", "y"}));
  CHECK(same_after_the_way(std::multimap<int, int>{{1, 2}, {1, 3}}));
  CHECK(same_after_the_way(std::numeric_limits<std::int64_t>::min()));
}

TEST_CASE("floating point crosses bit for bit, not-a-numbers too") {
  SeededRandom random(5);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bits = random.next();
    CHECK(std::bit_cast<std::uint64_t>(
              wire::decode<double>(wire::encode(std::bit_cast<double>(bits))).value()) == bits);
    const auto half = static_cast<std::uint32_t>(bits);
    const auto back =
        wire::decode<std::vector<float>>(wire::encode(std::vector{std::bit_cast<float>(half)})).value();
    CHECK(std::bit_cast<std::uint32_t>(back[0]) == half);
  }
}

TEST_CASE("numbers cost their bytes and nothing else") {
  // MessagePack sent a float as 5 bytes, and held 24 bytes a value while it decoded.
  CHECK(wire::encode(std::vector<float>(1'000'000, 0.1F)).size() == 4'000'004);
  CHECK(wire::encode(std::vector<Point>(1000)).size() == 12'004);
  CHECK(wire::encode(std::vector<Padded>(1000)).size() == 9'004);  // fields, not memory: no padding travels
  CHECK(wire::encode(Bytes(500)).size() == 504);
  CHECK(wire::encode(std::string(500, 'x')).size() == 504);
  CHECK(wire::encode(ActorAddress{{1}, {2}, {3}}).size() == 24);
  CHECK(wire::encode(Empty{}).size() == 1);

  const Bytes floats = wire::encode(std::vector<float>(1'000'000, 0.1F));
  bytes_asked_for = 0;
  const auto back = wire::decode<std::vector<float>>(floats);
  CHECK(bytes_asked_for < 4'100'000);
  CHECK(back->size() == 1'000'000);
}

TEST_CASE("the bytes are those of the README") {
  struct Page {
    std::uint16_t number = 0x0102;
    bool flag = true;
    Colour colour = Colour::kGreen;
    std::string text = "ab";
    std::map<std::uint8_t, std::uint8_t> map{{5, 6}};
    std::array<std::uint16_t, 2> array{7, 8};
    Empty empty;
    std::optional<std::uint8_t> there = 9, missing;
    std::variant<std::monostate, std::uint32_t> one_of = 10U;
    std::chrono::seconds wait{11};
    float real = 1;
  };
  const int expected[] = {2, 1, 1, 1, 2,  0, 0, 0, 'a', 'b', 1, 0, 0, 0, 5, 6, 7, 0, 8,    0,   0,
                          1, 9, 0, 1, 10, 0, 0, 0, 11,  0,   0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f};
  Bytes bytes;
  for (const int byte : expected) bytes.push_back(static_cast<std::byte>(byte));
  CHECK(wire::encode(Page{}) == bytes);
}

TEST_CASE("views are sent as what they view") {
  const std::vector<double> numbers{1, 2, 3};
  CHECK(wire::encode(std::span(numbers)) == wire::encode(numbers));
  CHECK(wire::encode(std::string_view("text")) == wire::encode(std::string("text")));
}

TEST_CASE("a type may say itself how it travels") {
  Tensor tensor{{2, 3}, std::make_shared<std::vector<float>>(6, 2.5F)};
  const Bytes bytes = wire::encode(std::vector{tensor});
  CHECK(bytes.size() == 4 + 12 + 4 + 24);
  const auto back = wire::decode<std::vector<Tensor>>(bytes).value();
  CHECK(*back[0].storage == *tensor.storage);
  tensor.shape = {7};
  const auto wrong = wire::decode<Tensor>(wire::encode(tensor));
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.error().why.find("shape does not fit") != std::string::npos);
}

TEST_CASE("what is wrong with the bytes is said, with the type and the place") {
  const auto failed = [](const auto& result, const std::string& why) {
    REQUIRE_FALSE(result.ok());
    CAPTURE(result.error().message());
    CHECK(result.error().code == ErrorCode::kBadInput);
    CHECK(result.error().message().find(why) != std::string::npos);
  };
  failed(wire::decode<int>(Bytes{}), "cannot decode a int: it ends too early, at byte 0 of 0");
  failed(wire::decode<int>(wire::encode(std::int64_t{1})), "bytes follow its end, at byte 4 of 8");
  failed(wire::decode<bool>(Bytes{std::byte{2}}), "a bool is 0 or 1");
  failed(wire::decode<Empty>(Bytes{std::byte{2}}), "zero byte");
  failed(wire::decode<Colour>(Bytes{std::byte{3}}), "no such value");
  failed(wire::decode<std::variant<int, bool>>(Bytes{std::byte{2}}), "index of a variant is unknown");
  failed(wire::decode<std::optional<int>>(Bytes{std::byte{7}}), "a bool is 0 or 1");
  const Bytes twice = wire::encode(std::vector<std::pair<int, int>>{{1, 2}, {1, 3}});
  failed(wire::decode<std::map<int, int>>(twice), "a key is there twice");
  failed(wire::decode<std::set<int>>(wire::encode(std::vector<int>{4, 4})), "a key is there twice");
}

TEST_CASE("a count is believed only as far as the bytes go") {
  // Four bytes that claim four billion elements: no memory is taken for the claim.
  const Bytes huge(4, std::byte{0xff});
  bytes_asked_for = 0;
  CHECK_FALSE(wire::decode<std::vector<std::uint64_t>>(huge).ok());
  CHECK_FALSE(wire::decode<std::vector<std::string>>(huge).ok());
  CHECK_FALSE(wire::decode<std::string>(huge).ok());
  CHECK_FALSE(wire::decode<std::map<int, int>>(huge).ok());
  CHECK_FALSE(wire::decode<std::vector<Empty>>(huge).ok());
  CHECK(bytes_asked_for < 10'000);
  // As many elements as bytes, the first of which is broken: a few times the message, not 32 times.
  Bytes lying(1 << 20, std::byte{0xff});
  const std::uint32_t count = (1 << 20) / 4 - 1;
  std::memcpy(lying.data(), &count, sizeof count);
  bytes_asked_for = 0;
  CHECK_FALSE(wire::decode<std::vector<std::string>>(lying).ok());
  CHECK(bytes_asked_for < 5 << 20);
}

TEST_CASE("a recursive type goes 32 deep and no deeper, on either side") {
  Tree tree;
  const auto grow = [](Tree& root, std::size_t levels) {
    Tree* at = &root;
    for (std::size_t i = 0; i < levels; ++i) at = &at->children.emplace_back();
  };
  grow(tree, 10);
  CHECK(depth_of(wire::decode<Tree>(wire::encode(tree)).value()) == 11);
  Chain chain;
  chain.next = std::make_unique<Chain>();
  chain.next->value = 7;
  CHECK(wire::decode<Chain>(wire::encode(chain)).value().next->value == 7);
  Tree deep;
  grow(deep, 40);
  CHECK_THROWS_AS(wire::encode(deep), LimitExceeded);
  // Bytes that nest for ever: a count of one in a count of one.
  Bytes nested;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint32_t value_and_count[] = {0, 1};
    const auto* from = reinterpret_cast<const std::byte*>(value_and_count);
    nested.insert(nested.end(), from, from + sizeof value_and_count);
  }
  const auto back = wire::decode<Tree>(nested);
  REQUIRE_FALSE(back.ok());
  CHECK(back.error().why.find("32 deep") != std::string::npos);
}

TEST_CASE("a value that is cut anywhere is an error") {  // changed bytes: tests/fuzz, call_arguments
  const Bytes whole = wire::encode(Everything{});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(wire::decode<Everything>(ByteView(whole).first(size)).ok());
  }
}

TEST_CASE("every control message is the same after the way") {
  wire::SpawnAsk ask{9, {{1}, "Counter", "the counter", "payload", {10'000, true, {3}}}};
  wire::FrameHeader header;
  const Bytes body = wire::encode_control(ask, header);
  const auto back = wire::decode_control(header, body).value();
  CHECK(std::get<wire::SpawnAsk>(back).spec == ask.spec);
  header.id = 1000;
  CHECK_FALSE(wire::decode_control(header, body).ok());
}
