// Packages of jobs: what a folder becomes, what is refused where, and what a disk and a sender may do to
// them.
#include "runtime/node/package.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/core/progress.hpp"
#include "runtime/core/random.hpp"
#include "runtime/package/package_shelf.hpp"
#include "runtime/package/package_source.hpp"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

using Kind = PackageEntry::Kind;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "troupe-package-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void write(const std::string& name, const std::string& text, mode_t mode = 0644) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    ::chmod((path + "/" + name).c_str(), mode);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path;
};

std::string noise(std::size_t bytes) {
  SeededRandom random(7);
  std::string text(bytes, 0);
  for (char& c : text) c = static_cast<char>(random.next());
  return text;
}

/// A tree of all that may travel.
struct Tree : Folder {
  Tree() {
    write("run.sh", "#!/bin/sh\necho hello\n", 0755);
    write("src/a.py", "print(1)\n");
    write("src/empty", "");
    write("src-b", "sorts between src and src/");
    write("data/noise", noise(1'500'000));
    fs::create_directories(path + "/results/none");
    fs::create_symlink("src/a.py", path + "/link");
  }
};

wire::Bytes all_of(PackageSource& source, std::size_t most = 700) {
  wire::Bytes bytes;
  while (bytes.size() < source.bytes()) {
    const auto piece = source.read(bytes.size(), most).value();
    REQUIRE_FALSE(piece.empty());
    REQUIRE(piece.size() <= most);
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  }
  return bytes;
}

Result<PackageShelf::Held> bring(PackageShelf& shelf, PackageSource& source) {
  wire::PackagePart part{source.id(), 0, source.bytes(), {}};
  for (;;) {
    auto held = shelf.append(part);
    if (!held || held->whole) return held;
    part.offset = held->next;
    part.bytes = source.read(held->next, kPackagePieceBytes).value();
  }
}

/// The first bytes of a package of that manifest, whatever it says.
std::string refusal(const PackageManifest& manifest) {
  const PackageHead head = package_head(manifest);
  PackageReader reader(head.id);
  const auto fed = reader.feed(head.bytes);
  return fed ? "" : fed.error().why;
}

}  // namespace

TEST_CASE("a folder travels whole: contents, what is executable, empty folders, links within as files") {
  const Tree tree;
  const Folder head, node;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> told;
  auto source = PackageSource::of_folder(tree.path, {}, [&](std::uint64_t done, std::uint64_t total) {
                  told.emplace_back(done, total);
                }).value();
  REQUIRE(told.size() > 2);
  CHECK(std::is_sorted(told.begin(), told.end()));
  CHECK(told.front().first < told.back().first);  // within the large one, too
  CHECK(told.back().first == told.back().second);
  const auto& entries = source.manifest().entries;
  REQUIRE(entries.size() == 10);
  CHECK((entries[1].path == "data/noise" && entries[1].bytes == 1'500'000));
  CHECK((entries[3].path == "results" && entries[3].kind == Kind::kFolder));
  CHECK((entries[5].path == "run.sh" && entries[5].kind == Kind::kExecutable));
  CHECK((entries[2].path == "link" && entries[2].kind == Kind::kFile));

  PackageShelf from(head.path), to(node.path + "/shelf");
  REQUIRE(from.open());
  REQUIRE(to.open());
  REQUIRE(bring(from, source).value().whole);
  CHECK(bring(from, source).value().whole);  // it travels once
  wire::PackageAsk ask{source.id(), 0};
  for (bool whole = false; !whole;) {
    const auto held = to.append(from.read(ask).value()).value();
    ask.offset = held.next;
    whole = held.whole;
  }
  const std::string work = node.path + "/job/work";
  REQUIRE(to.unpack(source.id(), work));
  const auto again = PackageSource::of_folder(work).value();
  CHECK(again.manifest() == source.manifest());
  CHECK(again.id() == source.id());
  CHECK(node.read("job/work/link") == "print(1)\n");
  CHECK_FALSE(fs::is_symlink(work + "/link"));
  CHECK(fs::is_empty(work + "/results/none"));
  CHECK(to.open().value() == std::vector{source.id()});
  to.remove(source.id());
  CHECK(to.read(ask).error().code == ErrorCode::kUnavailable);
  CHECK(to.unpack(source.id(), work + "2").error().code == ErrorCode::kUnavailable);
  CHECK(fs::exists(work));  // what was unpacked is the job's own
}

TEST_CASE("the same folder has the same id, and every change another") {
  const Tree tree;
  const auto id = [&] { return PackageSource::of_folder(tree.path).value().id(); };
  const std::string before = id();
  CHECK(id() == before);
  ::chmod((tree.path + "/src/a.py").c_str(), 0755);
  const std::string executable = id();
  CHECK(executable != before);
  tree.write("src/a.py", "print(2)\n", 0755);
  CHECK(id() != executable);
}

