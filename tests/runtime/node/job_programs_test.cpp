// What a node's shell holds of jobs: what their programs leave behind must not end it.
#include "runtime/node/job_programs.hpp"

#include <fcntl.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "runtime/node/job_libraries.hpp"
#include "runtime/node/package_store.hpp"
#include "runtime/package/package_source.hpp"
#include "runtime/security/sha256.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::node;

// A node ended when a job was started again whose program had made its own folder unreadable: looking for
// libraries there threw. A link to itself is what root cannot read either.
TEST_CASE("libraries in a folder that cannot be read are none") {
  const test::TempFolder folder;
  EventLoop loop;
  JobPrograms programs(loop, [](const NodeEvent&) {});
  REQUIRE(programs.open(folder.path()).ok());
  const std::string work = programs.folder() + "/job-1/work";
  const std::string libraries = work + "/" + kLibrariesFolder;
  std::filesystem::create_directories(libraries);
  CHECK(programs.libraries_of("job-1") == libraries);
  std::filesystem::remove_all(work);
  std::filesystem::create_symlink(work, work);
  CHECK(programs.libraries_of("job-1").empty());
}

TEST_CASE(
    "an executable that is kept is there for the next store of the folder, unless it was changed or "
    "dropped") {
  const test::TempFolder folder;
  const std::string kept = folder / "kept";
  const auto file_of = [&](const std::string& text) {
    std::ofstream(folder / "program") << text;
    return UniqueFd(::open((folder / "program").c_str(), O_RDONLY | O_CLOEXEC));
  };
  std::vector<std::string> hashes;
  {
    PackageStore store;
    CHECK(store.open(kept, [](const std::string&, const Result<UniqueFd>&) {}).empty());
    for (const std::string text : {"one", "two", "three"}) {
      UniqueFd fd = file_of(text);
      hashes.push_back(*sha256_of_file(fd.get()));
      std::filesystem::remove(folder / "program");
      store.keep(hashes.back(), std::move(fd));
      store.store(hashes.back());
      REQUIRE(test::eventually([&] { return std::filesystem::exists(kept + "/" + hashes.back()); }));
    }
    store.forget(hashes[2]);
    REQUIRE(test::eventually([&] { return !std::filesystem::exists(kept + "/" + hashes[2]); }));
  }
  std::ofstream(kept + "/" + hashes[1]) << "tow";
  std::ofstream(kept + "/" + hashes[2] + ".part") << "thr";  // of a node that was killed
  // Was: they were read before the node joined, which a large folder delayed.
  std::atomic<bool> opened = false, read_late = true;
  std::mutex mutex;
  std::map<std::string, Result<UniqueFd>> read;
  PackageStore next;
  const auto found = next.open(kept, [&](const std::string& hash, Result<UniqueFd> executable) {
    if (!test::eventually([&] { return opened.load(); })) read_late = false;
    const std::lock_guard lock(mutex);
    read.emplace(hash, std::move(executable));
  });
  opened = true;
  CHECK(std::set(found.begin(), found.end()) == std::set{hashes[0], hashes[1]});
  REQUIRE(test::eventually([&] {
    const std::lock_guard lock(mutex);
    return read.size() == 2;
  }));
  CHECK(read_late);
  REQUIRE(read.at(hashes[0]).ok());
  CHECK_FALSE(read.at(hashes[1]).ok());
  next.keep(hashes[0], *std::move(read.at(hashes[0])));
  CHECK(next.program(hashes[0], "own").ok());
  CHECK_FALSE(next.program(hashes[1], "own").ok());
  CHECK(next.read({hashes[0], 0}, false).total == 3);
  for (const auto& entry : std::filesystem::directory_iterator(kept))
    CHECK(entry.path().filename() == hashes[0]);
}

TEST_CASE("what a job lost of its output is said, also where its folder is gone") {
  const test::TempFolder folder;
  EventLoop loop;
  bool ended = false;
  JobPrograms programs(loop, [&](const NodeEvent& event) {
    if (std::holds_alternative<ProgramEnded>(event)) {
      ended = true;
      loop.stop();
    }
  });
  REQUIRE(programs.open(folder.path()).ok());
  cluster::SubmissionSpec spec;
  spec.id = "job-1";
  // Its folder goes before it writes: nothing of it can be kept.
  spec.program = {"/bin/sh", "-c", "rm -rf '" + programs.folder() + "/job-1/output'; echo lost"};
  programs.start(StartProgram{spec, 1, {}});
  loop.after(std::chrono::seconds(60), [&] { loop.stop(); });
  loop.run();
  REQUIRE(ended);
  wire::LogAsk ask;
  ask.id = "job-1";
  ask.attempt = 1;
  ask.most_bytes = 4096;
  const auto part = programs.read(ask);
  REQUIRE(part.ok());  // was: "it has none of that attempt"
  const std::string text(reinterpret_cast<const char*>(part->bytes.data()), part->bytes.size());
  CHECK(text.find("5 bytes of output were lost") != std::string::npos);
}

