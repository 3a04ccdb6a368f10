#include "scheduler/jobs/local_checks.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

namespace troupe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(std::string why, std::string todo) {
  throw_error({ErrorCode::kBadInput, "cannot submit the job", std::move(why), std::move(todo)});
}

/// Machine and word size of an ELF file; none: it is no ELF.
std::optional<std::pair<unsigned, unsigned>> machine_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  unsigned char head[20] = {};
  file.read(reinterpret_cast<char*>(head), sizeof head);
  if (file.gcount() < static_cast<std::streamsize>(sizeof head) || std::memcmp(head, ELFMAG, SELFMAG) != 0)
    return std::nullopt;
  return std::pair<unsigned, unsigned>{head[18] | static_cast<unsigned>(head[19]) << 8U, head[EI_CLASS]};
}

void check_program(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    refuse("its program " + path + ": " + std::strerror(errno),
           "name a program that is there on this machine and on every node");
  }
  if (!S_ISREG(info.st_mode)) refuse("its program " + path + " is no file", "name an executable file");
  if (::access(path.c_str(), X_OK) != 0)
    refuse("its program " + path + " is not executable", "chmod +x it, or name its interpreter first");
  const auto machine = machine_of(path), own = machine_of("/proc/self/exe");
  if (machine && own && *machine != *own)
    refuse("its program " + path + " is of another architecture than this machine (ELF machine " +
               std::to_string(machine->first) + ", here " + std::to_string(own->first) + ")",
           "build it for the nodes");
}

}  // namespace

JobSpec checked(JobSpec job) {
  if (!job.working_dir.empty()) {
    std::error_code error;
    const fs::path folder = fs::canonical(job.working_dir, error);
    if (error || !fs::is_directory(folder)) {
      refuse("its working directory " + job.working_dir + ": " +
                 (error ? error.message() : "it is no directory"),
             "name a directory that is there on this machine and on every node");
    }
    job.working_dir = folder.string();
  }
  if (job.program.find('/') == std::string::npos) return job;
  fs::path path = job.program;
  if (path.is_relative())
    path = (job.working_dir.empty() ? fs::current_path() : fs::path(job.working_dir)) / path;
  job.program = path.lexically_normal().string();
  check_program(job.program);
  return job;
}

}  // namespace troupe
