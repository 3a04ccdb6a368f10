// Objects that leave memory for disk and come back: which and when, and the files.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/core/random.hpp"
#include "runtime/objects/spill_files.hpp"
#include "runtime/objects/spill_table.hpp"

using namespace troupe;
using namespace troupe::objects;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

SpillTable::MayLeave all_but(std::set<std::uint64_t> viewed) {
  return [viewed = std::move(viewed)](std::uint64_t number) { return !viewed.contains(number); };
}
std::vector<std::uint64_t> numbers_of(const std::vector<SpillTable::Spill>& chosen) {
  std::vector<std::uint64_t> numbers;
  for (const auto& one : chosen) numbers.push_back(one.number);
  return numbers;
}

wire::Bytes filled(std::size_t bytes, std::uint64_t seed) {
  wire::Bytes all(bytes);
  SeededRandom random(seed);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(all.data() + i, &word, 8);
  }
  return all;
}
Result<wire::Bytes> read_all(const SpillFiles& files, const SpillFiles::Place& place) {
  wire::Bytes all, part;
  while (all.size() < place.bytes) {
    auto got = files.read(place, all.size(), part);
    if (!got) return got.error();
    all.insert(all.end(), got->begin(), got->end());
  }
  return all;
}
std::string folder() {
  return std::filesystem::temp_directory_path().string();
}

}  // namespace

TEST_CASE("The least recently used objects leave, but none that is viewed") {
  SpillTable table;
  for (std::uint64_t n = 1; n <= 4; ++n) table.add(n, 100 * kMiB);
  CHECK(table.want(1) == SpillTable::Want::kHere);
  CHECK(numbers_of(table.choose(150 * kMiB, all_but({2}))) == std::vector<std::uint64_t>{3, 4});
  CHECK(table.bytes_in_memory() == 200 * kMiB);
  CHECK_FALSE(table.left(3));
  table.stays(4);
  CHECK(table.bytes_in_memory() == 300 * kMiB);
  CHECK(table.on_disk() == 1);
  CHECK(table.choose(kMiB, all_but({1, 2, 4})).empty());
}

TEST_CASE("Small objects leave together, and so fill a file") {
  SpillTable table;
  for (std::uint64_t n = 1; n <= 400; ++n) table.add(n, kMiB);
  CHECK(table.choose(kMiB, all_but({})).size() == 64);
  SpillTable few;
  for (std::uint64_t n = 1; n <= 8; ++n) few.add(n, kMiB);
  CHECK(few.choose(kMiB, all_but({})).size() == 2);  // not all of a small store for one
}

TEST_CASE("An object that came back leaves again without being written") {
  SpillTable table;
  table.add(1, kMiB);
  CHECK(table.choose(1, all_but({})).at(0).write);
  CHECK_FALSE(table.left(1));
  CHECK(table.want(1) == SpillTable::Want::kRead);
  CHECK(table.want(1) == SpillTable::Want::kComes);  // one read for all
  table.did_not_come(1);
  CHECK(table.want(1) == SpillTable::Want::kRead);
  table.came(1, kMiB / 2);  // in memory that fits it better
  CHECK(table.bytes_in_memory() == kMiB / 2);
  CHECK(table.want(1) == SpillTable::Want::kHere);
  CHECK_FALSE(table.choose(1, all_but({})).at(0).write);
}

