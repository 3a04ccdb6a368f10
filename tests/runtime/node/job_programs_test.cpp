// What a node's shell holds of jobs: what their programs leave behind must not end it.
#include "runtime/node/job_programs.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>

#include "runtime/node/job_libraries.hpp"
#include "runtime/package/package_source.hpp"
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
    programs.take({{spec.package, 0, source->bytes(), source->read(0, source->bytes()).value()}});
    loop.run();
    REQUIRE(taken.whole);
  }
  /// The disk changes a byte.
  void spoil() const {
    std::fstream file(archive(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('X');
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
