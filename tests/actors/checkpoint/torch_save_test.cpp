// What PyTorch's torch.save wrote (golden/make_torch_saved.py), read without LibTorch.
#include "actors/checkpoint/torch_save.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>

namespace troupe::checkpoint {
namespace {

std::vector<std::byte> golden_file(const std::string& name) {
  std::ifstream file(TROUPE_TORCH_SAVED "/" + name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

template <class T>
std::string numbers(std::span<const std::byte> bytes) {
  std::ostringstream text;
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    text << ' ' << +number;
  }
  return text.str();
}

/// Name, type, shape and elements, a line a tensor; 16-bit floats by their bits.
std::string text_of(const TorchSaved& saved) {
  std::ostringstream text;
  for (const TensorView& one : saved.tensors) {
    text << one.name << ' ' << dtype_name(one.dtype) << " [";
    for (const auto extent : one.shape) text << ' ' << extent;
    text << " ]";
    switch (one.dtype) {
      case DType::kF32:
        text << numbers<float>(one.bytes);
        break;
      case DType::kF64:
        text << numbers<double>(one.bytes);
        break;
      case DType::kI64:
        text << numbers<std::int64_t>(one.bytes);
        break;
      case DType::kBool:
        text << numbers<std::uint8_t>(one.bytes);
        break;
      default:
        text << numbers<std::uint16_t>(one.bytes);
    }
    text << '\n';
  }
  return text.str();
}

constexpr const char* kStateDict =
    "a.weight F32 [ 2 3 ] 0 0.25 0.5 0.75 1 1.25\n"
    "a.part F32 [ 3 ] 0.5 0.75 1\n"
    "b.half F16 [ 2 ] 14336 49152\n"
    "b.bfloat BF16 [ 2 ] 16128 49152\n"
    "b.steps I64 [ ] 5\n"
    "b.mask BOOL [ 3 ] 1 0 1\n"
    "c.turned F64 [ 3 2 ] 0 3 1 4 2 5\n"
    "c.none F32 [ 0 4 ]\n";

TEST_CASE("a state dict is read as PyTorch saves it, by any protocol, also within a checkpoint") {
  for (const char* name : {"state_dict.pt", "protocol_4.pt", "checkpoint.pt"}) {
    CAPTURE(name);
    const auto file = golden_file(name);
    CHECK(is_torch_save(file));
    const auto saved = read_torch_save(name, file);
    REQUIRE(saved.ok());
    CHECK(text_of(*saved) == kStateDict);
  }
}

TEST_CASE("a file that has no state dict says what it has") {
  const auto module = golden_file("module.pt");
  const auto refused = read_torch_save("module.pt", module);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().why, Catch::Contains("a whole module"));
  CHECK_FALSE(is_torch_save(std::span(module).first(3)));
  CHECK_THAT(read_torch_save("x", std::span(module).first(100)).error().why,
             Catch::Contains("no zip archive, or not all of one"));
}

TEST_CASE("whatever a byte of it is changed to, it is read or refused") {
  const auto whole = golden_file("checkpoint.pt");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      auto file = whole;
      file[at] ^= static_cast<std::byte>(change);
      const auto saved = read_torch_save("changed", file);
      refused += saved.ok() ? 0 : 1;
      if (saved.ok()) (void)text_of(*saved);  // no element lies outside
    }
  }
  CHECK(refused > 1000);
  for (std::size_t size = 0; size < whole.size(); size += 7)
    CHECK_FALSE(read_torch_save("cut", std::span(whole).first(size)).ok());
}

// Numbers that a bit had changed were loaded without a word.
TEST_CASE("an element that is not as it was written is refused by its checksum") {
  auto file = golden_file("state_dict.pt");
  const std::array<float, 5> elements{0.25F, 0.5F, 0.75F, 1.0F, 1.25F};  // of a.weight
  const auto bytes = std::as_bytes(std::span(elements));
  const auto at = std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
  REQUIRE(at != file.end());
  *at ^= std::byte{1};
  const auto saved = read_torch_save("spoilt.pt", file);
  REQUIRE_FALSE(saved.ok());
  CHECK_THAT(saved.error().why, Catch::Contains("is damaged") && Catch::Contains("data/"));
}