TEST_CASE("what leaves the folder, is no file, or is too large is refused before anything of it is read") {
  const auto why = [](const Folder& folder) {
    const auto made = PackageSource::of_folder(folder.path);
    return made ? std::string("nothing") : made.error().why;
  };
  const auto ends = [](const std::string& text, const std::string& with) {
    INFO(text);
    CHECK(text.ends_with(with));
  };
  {
    const Folder folder;
    fs::create_symlink("/etc/passwd", folder.path + "/out");
    ends(why(folder), "/out is a link that leads out of the folder, to /etc/passwd");
  }
  {
    const Folder folder;
    folder.write("a/b", "");
    fs::create_symlink("../..", folder.path + "/a/up");
    CHECK(why(folder).find("/a/up is a link that leads out of the folder") != std::string::npos);
  }
  {
    const Folder folder;
    fs::create_symlink(".", folder.path + "/again");
    ends(why(folder), "/again is a link to a folder");
    fs::remove(folder.path + "/again");
    fs::create_symlink("none", folder.path + "/nowhere");
    ends(why(folder), "/nowhere is a link that leads nowhere");
    fs::remove(folder.path + "/nowhere");
    REQUIRE(::mkfifo((folder.path + "/pipe").c_str(), 0600) == 0);
    ends(why(folder), "/pipe is neither a file nor a folder");
  }
  {
    const Folder folder;  // a sparse file takes no disk, and reading it would take a minute
    folder.write("large", "");
    REQUIRE(::truncate((folder.path + "/large").c_str(), 10'000'000'001) == 0);
    const auto made = PackageSource::of_folder(folder.path);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == ErrorCode::kLimit);
    CHECK(made.error().why.starts_with("its files take more than 10000000000 bytes"));
  }
}

TEST_CASE("a list of files that is up to no good is refused") {
  const std::string digest(64, 'a');
  const auto file = [&](const std::string& path, std::uint64_t bytes = 1) {
    return PackageEntry{path, Kind::kFile, bytes, digest};
  };
  const auto folder = [](const std::string& path) { return PackageEntry{path, Kind::kFolder, 0, ""}; };
  CHECK(refusal({{folder("a"), file("a/b")}}).empty());
  CHECK(refusal({{file("..")}}) == "the path '..' leaves the package");
  CHECK(refusal({{folder("a"), file("a/../../b")}}) == "the path 'a/../../b' leaves the package");
  CHECK(refusal({{file("/etc/passwd")}}) == "the path '/etc/passwd' is absolute");
  for (const char* path : {"a//b", "./a", "a/.", "a/"})
    CHECK(refusal({{folder("a"), file(path)}}).find("has a part that is no name") != std::string::npos);
  CHECK(refusal({{file(std::string("a\0b", 3))}}).ends_with("has a zero byte"));
  CHECK(refusal({{file("")}}) == "it has an empty path");
  CHECK(refusal({{file(std::string(2000, 'a'))}}).find("has 2000 bytes") != std::string::npos);
  CHECK(refusal({{file("a"), file("a")}}).ends_with("stands twice or out of order"));
  CHECK(refusal({{file("b"), file("a")}}).ends_with("stands twice or out of order"));
  CHECK(refusal({{file("a"), file("a/b")}}) == "the path 'a/b' is below what is no folder");
  CHECK(refusal({{file("a/b")}}) == "the path 'a/b' is below what is no folder");
  CHECK(refusal({{{"a", Kind::kFile, 1, "x"}}}) == "the digest of 'a' is none");
  CHECK(refusal({{{"a", Kind::kFolder, 1, ""}}}) == "the folder 'a' has contents of its own");
  CHECK(refusal({{file("a", kMaxPackageTreeBytes), file("b", 1)}}) ==
        "10000000001 bytes are more than 10000000000");
  CHECK(refusal({{file("a", ~std::uint64_t{0}), file("b", 2)}}).ends_with("are more than 10000000000"));
}

TEST_CASE("no byte of a package can be lost, added or changed, in whatever pieces it comes") {
  Folder folder;
  folder.write("a", "some text");
  folder.write("b/c", "more");
  auto source = PackageSource::of_folder(folder.path).value();
  const wire::Bytes good = all_of(source, 3);
  const auto accepts = [&](wire::ByteView bytes, std::size_t piece) {
    PackageReader reader(source.id());
    while (!bytes.empty()) {
      const auto next = bytes.subspan(0, std::min(piece, bytes.size()));
      bytes = bytes.subspan(next.size());
      if (!reader.feed(next)) return false;
    }
    return reader.is_whole();
  };
  for (const std::size_t piece : {1, 2, 7, 1000}) CHECK(accepts(good, piece));
  for (std::size_t at = 0; at < good.size(); ++at) {
    wire::Bytes bad = good;
    bad[at] ^= std::byte{1};
    CHECK_FALSE(accepts(bad, 5));
    CHECK_FALSE(accepts(wire::ByteView(good).subspan(0, at), 5));
  }
  wire::Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(accepts(longer, 5));
}

TEST_CASE("a shelf takes pieces once and in order, says no before it writes, and starts anew after damage") {
  const Tree tree;
  const Folder disk;
  auto source = PackageSource::of_folder(tree.path).value();
  PackageShelf shelf(disk.path);
  REQUIRE(shelf.open());
  const auto part = [&](std::uint64_t offset, wire::Bytes bytes) {
    return wire::PackagePart{source.id(), offset, source.bytes(), std::move(bytes)};
  };
  const auto code = [&](const wire::PackagePart& piece) {
    const auto held = shelf.append(piece);
    return held ? std::string("taken") : std::string(error_code_name(held.error().code));
  };
  CHECK(shelf.append(part(9, wire::Bytes(5))).value().next == 0);  // of a sender who knows another state
  const wire::Bytes first = source.read(0, 100).value();
  CHECK(shelf.append(part(0, first)).value().next == 100);
  CHECK(shelf.append(part(0, first)).value().next == 100);  // asked twice
  CHECK(shelf.append(part(100, {})).value().next == 100);
  std::string how = "taken";
  for (std::uint64_t at = 100; how == "taken" && at < source.bytes();) {
    wire::Bytes bytes = source.read(at, kPackagePieceBytes).value();
    if (at > 100) bytes[0] ^= std::byte{1};  // of the contents: the list came before
    how = code(part(at, bytes));
    at += bytes.size();
  }
  CHECK(how == "corrupt");  // and all of it is gone
  CHECK(shelf.append(part(100, {})).value().next == 0);
  CHECK(fs::is_empty(disk.path));

  CHECK(code({"../../../tmp/x", 0, 5, wire::Bytes(5)}) == "bad input");
  CHECK(code({source.id(), 0, kMaxPackageStreamBytes + 1, first}) == "limit");
  CHECK(code({source.id(), 0, source.bytes() - 1, first}) == "taken");  // it says so when it knows
  for (std::uint64_t at = 100; at < source.bytes() - 1;) {
    const auto held = shelf.append(
        {source.id(), at, source.bytes() - 1,
         source.read(at, std::min<std::uint64_t>(kPackagePieceBytes, source.bytes() - 1 - at)).value()});
    if (!held) {
      CHECK(held.error().code == ErrorCode::kCorrupt);
      break;
    }
    at = held->next;
    CHECK_FALSE(held->whole);
  }
  CHECK(fs::is_empty(disk.path));

  shelf.append(part(0, first)).value();
  CHECK_FALSE(fs::is_empty(disk.path));
  PackageShelf next(disk.path);  // of a process that was started again
  CHECK(next.open().value().empty());
  CHECK(fs::is_empty(disk.path));
  REQUIRE(bring(next, source).value().whole);
  {
    std::fstream file(disk.path + "/" + source.id(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(source.bytes()) - 3);
    file.put('!');
  }
  const auto damaged = next.unpack(source.id(), disk.path + "/work");
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().code == ErrorCode::kCorrupt);
  CHECK(fs::exists(disk.path + "/" + source.id()));
  CHECK(std::distance(fs::directory_iterator(disk.path), fs::directory_iterator()) == 1);
}

// Was: the head kept it for ever, since who brought it anew heard that it is whole.
TEST_CASE("a package that is there and cannot be opened is not taken for one that is not there") {
  const Folder disk;
  PackageShelf shelf(disk.path);
  REQUIRE(shelf.open());
  const std::string id(64, 'a');
  CHECK(shelf.read({id, 0}).error().code == ErrorCode::kUnavailable);
  CHECK(shelf.unpack(id, disk.path + "/to").error().code == ErrorCode::kUnavailable);
  fs::create_symlink(id, disk.path + "/" + id);  // to itself: what root cannot open either
  CHECK(shelf.read({id, 0}).error().code == ErrorCode::kIo);
  CHECK(shelf.unpack(id, disk.path + "/to").error().code == ErrorCode::kCorrupt);
}

TEST_CASE("a file that changes while it is sent is found, and named") {
  const Folder folder, disk;
  folder.write("a", "some text");
  auto source = PackageSource::of_folder(folder.path).value();
  folder.write("a", "other one");
  PackageShelf shelf(disk.path);
  REQUIRE(shelf.open());
  const auto changed = bring(shelf, source);
  REQUIRE_FALSE(changed);
  CHECK(changed.error().why.find("'a' are others than its list says") != std::string::npos);
}

TEST_CASE("what takes a while is told after a second, and every ten seconds, in megabytes") {
  CHECK(part_of_bytes(120'500'000, 546'000'001) == "120 of 546 MB");
  CHECK(part_of_bytes(1, 1'000'000) == "0 of 1 MB");
  CHECK(part_of_bytes(0, 999) == "0 of 999 bytes");
  using std::chrono::seconds;
  ProgressTimes times(seconds(5));
  std::vector<int> told;
  for (int s = 5; s < 40; ++s) {
    if (times.is_due(seconds(s))) told.push_back(s);
  }
  CHECK(told == std::vector{6, 16, 26, 36});
}
