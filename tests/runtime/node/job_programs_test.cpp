// What a node's shell holds of jobs: what their programs leave behind must not end it.
#include "runtime/node/job_programs.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

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
