#include "scheduler/cli/doctor/doctor.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "runtime/core/control_groups.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/held_port.hpp"
#include "scheduler/cli/doctor/findings.hpp"
#include "scheduler/init/cluster_folder.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/jobs/libraries.hpp"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

constexpr Duration kHeadAnswers = std::chrono::seconds(4);
constexpr std::uint16_t kHeadPort = 6380;
constexpr unsigned kExecutable = 0x10;  // MFD_EXEC, which Debian 12's headers do not have yet

std::string why() {
  return std::strerror(errno);
}

std::uint64_t limit(__rlimit_resource_t resource, bool most = false) {
  rlimit both{};
  if (::getrlimit(resource, &both) != 0) return 0;
  const rlim_t value = most ? both.rlim_max : both.rlim_cur;
  return value == RLIM_INFINITY ? 0 : value;
}

/// Of the host; more than any control group's where it is not known.
std::uint64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;)
    if (std::uint64_t kib = 0; word == "MemAvailable:" && file >> kib) return kib << 10;
  return UINT64_MAX;
}

std::string try_shared_memory() {
  const auto segment = SharedMemory::create("troupe-doctor", 1 << 16, true);
  return segment ? "" : segment.error().message();
}

/// As the package of a job is started.
std::string try_package() {
  UniqueFd fd(::memfd_create("troupe-doctor", MFD_CLOEXEC | kExecutable));
  if (!fd && errno == EINVAL)
    fd = UniqueFd(::memfd_create("troupe-doctor", MFD_CLOEXEC));  // Linux before 6.3
  return fd ? "" : why();
}

std::string try_loopback() {
  const auto server = HeldPort::hold(0);
  const UniqueFd client(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // connects without asking anybody
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server ? server->port() : 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!server) return server.error().why;
  return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? ""
                                                                                                   : why();
}

std::uint64_t free_of(const std::string& path) {
  struct statvfs disk {};
  return ::statvfs(path.c_str(), &disk) == 0 ? disk.f_bavail * disk.f_frsize : 0;
}

void look_at_folders(const DoctorOptions& options, MachineFacts& facts) {
  std::error_code error;
  facts.temporary_folder = fs::temp_directory_path(error).string();
  if (error) facts.temporary_folder = "TMPDIR", facts.temporary_error = error.message();
  if (!error && ::access(facts.temporary_folder.c_str(), W_OK | X_OK) != 0) facts.temporary_error = why();
  facts.temporary_free = free_of(facts.temporary_folder);
  try {
    facts.folder = options.folder.empty() ? ClusterFolder::default_path() : options.folder;
  } catch (const Error& none) {
    facts.folder_error = none.info().why;
    return;
  }
  // One that is not there yet is made where its parents are.
  fs::path there = facts.folder;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  facts.folder_free = free_of(there.string());
  if (!fs::exists(facts.folder, error)) {
    if (::access(there.c_str(), W_OK | X_OK) != 0)
      facts.folder_error = "it is not there, and cannot be made: " + why();
    return;
  }
  const auto folder = ClusterFolder::find(facts.folder);
  if (!folder) {
    facts.folder_error = folder.error().why;
    return;
  }
  if (::access(facts.folder.c_str(), W_OK | X_OK) != 0)
    facts.folder_error = "nothing can be written there: " + why();
  const auto contact =
      options.address.empty() ? folder->contact() : folder->contact(parse_endpoint(options.address).value());
  facts.knows_cluster = contact.ok();
  if (!contact) return;
  facts.head = to_string(contact->address);
  const auto bytes = folder->ask(*contact, wire::StatusAsk{1}, kHeadAnswers);
  const auto status =
      bytes ? wire::decode<wire::StatusAnswer>(*bytes) : Result<wire::StatusAnswer>(bytes.error());
  if (status) {
    facts.head_nodes = status->nodes.size();
  } else {
    facts.head_error = "the head at " + facts.head + " does not answer: " + status.error().why;
  }
}

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Its path, as a shell finds a program of that name; empty: it is in no folder of PATH.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* variable = std::getenv("PATH");
  std::istringstream folders(variable == nullptr ? "/usr/bin:/bin" : variable);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_file(path) && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