namespace {

/// A node's programs, and the package of one file that a job needs.
struct Packed {
  Packed() : programs(loop, [this](const NodeEvent& event) { heard(event); }) {
    std::filesystem::create_directories(folder.path() + "/app");
    std::ofstream(folder.path() + "/app/data") << "what travels";
    source.emplace(PackageSource::of_folder(folder.path() + "/app").value());
    REQUIRE(programs.open(folder.path()).ok());
    spec.id = "job-1";
    spec.program = {"sh"};
    spec.package = source->id();
  }
  void heard(const NodeEvent& event) {
    if (const auto* one = std::get_if<JobUnpacked>(&event)) unpacked = *one;
    if (const auto* one = std::get_if<JobPartTaken>(&event)) taken = *one;
    loop.pause();
  }
  JobUnpacked unpack() {
    programs.unpack({spec});
    loop.run();
    return unpacked;
  }
  /// It comes from the head.
  void fetch() {
    taken = {};
    for (std::uint64_t at = 0; at < source->bytes();) {
      wire::Bytes part = source->read(at, source->bytes() - at).value();
      const std::size_t bytes = part.size();
      programs.take({{spec.package, at, source->bytes(), std::move(part)}});
      loop.run();
      at += bytes;
    }
    REQUIRE(taken.whole);
  }
  /// The disk changes a byte: the last one, or that of its list's size which makes it too large.
  void spoil(bool its_size = false) const {
    std::fstream file(archive(), std::ios::in | std::ios::out | std::ios::binary);
    its_size ? file.seekp(static_cast<std::streamoff>(kPackagePrefixBytes - 1))
             : file.seekp(-1, std::ios::end);
    file.put('X');
  }
  /// Reading it fails (EIO).
  void break_disk() const {
    std::filesystem::remove(archive());
    std::filesystem::create_symlink("/proc/self/mem", archive());
  }
  std::string archive() const { return programs.folder() + "/.packages/" + spec.package; }

  const test::TempFolder folder;
  EventLoop loop;
  cluster::SubmissionSpec spec;
  std::optional<PackageSource> source;
  JobUnpacked unpacked;
  JobPartTaken taken;
  JobPrograms programs;
};

}  // namespace

// Was: it stayed, and every job with that package failed on this node: "submit the job again".
TEST_CASE("a package that the disk has spoilt is removed and comes again, once") {
  Packed packed;
  CHECK(packed.unpack().is_missing);
  packed.fetch();
  packed.spoil();
  CHECK(packed.unpack().is_missing);
  CHECK_FALSE(std::filesystem::exists(packed.archive()));
  packed.fetch();
  packed.spoil();
  const JobUnpacked twice = packed.unpack();  // it is the disk, not the package
  CHECK_FALSE(twice.is_missing);
  REQUIRE(twice.error);
  CHECK(twice.error->code == ErrorCode::kCorrupt);
  CHECK_FALSE(std::filesystem::exists(packed.archive()));
  CHECK(packed.unpack().is_missing);
  packed.fetch();
  const JobUnpacked good = packed.unpack();
  CHECK((!good.is_missing && !good.error));
  CHECK(test::read_file(packed.programs.folder() + "/job-1/work/data") == "what travels");
}

// Was: a list whose size was spoilt, or a disk that did not read, failed every job with that package here:
// "make room on that disk".
TEST_CASE("a package that cannot be read, whatever is wrong, is removed and comes again") {
  Packed packed;
  packed.unpack();
  packed.fetch();
  SECTION("its list has an impossible size") {
    packed.spoil(true);
    CHECK(packed.unpack().is_missing);
  }
  SECTION("the disk does not read") {
    packed.break_disk();
    CHECK(packed.unpack().is_missing);
    packed.fetch();
    packed.break_disk();
    const JobUnpacked twice = packed.unpack();
    REQUIRE(twice.error);
    CHECK(twice.error->what == "cannot read a job's package at " + packed.archive());
    CHECK(twice.error->why == "Input/output error");
    CHECK(packed.unpack().is_missing);
  }
  CHECK_FALSE(std::filesystem::exists(packed.archive()));
  packed.fetch();
  const JobUnpacked good = packed.unpack();
  CHECK((!good.is_missing && !good.error));
}

// Was: the node's loop stood still while a large folder was removed.
TEST_CASE("what a job leaves behind is out of the way at once, and removed by and by") {
  Packed packed;
  packed.unpack();
  packed.fetch();
  packed.unpack();
  const std::string job = packed.programs.folder() + "/job-1";
  REQUIRE(std::filesystem::exists(job + "/work/data"));
  packed.programs.remove_files("job-1");
  CHECK_FALSE(std::filesystem::exists(job));  // another of that id may start now
  const auto is_left = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(packed.programs.folder()))
      if (entry.path().filename().string().starts_with(".removed-")) return true;
    return false;
  };
  CHECK(test::eventually([&] { return !is_left(); }));
}

TEST_CASE("what a node that was killed did not come to remove, the next one does") {
  const test::TempFolder folder;
  const std::string left = folder.path() + "/jobs/0/.removed-1",
                    libraries = folder.path() + "/jobs/0/" + kLibrariesOf + "a";
  for (const std::string& one : {left, libraries}) std::filesystem::create_directories(one + "/of/a/job");
  EventLoop loop;
  JobPrograms programs(loop, [](const NodeEvent& event) {
    const auto* found = std::get_if<JobFilesFound>(&event);
    CHECK((found == nullptr || found->ids.empty()));
  });
  REQUIRE(programs.open(folder.path()).ok());
  CHECK(test::eventually(
      [&] { return !std::filesystem::exists(left) && !std::filesystem::exists(libraries); }));
}
