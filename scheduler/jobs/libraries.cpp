#include "scheduler/jobs/libraries.hpp"

#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/core/fd.hpp"

extern char** environ;

namespace troupe {
namespace {

constexpr const char* kCannot = "cannot pack the program's libraries";

/// The C library's, as glibc has them, and what belongs to the driver of a machine's GPUs.
constexpr std::array<std::string_view, 18> kStay{
    "ld-linux",     "libc.so",         "libm.so",    "libmvec.so", "libpthread.so", "libdl.so",
    "librt.so",     "libresolv.so",    "libutil.so", "libnsl.so",  "libanl.so",     "libnss_",
    "libthread_db", "libBrokenLocale", "libcuda.so", "libnvidia-", "libnvcuvid",    "linux-vdso"};

bool stays(std::string_view name) {
  return std::any_of(kStay.begin(), kStay.end(), [&](std::string_view one) { return name.starts_with(one); });
}

/// The loader that an ELF program of 64 bits names; empty: none, it is linked statically.
Result<std::string> loader_of(const std::string& program) {
  std::ifstream file(program, std::ios::binary);
  if (!file)
    return ErrorInfo{ErrorCode::kBadInput, kCannot, program + " is not there, or cannot be read",
                     "name the executable, or leave --with-libraries out"};
  Elf64_Ehdr head{};
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  if (!file || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) {
    return ErrorInfo{ErrorCode::kBadInput, kCannot,
                     program + " is no executable of this machine, but a script, say",
                     "name the executable, or leave --with-libraries out"};
  }
  for (unsigned i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part{};
    file.seekg(static_cast<std::streamoff>(head.e_phoff + i * std::uint64_t{head.e_phentsize}));
    file.read(reinterpret_cast<char*>(&part), sizeof part);
    if (!file) break;
    if (part.p_type != PT_INTERP || part.p_filesz > 4096) continue;
    std::string path(part.p_filesz, '\0');
    file.seekg(static_cast<std::streamoff>(part.p_offset));
    file.read(path.data(), static_cast<std::streamsize>(path.size()));
    return path.substr(0, path.find('\0'));
  }
  return std::string();
}

/// What the loader says that it would load for `program`, as ldd asks it: nothing of the program runs. What
/// it cannot load it says on standard error.
Result<std::string> ask_loader(const std::string& loader, const std::string& program) {
  std::vector<char*> environment{const_cast<char*>("LD_TRACE_LOADED_OBJECTS=1")};
  for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
  environment.push_back(nullptr);
  const std::array<const char*, 3> argv{loader.c_str(), program.c_str(), nullptr};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error(kCannot, errno, "raise ulimit -n");
  UniqueFd reading(ends[0]), writing(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int failed =
      ::posix_spawn(&pid, argv[0], &actions, nullptr, const_cast<char**>(argv.data()), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return io_error(std::string(kCannot) + ": " + argv[0], failed, "is it there?");
  writing.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(reading.get(), buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR);)
    text.append(buffer, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0)  // a library that is not found is in its list, and no failure
    return ErrorInfo{ErrorCode::kBadInput, kCannot, loader + " does not load " + program,
                     "see that it runs here, or leave --with-libraries out"};
  return text;
}

}  // namespace

Result<std::vector<SharedLibrary>> read_loader_list(std::string_view text, const std::string& program) {
  constexpr std::string_view kArrow = " => ";
  std::vector<SharedLibrary> libraries;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    const auto arrow = line.find(kArrow);
    const std::string_view name = line.substr(0, std::min(arrow, line.rfind(" (0x")));
    const bool is_by_path = name.find('/') != std::string_view::npos;
    if (arrow == std::string_view::npos && !is_by_path) continue;  // the kernel's own
    std::string_view path = arrow == std::string_view::npos ? line : line.substr(arrow + kArrow.size());
    if (path.starts_with("not found"))
      return ErrorInfo{ErrorCode::kBadInput, kCannot,
                       std::string(name) + ", which " + program + " needs, is not found",
                       "install it, or set LD_LIBRARY_PATH as for running the program here"};
    path = path.substr(0, path.rfind(" (0x"));
    const std::string_view file = name.substr(name.rfind('/') + 1);
    if (!stays(file)) libraries.push_back({std::string(name), std::string(path), is_by_path});
  }
  return libraries;
}

Result<std::vector<SharedLibrary>> libraries_of(const std::string& program) {
  const auto loader = loader_of(program);
  if (!loader) return loader.error();
  if (loader->empty()) return std::vector<SharedLibrary>();
  const auto text = ask_loader(*loader, program);
  if (!text) return text.error();
  // It names itself at least. What is no list would be taken for a program that needs nothing.
  if (text->empty())
    return ErrorInfo{ErrorCode::kBadInput, kCannot, *loader + " does not say what " + program + " needs",
                     "see what it complains about above, or leave --with-libraries out"};
  return read_loader_list(*text, program);
}

}  // namespace troupe
