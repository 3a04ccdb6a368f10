// What the facts of a machine mean.

#include <algorithm>
#include <catch2/catch.hpp>

#include "scheduler/cli/doctor/findings.hpp"

using namespace troupe::cli;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A machine that has all.
MachineFacts good_machine() {
  MachineFacts facts;
  facts.open_files = 65'536;
  facts.processes = 4096;
  facts.cores = 4;
  facts.memory = 16 * kGiB;
  facts.memory_available = 8 * kGiB;
  facts.temporary_folder = "/tmp";
  facts.temporary_free = 20 * kGiB;
  facts.folder = "/home/me/.local/state/troupe";
  facts.folder_free = 20 * kGiB;
  return facts;
}

Finding finding_of(const MachineFacts& facts, const std::string& what) {
  const auto all = findings_of(facts);
  const auto at = std::find_if(all.begin(), all.end(), [&](const Finding& one) { return one.what == what; });
  REQUIRE(at != all.end());
  CHECK((at->kind == Finding::kGood) == at->todo.empty());  // who complains says what to do
  return *at;
}

}  // namespace

TEST_CASE("a machine that has all is good") {
  for (const Finding& one : findings_of(good_machine())) {
    INFO(one.what << ": " << one.is);
    CHECK(one.kind == Finding::kGood);
    CHECK(one.todo.empty());
  }
}

TEST_CASE("each thing that is missing is said, with what to do") {
  struct Row {
    const char* what;
    Finding::Kind kind;
    void (*change)(MachineFacts&);
  };
  const Row rows[] = {
      {"open files", Finding::kBad, [](MachineFacts& f) { f.open_files = 200; }},
      {"open files", Finding::kWarning, [](MachineFacts& f) { f.open_files = 512; }},
      {"open files", Finding::kGood, [](MachineFacts& f) { f.open_files = 0; }},
      {"processes", Finding::kBad, [](MachineFacts& f) { f.processes = 32; }},
      {"length of a file", Finding::kWarning, [](MachineFacts& f) { f.file_bytes = kGiB; }},
      {"memory", Finding::kWarning, [](MachineFacts& f) { f.memory_available = kGiB / 2; }},
      {"shared memory", Finding::kBad,
       [](MachineFacts& f) { f.shared_memory_error = "Operation not permitted"; }},
      {"programs from memory", Finding::kBad,
       [](MachineFacts& f) { f.packages_error = "Permission denied"; }},
      {"overcommit", Finding::kWarning, [](MachineFacts& f) { f.overcommit = 2; }},
      {"loopback", Finding::kBad, [](MachineFacts& f) { f.loopback_error = "Network is unreachable"; }},
      {"port 6380", Finding::kWarning,
       [](MachineFacts& f) { f.port_holder_error = "Address already in use"; }},
      {"clock", Finding::kWarning, [](MachineFacts& f) { f.is_clock_synchronised = false; }},
      {"libraries", Finding::kGood, [](MachineFacts& f) { f.program = "./job", f.libraries = 7; }},
      {"libraries", Finding::kBad,
       [](MachineFacts& f) { f.program = "./job", f.libraries_error = "libx.so is not found"; }},
      {"program", Finding::kBad,
       [](MachineFacts& f) {
         f.program = "job", f.program_error = "'job' is in no folder of PATH",
         f.program_todo = "give its path";
       }},
      {"temporary folder", Finding::kBad, [](MachineFacts& f) { f.temporary_error = "Permission denied"; }},
      {"temporary folder", Finding::kBad, [](MachineFacts& f) { f.temporary_free = 1 << 20; }},
      {"folder of keys", Finding::kBad,
       [](MachineFacts& f) { f.folder_error = "it belongs to another user"; }},
      {"folder of keys", Finding::kWarning, [](MachineFacts& f) { f.folder_free = kGiB / 2; }},
      {"cluster", Finding::kWarning,
       [](MachineFacts& f) { f.knows_cluster = true, f.head_error = "it does not answer"; }}};
  for (const Row& row : rows) {
    INFO(row.what);
    MachineFacts facts = good_machine();
    row.change(facts);
    CHECK(finding_of(facts, row.what).kind == row.kind);
  }
}

TEST_CASE("numbers are written for people") {
  MachineFacts facts = good_machine();
  CHECK(finding_of(facts, "open files").is == "65,536");
  CHECK(finding_of(facts, "memory").is == "8.0 GiB free of 16.0 GiB");
  facts.knows_cluster = true;
  facts.head = "127.0.0.1:6380";
  facts.head_nodes = 1;
  CHECK(finding_of(facts, "cluster").is == "the head at 127.0.0.1:6380 answers; 1 node");
}