/// What runs a script that begins so: "python3" of "#!/usr/bin/env python3". Empty: it is none.
std::string interpreter_in(const std::string& beginning) {
  if (!beginning.starts_with("#!")) return "";
  std::istringstream words(beginning.substr(2, beginning.find('\n') - 2));
  std::string word;
  words >> word;
  if (fs::path(word).filename() == "env") {
    while (words >> word && word[0] == '-') {
    }
  }
  return word;
}

void look_at_program(const std::string& name, MachineFacts& facts) {
  const auto wrong = [&](std::string is, std::string todo) {
    facts.program_error = std::move(is);
    facts.program_todo = std::move(todo);
  };
  std::string path = find_program(name);
  facts.program = path.empty() ? name : path;
  if (path.empty())
    return wrong("'" + name + "' is in no folder of PATH",
                 is_file(name) ? "give its path: ./" + name : "give its path, or install it");
  if (!is_file(path)) return wrong(path + " is not there, or is no file", "give the path of a program");
  std::string beginning(256, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(file.gcount()));
  if (const std::string runs = interpreter_in(beginning); !runs.empty()) {
    path = find_program(runs);
    if (path.empty() || !is_file(path))
      return wrong(facts.program + " is a script, and " + runs + ", which runs it, is not there",
                   "install that");
    facts.program = path + ", which runs " + facts.program + ",";
  } else if (!beginning.starts_with("\x7f"
                                    "ELF")) {
    return wrong(path + " is no program, or cannot be read", "give the path of a program");
  }
  if (const auto libraries = libraries_of(path)) {
    facts.libraries = libraries->size();
  } else {
    facts.libraries_error = libraries.error().why;
  }
}

MachineFacts facts_of(const DoctorOptions& options) {
  MachineFacts facts;
  facts.open_files = limit(RLIMIT_NOFILE);
  facts.open_files_most = limit(RLIMIT_NOFILE, true);
  facts.processes = limit(RLIMIT_NPROC);
  facts.file_bytes = limit(RLIMIT_FSIZE);
  facts.cores = usable_cores();
  facts.memory = usable_memory().value_or(0);
  facts.memory_available = std::min(memory_available(), facts.memory);
  std::ifstream("/proc/sys/vm/overcommit_memory") >> facts.overcommit;
  facts.shared_memory_error = try_shared_memory();
  facts.packages_error = try_package();
  facts.loopback_error = try_loopback();
  if (const auto port = HeldPort::hold(kHeadPort); !port) facts.port_holder_error = port.error().why;
  timex clock{};
  facts.is_clock_synchronised = ::adjtimex(&clock) != TIME_ERROR;
  look_at_folders(options, facts);
  if (!options.program.empty()) look_at_program(options.program, facts);
  return facts;
}

}  // namespace

int doctor(const DoctorOptions& options) {
  const auto findings = findings_of(facts_of(options));
  constexpr const char* kWords[] = {"good", "warning", "bad"};
  nlohmann::json all = nlohmann::json::array();
  const bool as_json = options.json || options.output == "json";
  int bad = 0, warnings = 0;
  for (const Finding& one : findings) {
    bad += one.kind == Finding::kBad ? 1 : 0;
    warnings += one.kind == Finding::kWarning ? 1 : 0;
    all.push_back({{"what", one.what}, {"kind", kWords[one.kind]}, {"is", one.is}, {"todo", one.todo}});
    if (as_json) continue;
    std::printf("%-8s %-21s %s\n", one.kind == Finding::kGood ? "good" : kWords[one.kind], one.what.c_str(),
                escape_name(one.is).c_str());
    if (!one.todo.empty()) std::printf("%-30s %s\n", "", escape_name(one.todo).c_str());
  }
  if (as_json) {
    std::printf("%s\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf(
        "%s\n",
        bad == 0 && warnings == 0
            ? "nothing is missing"
            : (std::to_string(bad) + " bad, " + std::to_string(warnings) + " to be warned of").c_str());
  }
  return bad == 0 ? 0 : 1;
}

}  // namespace troupe::cli
