#include "scheduler/cli/doctor/findings.hpp"

#include <cstdio>

#include "runtime/core/count.hpp"

namespace troupe::cli {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
/// A process holds one for each link, region and worker; a node that lends to hundreds needs thousands.
constexpr std::uint64_t kFewFiles = 1024, kManyFiles = 8192;
constexpr std::uint64_t kFewProcesses = 512;
constexpr std::uint64_t kLittleMemory = kGiB, kLittleDisk = kGiB;

std::string number(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string bytes(std::uint64_t value) {
  char text[32];
  if (value >= kGiB) {
    std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(value) / static_cast<double>(kGiB));
  } else {
    std::snprintf(text, sizeof text, "%.0f MiB", static_cast<double>(value) / static_cast<double>(kMiB));
  }
  return text;
}

class Findings {
 public:
  void add(Finding::Kind kind, std::string what, std::string is, std::string todo = "") {
    all_.push_back({kind, std::move(what), std::move(is), kind == Finding::kGood ? "" : std::move(todo)});
  }
  void works(const char* what, const std::string& error, const char* todo) {
    add(error.empty() ? Finding::kGood : Finding::kBad, what, error.empty() ? "works" : error, todo);
  }
  /// Bad without `least`, a warning without `enough`.
  static Finding::Kind of(std::uint64_t value, std::uint64_t least, std::uint64_t enough) {
    return value < least ? Finding::kBad : value < enough ? Finding::kWarning : Finding::kGood;
  }
  std::vector<Finding> take() { return std::move(all_); }

 private:
  std::vector<Finding> all_;
};

void limits(const MachineFacts& facts, Findings& all) {
  const std::uint64_t files = facts.open_files == 0 ? kManyFiles : facts.open_files;
  const std::string most =
      facts.open_files_most == 0 ? "" : " (ulimit -Hn " + number(facts.open_files_most) + ")";
  all.add(Findings::of(files, 256, kFewFiles), "open files",
          facts.open_files == 0 ? "no limit" : number(facts.open_files),
          "ulimit -n " + std::to_string(kManyFiles) + most);
  if (facts.processes != 0)
    all.add(Findings::of(facts.processes, 64, kFewProcesses), "processes", number(facts.processes),
            "ulimit -u 4096");
  if (facts.file_bytes != 0)
    all.add(Finding::kWarning, "length of a file", bytes(facts.file_bytes),
            "ulimit -f unlimited: shared memory counts, and writes beyond it fail");
  char cores[32];
  std::snprintf(cores, sizeof cores, "%.3g", facts.cores);
  all.add(Finding::kGood, "cores", cores);
}

void memory(const MachineFacts& facts, Findings& all) {
  all.add(Findings::of(facts.memory_available, 128 * kMiB, kLittleMemory), "memory",
          bytes(facts.memory_available) + " free of " + bytes(facts.memory),
          "end other programs, or raise the control group's limit");
  all.works("shared memory", facts.shared_memory_error,
            "allow memfd_create and its seals (a container's seccomp profile?)");
  all.works("programs from memory", facts.packages_error,
            "sysctl vm.memfd_noexec=0, or 1: packages of jobs need it");
  if (facts.overcommit == 2)
    all.add(Finding::kWarning, "overcommit", "off (vm.overcommit_memory=2)",
            "sysctl vm.overcommit_memory=0: a fork of a large program fails else");
}

void network(const MachineFacts& facts, Findings& all) {
  all.works("loopback", facts.loopback_error, "ip link set lo up");
  if (!facts.knows_cluster) {
    const bool is_free = facts.port_holder_error.empty();
    all.add(is_free ? Finding::kGood : Finding::kWarning, "port 6380",
            is_free ? "free" : facts.port_holder_error, "troupe start --head --port P");
  }
  all.add(facts.is_clock_synchronised ? Finding::kGood : Finding::kWarning, "clock",
          facts.is_clock_synchronised ? "synchronised" : "not synchronised",
          "run chrony or systemd-timesyncd: times in logs of several hosts do not agree");
}

void folders(const MachineFacts& facts, Findings& all) {
  const auto folder = [&](const char* what, const std::string& path, const std::string& error,
                          std::uint64_t free, const char* todo) {
    if (!error.empty()) return all.add(Finding::kBad, what, path + ": " + error, todo);
    all.add(Findings::of(free, 16 * kMiB, kLittleDisk), what, path + ", " + bytes(free) + " free",
            "make room");
  };
  folder("temporary folder", facts.temporary_folder, facts.temporary_error, facts.temporary_free,
         "set TMPDIR to a folder that you may write to");
  folder("folder of keys", facts.folder, facts.folder_error, facts.folder_free,
         "set TROUPE_FOLDER, or mend it: it must be yours, with mode 0700");
}

void libraries(const MachineFacts& facts, Findings& all) {
  if (facts.program.empty()) return;
  if (!facts.program_error.empty())
    return all.add(Finding::kBad, "program", facts.program_error, facts.program_todo);
  if (facts.libraries_error.empty())
    return all.add(Finding::kGood, "libraries",
                   "all " + std::to_string(facts.libraries) + " that " + facts.program + " needs are found");
  all.add(Finding::kBad, "libraries", facts.libraries_error,
          "install it, set LD_LIBRARY_PATH, or submit with --with-libraries from a machine that has it");
}

void cluster(const MachineFacts& facts, Findings& all) {
  if (!facts.knows_cluster)
    return all.add(Finding::kGood, "cluster", "none was started or joined from this folder");
  if (!facts.head_error.empty())
    return all.add(Finding::kWarning, "cluster", facts.head_error, "troupe start, or give --address");
  all.add(Finding::kGood, "cluster",
          "the head at " + facts.head + " answers; " + count_of(facts.head_nodes, "node"));
}

}  // namespace

std::vector<Finding> findings_of(const MachineFacts& facts) {
  Findings all;
  limits(facts, all);
  memory(facts, all);
  network(facts, all);
  folders(facts, all);
  libraries(facts, all);
  cluster(facts, all);
  return all.take();
}

}  // namespace troupe::cli
