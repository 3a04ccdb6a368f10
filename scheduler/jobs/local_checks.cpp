#include "scheduler/jobs/local_checks.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "runtime/core/random.hpp"
#include "runtime/node/job_programs.hpp"
#include "scheduler/cluster/submission_table.hpp"
#include "scheduler/jobs/libraries.hpp"

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
           "name a program of this machine, or use --node-dir for one that only the nodes have");
  }
  if (!S_ISREG(info.st_mode)) refuse("its program " + path + " is no file", "name an executable file");
  if (info.st_size == 0)
    refuse("its program " + path + " is an empty file (0 bytes)", "build or copy it again");
  if (::access(path.c_str(), X_OK) != 0)
    refuse("its program " + path + " is not executable", "chmod +x it, or name its interpreter first");
  const auto machine = machine_of(path), own = machine_of("/proc/self/exe");
  if (machine && own && *machine != *own)
    refuse("its program " + path + " is of another architecture than this machine (ELF machine " +
               std::to_string(machine->first) + ", here " + std::to_string(own->first) + ")",
           "build it for the nodes");
}

fs::path working_folder(const std::string& wanted) {
  std::error_code error;
  const fs::path folder = fs::canonical(wanted, error);
  if (error || !fs::is_directory(folder)) {
    refuse("its working directory " + wanted + ": " + (error ? error.message() : "it is no directory"),
           "name a directory of this machine, or use --node-dir for one that the nodes have");
  }
  return folder;
}

std::int64_t in_parts(double count, const char* what) {
  if (!(count >= 0 && count <= 1e6)) {
    throw_error({ErrorCode::kBadInput, "cannot submit the job",
                 std::to_string(count) + " is no number of " + what, "ask for what a node has"});
  }
  return std::llround(count * cluster::kCpu);
}

}  // namespace

cluster::SubmissionSpec submission_of(const JobSpec& job) {
  cluster::SubmissionSpec spec;
  spec.id = job.id.empty() ? "job-" + to_hex(SystemRandom().next()) : job.id;
  spec.name = job.name;
  spec.program.push_back(job.program);
  spec.program.insert(spec.program.end(), job.args.begin(), job.args.end());
  for (const auto& [name, value] : job.env) spec.environment.push_back(name + "=" + value);
  spec.folder = job.node_dir;
  spec.cpu_e4 = in_parts(job.num_cpus, "CPUs");
  spec.gpu_e4 = in_parts(job.num_gpus, "GPUs");
  spec.other = cluster::other_resources(job.memory, job.resources, job.labels);
  spec.retries = job.retries;
  spec.priority = job.priority;
  spec.queue = job.queue;
  if (!job.working_dir.empty() && !job.node_dir.empty())
    refuse("it has a working directory that travels, and one that its node has", "give one of them");
  if (job.replace && job.name.empty())
    throw_error(
        {ErrorCode::kBadInput, "cannot submit the job", "--replace needs --name", "name the job to replace"});
  if (const auto wrong = cluster::check_submission(spec)) throw_error(*wrong);
  return spec;
}

namespace {

struct Libraries {
  std::vector<ExtraFile> files;
  std::vector<std::string> notes;
};
Libraries libraries_for(const JobSpec& job, const std::string& program) {
  Libraries all;
  if (!job.with_libraries) return all;
  for (const SharedLibrary& one : libraries_of(program).value()) {
    if (one.is_by_path) {
      all.notes.push_back(
          one.name +
          " does not travel: the program names it by this path, and the loader of "
          "a node looks nowhere else; install it there on every node, or link it by its name");
    } else {
      all.files.push_back({std::string(node::kLibrariesFolder) + "/" + one.name, one.path});
    }
  }
  return all;
}

}  // namespace

PreparedJob prepared(JobSpec job, const PackageSource::Progress& progress) {
  const bool has_path = job.program.find('/') != std::string::npos;
  fs::path path = job.program;
  if (!job.working_dir.empty()) {
    const fs::path folder = working_folder(job.working_dir);
    path = (folder / path).lexically_normal();
    const fs::path inside = path.lexically_relative(folder);
    const bool travels = has_path && !inside.empty() && *inside.begin() != "..";
    if (has_path) check_program(path.string());
    if (has_path) job.program = travels ? "./" + inside.string() : path.string();
    if (job.with_libraries && !travels)
      refuse("--with-libraries is for a program in the working directory, and " + job.program + " is none",
             "copy it there, or leave --with-libraries out");
    Libraries libraries = libraries_for(job, path.string());
    auto package = PackageSource::of_folder(folder.string(), libraries.files, progress).value();
    PreparedJob ready{submission_of(job), std::move(package), std::move(libraries.notes)};
    ready.spec.package = ready.package->id();
    return ready;
  }
  if (job.with_libraries && (!has_path || !job.node_dir.empty()))
    refuse("--with-libraries is for a program that travels, and " + job.program + " does not",
           has_path ? "leave --node-dir out" : "give the program's path");
  if (!has_path) return {submission_of(job), std::nullopt};
  if (!job.node_dir.empty()) {
    job.program = (fs::path(job.node_dir) / path).lexically_normal().string();
    return {submission_of(job), std::nullopt};
  }
  job.program = fs::absolute(path).lexically_normal().string();
  check_program(job.program);
  if (job.with_libraries) {  // it is a folder then, with the program and theirs
    Libraries libraries = libraries_for(job, job.program);
    auto package = PackageSource::of_executable(job.program, libraries.files, progress).value();
    job.program = "./" + fs::path(job.program).filename().string();
    PreparedJob ready{submission_of(job), std::move(package), std::move(libraries.notes)};
    ready.spec.package = ready.package->id();
    return ready;
  }
  PreparedJob ready{submission_of(job), std::nullopt};
  // A link leads to a program that is part of an installation (python3 of a virtual environment): its file
  // alone would be another program.
  if (fs::is_symlink(job.program)) return ready;
  ready.package = PackageSource::of_executable(job.program, {}, progress).value();
  ready.spec.package = ready.package->id();
  ready.spec.executable = ready.package->manifest().entries[0].sha256;
  return ready;
}

}  // namespace troupe