TEST_CASE("Whatever happens to objects, each is somewhere, and whoever wants one gets it") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    SeededRandom random(seed);
    SpillTable table;
    std::map<std::uint64_t, std::uint64_t> alive;  // and their bytes
    std::set<std::uint64_t> leaving, coming, waited_for, written;
    std::uint64_t last = 0;
    const auto any_of = [&](const auto& in) {
      auto at = in.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random.next() % in.size()));
      return *at;
    };
    const auto step = [&](std::uint64_t what, bool may_fail) {
      if (what == 0) {
        alive[++last] = 1 + random.next() % 100;
        table.add(last, alive[last]);
      } else if (what == 1 && !alive.empty()) {
        const std::uint64_t number = any_of(alive).first;
        alive.erase(number), written.erase(number), waited_for.erase(number);
        table.erase(number);
      } else if (what == 2) {
        const std::uint64_t viewed = alive.empty() ? 0 : any_of(alive).first;
        for (const auto& one : table.choose(random.next() % 200, all_but({viewed}))) {
          REQUIRE(one.number != viewed);
          REQUIRE(one.write == !written.contains(one.number));
          REQUIRE(one.bytes == alive.at(one.number));
          REQUIRE(leaving.insert(one.number).second);
        }
      } else if (what == 3 && !leaving.empty()) {
        const std::uint64_t number = any_of(leaving);
        leaving.erase(number);
        if (may_fail && random.next() % 3 == 0) {
          table.stays(number);
          waited_for.erase(number);
        } else if (table.left(number)) {
          REQUIRE(coming.insert(number).second);
          written.insert(number);
        } else if (alive.contains(number)) {
          REQUIRE_FALSE(waited_for.contains(number));
          written.insert(number);
        }
      } else if (what == 4 && !alive.empty()) {
        const std::uint64_t number = any_of(alive).first;
        const auto want = table.want(number);
        if (want == SpillTable::Want::kRead) REQUIRE(coming.insert(number).second);
        if (want != SpillTable::Want::kHere) waited_for.insert(number);
        if (want == SpillTable::Want::kComes) REQUIRE((leaving.contains(number) || coming.contains(number)));
      } else if (what == 5 && !coming.empty()) {
        const std::uint64_t number = any_of(coming);
        coming.erase(number);
        if (may_fail && random.next() % 3 == 0) {
          table.did_not_come(number);
        } else {
          const std::uint64_t bytes = 1 + random.next() % 100;
          if (alive.contains(number)) alive[number] = bytes;
          table.came(number, bytes);
        }
        waited_for.erase(number);  // it is there, or they are told
      }
    };
    for (int i = 0; i < 200; ++i) step(random.next() % 6, true);
    while (!leaving.empty()) step(3, false);
    while (!coming.empty()) step(5, false);
    CHECK(waited_for.empty());
    CHECK(table.size() == alive.size());
    for (const auto& [number, bytes] : alive) table.erase(number);
    CHECK(table.bytes_in_memory() == 0);
    CHECK(table.size() == 0);
  }
}

TEST_CASE("Objects in files are what they were, and files go with their last object") {
  SpillFiles files(folder());
  std::vector<wire::Bytes> values;
  std::vector<SpillFiles::Place> places;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{kMiB}, std::size_t{3 * kMiB + 17}, std::size_t{300'000}}) {
    values.push_back(filled(bytes, bytes));
    places.push_back(files.write(values.back()).value());
  }
  CHECK(files.files() == 1);
  struct stat info {};
  REQUIRE(::fstat(files.descriptor(places[0].file), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(info.st_nlink == 0);  // the kernel removes it with the process
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(read_all(files, places[i]).value() == values[i]);
  wire::Bytes part;
  const auto middle = files.read(places[2], 2 * kMiB + 5, part).value();
  CHECK(std::memcmp(middle.data(), values[2].data() + 2 * kMiB + 5, middle.size()) == 0);
  files.drop(places[2]);
  CHECK(read_all(files, places[3]).value() == values[3]);
  for (const std::size_t i : {0, 1, 3}) files.drop(places[i]);
  CHECK(files.files() == 0);
}

TEST_CASE("A file that was changed is found out, and named") {
  SpillFiles files(folder());
  const auto value = filled(3 * kMiB, 1);
  const auto place = files.write(value).value();
  const char other = static_cast<char>(value[kMiB + 7] ^ std::byte{1});
  const int fd = files.descriptor(place.file);
  REQUIRE(::pwrite(fd, &other, 1, static_cast<off_t>(place.offset + kMiB + 7)) == 1);
  const auto read = read_all(files, place);
  REQUIRE_FALSE(read);
  CHECK(read.error().code == ErrorCode::kCorrupt);
  CHECK(read.error().message().find("/fd/" + std::to_string(fd) + " in " + folder()) != std::string::npos);
  REQUIRE(::ftruncate(fd, static_cast<off_t>(kMiB / 2)) == 0);
  CHECK(read_all(files, place).error().code == ErrorCode::kCorrupt);
}

TEST_CASE("A full disk is an error, and what was written before is there") {
  // A limit on a file's size stands for the disk's end.
  SpillFiles files(folder());
  const auto first = filled(2 * kMiB, 1);
  const auto place = files.write(first).value();
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit low = before;
  low.rlim_cur = 4 * kMiB;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const auto failed = files.write(filled(3 * kMiB, 2));
  const auto fits = files.write(filled(kMiB, 3));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, SIG_DFL);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::kIo);
  CHECK(failed.error().message().find(folder()) != std::string::npos);
  CHECK(read_all(files, place).value() == first);
  CHECK(read_all(files, fits.value()).value() == filled(kMiB, 3));
  CHECK(SpillFiles("/no/such/folder").write(first).error().message().find("TROUPE_SPILL_FOLDER") !=
        std::string::npos);
}