TEST_CASE("what torch.save wrote before it wrote archives is named, and is no safetensors file's length") {
  std::vector<std::byte> file(64);
  const std::array<unsigned char, 15> magic{0x80, 2,    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                            0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
  std::transform(magic.begin(), magic.end(), file.begin(), [](unsigned char c) { return std::byte{c}; });
  CHECK(is_old_torch_save(file));
  CHECK(is_old_torch_save(std::span(file).first(8)));
  CHECK_THAT(read_torch_save("old.pt", file).error().why, Catch::Contains("a pickle without an archive"));
  std::fill(file.begin() + 2, file.begin() + 8, std::byte{0});  // a header of 640 bytes
  CHECK_FALSE(is_old_torch_save(file));
}

/// An archive of data.pkl, and of data/0 where `storage` is not empty.
std::vector<std::byte> archive_of(const std::string& pickle, const std::string& storage = {}) {
  std::string bytes, directory;
  int members = 0;
  const auto number = [](std::string& to, std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i, value >>= 8) to += static_cast<char>(value & 0xff);
  };
  for (const auto& [name, content] : {std::pair<std::string, std::string>("x/data.pkl", pickle),
                                      std::pair<std::string, std::string>("x/data/0", storage)}) {
    if (content.empty()) continue;
    ++members;
    const std::size_t place = bytes.size();
    const auto sizes = [&](std::string& to) {
      number(to, 0, 12);  // flags, method, time, checksum
      number(to, content.size(), 4);
      number(to, content.size(), 4);
      number(to, name.size(), 2);
      number(to, 0, 2);
    };
    number(bytes, 0x04034b50, 4);
    number(bytes, 20, 2);
    sizes(bytes);
    bytes += name + content;
    number(directory, 0x02014b50, 4);
    number(directory, 20, 2);
    number(directory, 20, 2);
    sizes(directory);
    number(directory, 0, 10);
    number(directory, place, 4);
    directory += name;
  }
  const std::size_t begin = bytes.size();
  bytes += directory;
  number(bytes, 0x06054b50, 4);
  number(bytes, 0, 4);
  number(bytes, members, 2);
  number(bytes, members, 2);
  number(bytes, directory.size(), 4);
  number(bytes, begin, 4);
  number(bytes, 0, 2);
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  return {first, first + bytes.size()};
}

