// The libraries that travel with a job's program.
#include "scheduler/jobs/libraries.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/files.hpp"

using namespace troupe;
using Catch::Matchers::Contains;

TEST_CASE("what the loader lists is read, but for what belongs to each machine") {
  const auto read = read_loader_list(
      "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibtorch.so => /opt/torch (old)/lib/libtorch.so (0x00007f0a)\n"
      "\tlibstdc++.so.6 => /lib/libstdc++.so.6 (0x00007f0b)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f0c)\n"
      "\tlibm.so.6 => /lib/libm.so.6 (0x00007f0d)\n\tlibcuda.so.1 => /lib/libcuda.so.1 (0x00007f0e)\n"
      "\t/lib64/ld-linux-x86-64.so.2 (0x00007f0f)\n",
      "prog");
  REQUIRE(read.ok());
  REQUIRE(read->size() == 2);
  CHECK((*read)[0].name == "libtorch.so");
  CHECK((*read)[0].path == "/opt/torch (old)/lib/libtorch.so");
  CHECK((*read)[1].name == "libstdc++.so.6");
  const auto missing = read_loader_list("\tlibgone.so.1 => not found\n", "prog");
  REQUIRE_FALSE(missing.ok());
  CHECK_THAT(missing.error().message(), Contains("libgone.so.1, which prog needs, is not found"));
  CHECK(read_loader_list("\tstatically linked\n", "prog")->empty());
  // Was: one that the program names by its path was left out in silence.
  const auto by_path = read_loader_list(
      "\t/opt/vendor/libx.so (0x00007f0a)\n\tliby.so => /lib/liby.so (0x00007f0b)\n"
      "\t/opt/z.so => /opt/z.so (0x00007f0c)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f0f)\n",
      "prog");
  REQUIRE(by_path->size() == 3);
  CHECK((by_path->at(0).is_by_path && by_path->at(0).name == "/opt/vendor/libx.so"));
  CHECK_FALSE(by_path->at(1).is_by_path);
  CHECK((by_path->at(2).is_by_path && by_path->at(2).path == "/opt/z.so"));
}

TEST_CASE("libraries of this very program are found, and of a script none are looked for") {
  // Not the link: to the loader that is asked it is the loader.
  const auto own = libraries_of(std::filesystem::read_symlink("/proc/self/exe").string());
  REQUIRE(own.ok());
  bool has = false;
  for (const auto& library : *own) {
    has = has || library.name == "libstdc++.so.6";
    CHECK(std::ifstream(library.path).good());
  }
  CHECK(has);
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/run") << "#!/bin/sh\n";
  CHECK(libraries_of(folder.path() + "/run").error().code == ErrorCode::kBadInput);
  CHECK(libraries_of(folder.path() + "/none").error().code == ErrorCode::kBadInput);
  // The head of a program for no machine: the loader fails, which counted as a program without libraries.
  std::string head(8192, '\0');
  std::ifstream("/proc/self/exe", std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  head[18] = head[19] = '\0';
  std::ofstream(folder.path() + "/cut", std::ios::binary) << head;
  CHECK_THAT(libraries_of(folder.path() + "/cut").error().message(), Contains("does not load"));
}