TEST_CASE("a pickle that is made to harm is refused, and takes little") {
  const auto why = [](const std::string& pickle) {
    const auto file = archive_of(pickle);
    const auto saved = read_torch_save("x", file);
    return saved.ok() ? "it is read" : saved.error().why;
  };
  CHECK_THAT(why("\x80\x02}."), Catch::Contains("no tensors by name"));
  CHECK_THAT(why("cos\nsystem\nX\x02" + std::string(3, '\0') + "ls\x85R."), Catch::Contains("no dict"));
  CHECK_THAT(why("}r\xff\xff\xff\x7f."), Catch::Contains("keeps a value where it has none"));
  CHECK_THAT(why("(."), Catch::Contains("takes what is not there"));
  CHECK_THAT(why(std::string(300'000, ']') + std::string(299'999, 'a') + "."), Catch::Contains("no dict"));
  CHECK_THAT(why("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a."),  // in itself
             Catch::Contains("no dict"));
  CHECK_THAT(why(std::string(20'000, '(') + "."), Catch::Contains("lists in lists without end"));
  CHECK_THAT(why(std::string(1'100'000, ']') + "."), Catch::Contains("too many values at a time"));
  CHECK_THAT(why("i"), Catch::Contains("an operation that torch.save does not write"));
}

std::string pickled(const std::string& text) {
  std::string bytes = "X";
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return bytes + text;
}

TEST_CASE("a name out of a file is shown without its control characters, and cut") {
  const auto why = [](const std::string& key) {
    const std::string zero("K\0", 2), one("K\1", 2);
    const auto file =
        archive_of("}(" + pickled(key) + "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") +
                   "ctorch\nOddStorage\n" + pickled("0") + "tQ" + zero + "(" + one + "t(" + one + "ttRu.");
    return read_torch_save("x", file).error().why;
  };
  CHECK(why("a\x1b[31m\n") == "'a\\x1b[31m\\x0a' has a torch OddStorage, which is not read");
  CHECK(why(std::string(100'000, 'a')).size() < 1100);
}

// A byte copied a name of any length: 200 kB took 10 GB.
TEST_CASE("a pickle that copies a long name again and again, or makes a tensor of any rank, is refused") {
  const auto why = [](const std::string& pickle) {
    const auto file = archive_of(pickle);
    const auto saved = read_torch_save("x", file);
    return saved.ok() ? "it is read" : saved.error().why;
  };
  const std::string name = pickled(std::string(100'000, 'a'));
  CHECK_THAT(why(name + std::string(100'000, '2') + "."), Catch::Contains("too often"));
  CHECK_THAT(why(name + std::string(100'000, '\x94') + "."), Catch::Contains("too often"));
  const std::string zero("K\0", 2), one("K\1", 2);
  const std::string storage =
      "(" + pickled("storage") + "ctorch\nFloatStorage\n" + pickled("0") + "tQ" + zero;
  const auto tensor_of = [&](int dimensions) {
    std::string ones = "(";
    for (int i = 0; i < dimensions; ++i) ones += one;
    ones += "t";
    return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + ones + ones + "tR.";
  };
  CHECK_THAT(why(tensor_of(64)), Catch::Contains("no dict"));
  CHECK_THAT(why(tensor_of(65)), Catch::Contains("more than 64 dimensions"));
}

/// A number as pickles have it.
std::string int_of(int number) {
  std::string bytes = "J";
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}
std::string tuple_of(const std::vector<int>& numbers) {
  std::string bytes = "(";
  for (const int number : numbers) bytes += int_of(number);
  return bytes + "t";
}
/// The arguments of all that rebuild tensors, up to the strides.
std::string tensor_at(const std::string& storage, const std::vector<int>& sizes,
                      const std::vector<int>& strides) {
  return "((" + pickled("storage") + "c" + storage + "\n" + pickled("0") + "tQ" + int_of(0) +
         tuple_of(sizes) + tuple_of(strides);
}

// It was refused as one that is not in its storage.
TEST_CASE("an expanded tensor has its element as often as it says, within bounds") {
  const auto read = [](const std::vector<int>& sizes, const std::vector<int>& strides) {
    const auto file = archive_of("}" + pickled("w") + "ctorch._utils\n_rebuild_tensor_v2\n" +
                                     tensor_at("torch\nFloatStorage", sizes, strides) + "tRs.",
                                 std::string("\0\0\x80\x3f\0\0\0\x40", 8));
    const auto saved = read_torch_save("x", file);
    return saved.ok() ? text_of(*saved) : saved.error().why;
  };
  CHECK(read({5}, {0}) == "w F32 [ 5 ] 1 1 1 1 1\n");
  CHECK(read({2, 3}, {1, 0}) == "w F32 [ 2 3 ] 1 1 1 2 2 2\n");
  CHECK_THAT(read({3, 3}, {1, 0}), Catch::Contains("not in its storage"));
  CHECK_THAT(read({1 << 30}, {0}), Catch::Contains("share storages so often"));
  CHECK_THAT(read({1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}), Catch::Contains("not in its storage"));
}

// Python's newer ways of making them: nothing was read of either.
TEST_CASE("tensors of types without a storage, and parameters with attributes, are read") {
  const auto read = [](const std::string& value) {
    const auto file = archive_of("}" + pickled("w") + value + "s.", std::string("\1\0\2\1", 4));
    const auto saved = read_torch_save("x", file);
    return saved.ok() ? text_of(*saved) : saved.error().why;
  };
  const auto v3 = [](const std::string& dtype) {
    return "ctorch._utils\n_rebuild_tensor_v3\n" + tensor_at("torch.storage\nUntypedStorage", {2}, {1}) +
           "\x89}" + dtype + "tR";
  };
  CHECK(read(v3("ctorch\nuint16\n")) == "w U16 [ 2 ] 1 258\n");
  CHECK_THAT(read(v3("ctorch\nquint4x2\n")), Catch::Contains("which is not read"));
  CHECK_THAT(read(v3("N")), Catch::Contains("makes a tensor of something else"));
  const std::string data =
      "ctorch._utils\n_rebuild_tensor_v2\n" + tensor_at("torch\nHalfStorage", {2}, {1}) + "tR";
  // Was read with the sign that its bytes have.
  const std::string negated = "ctorch._utils\n_rebuild_tensor_v2\n" +
                              tensor_at("torch\nHalfStorage", {2}, {1}) + "\x89}}" + pickled("neg") +
                              "\x88stR";
  CHECK_THAT(read(negated), Catch::Contains("to be negated"));
  CHECK(read("ctorch._utils\n_rebuild_parameter_with_state\n(" + data + "\x88}}tR") == "w F16 [ 2 ] 1 258\n");
}

}  // namespace
}  // namespace troupe::checkpoint
