#include "collectives/flight/dump_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "collectives/normal_end.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::collectives::flight {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".flight";

/// A name for a file, of letters, digits, '.', '_' and '-', without a leading dot.
std::string file_name(const std::string& text) {
  std::string name = text.substr(0, 100);
  for (char& c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-' || c == '.';
    if (!fine) c = '-';
  }
  if (name.empty() || name.front() == '.') name.insert(0, "_");
  return name;
}

/// Makes the folder and its parents, for this user alone.
Result<void> make_folder(const std::string& path) {
  const std::string todo = "make it writable, or set TROUPE_FLIGHT_FOLDER to another folder";
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int why = errno;
    const std::string parent = fs::path(path).parent_path().string();
    if (why != ENOENT || parent.empty() || parent == path)
      return io_error("cannot make the folder " + path, why, todo);
    if (auto made = make_folder(parent); !made) return made;
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      return io_error("cannot make the folder " + path, errno, todo);
  }
  return {};
}

/// Somebody else's folder, or one that others may write to, could lead the dump anywhere.
Result<void> check_own(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return io_error("cannot look at the folder " + path, errno);
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 022) == 0) return {};
  return ErrorInfo{ErrorCode::kRefused, "cannot dump the flight recorder to " + path,
                   "it is not a folder of this user that nobody else may write to",
                   "chmod 700 it, or set TROUPE_FLIGHT_FOLDER to another folder"};
}

/// NAME-gINCARNATION.COUNTER: what write_dump makes, and what may be removed again.
bool is_group_folder(const std::string& name) {
  const auto at = name.rfind("-g");
  if (at == std::string::npos || at == 0) return false;
  const std::string digits = name.substr(at + 2);
  return !digits.empty() && std::count(digits.begin(), digits.end(), '.') == 1 &&
         digits.find_first_not_of("0123456789.") == std::string::npos;
}

bool is_dump(const fs::path& file) {
  return file.filename().string().starts_with("rank-");
}

/// Whether every dump there says that its group ended as it should have.
bool ended_normally(const fs::path& group) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(group, error)) {
    if (!is_dump(file.path())) continue;
    std::ifstream dump(file.path());
    std::string line;
    while (std::getline(dump, line) && !line.starts_with("reason ")) {
    }
    if (!is_normal_end(line)) return false;
  }
  return true;
}

/// Removes the oldest groups' dumps, and nothing that is no dump. Others may do the same at once.
void forget_old_groups(const std::string& folder, const std::string& keep) {
  std::error_code error;
  using Groups = std::vector<std::pair<fs::file_time_type, fs::path>>;
  Groups failures, normal_ends;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == keep || !is_group_folder(name) || entry.is_symlink(error) || !entry.is_directory(error))
      continue;
    Groups& of = ended_normally(entry.path()) ? normal_ends : failures;
    of.emplace_back(entry.last_write_time(error), entry.path());
  }
  const auto forget = [&](Groups& groups, std::size_t kept) {
    std::sort(groups.begin(), groups.end());
    for (std::size_t i = 0; i + kept < groups.size() + 1; ++i) {
      for (const auto& file : fs::directory_iterator(groups[i].second, error)) {
        if (is_dump(file.path())) ::unlink(file.path().c_str());
      }
      ::rmdir(groups[i].second.c_str());  // fails when something else is in it
    }
  };
  forget(failures, kKeptGroups);
  forget(normal_ends, kKeptNormalEnds);
}

/// Files of dumps in `folder`, without its folders.
std::vector<std::string> dumps_in(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == kSuffix && entry.is_regular_file(error))
      files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string timeline_folder() {
  const char* folder = std::getenv("TROUPE_TIMELINE");
  return folder != nullptr ? folder : "";
}

std::string default_flight_folder() {
  if (const char* folder = std::getenv("TROUPE_FLIGHT_FOLDER"); folder != nullptr) return folder;
  if (const char* own = std::getenv("TROUPE_FOLDER"); own != nullptr && *own != '\0')
    return std::string(own) + "/flight";
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::string(state) + "/troupe/flight";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.local/state/troupe/flight";
  return {};
}

Result<std::string> write_dump(const std::string& folder, const Dump& dump, bool forgets) {
  const std::string group = file_name(dump.group) + "-g" + to_string(dump.generation);
  const std::string into = folder + "/" + group;
  if (auto made = make_folder(folder); !made) return made.error();
  if (auto own = check_own(folder); !own) return own.error();
  const bool fresh = ::mkdir(into.c_str(), 0700) == 0;
  if (!fresh && errno != EEXIST) return io_error("cannot make the folder " + into, errno);
  if (auto own = check_own(into); !own) return own.error();
  const std::string path = into + "/rank-" + std::to_string(dump.rank) + std::string(kSuffix);
  static std::mutex one_at_a_time;  // two threads that dump one rank share a temporary file
  const std::lock_guard lock(one_at_a_time);
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  if (auto wrote = write_whole(path, encode(dump), {.temporary = temporary, .mode = 0600}); !wrote)
    return wrote.error();
  if (fresh && forgets) forget_old_groups(folder, group);
  return path;
}

Result<std::vector<std::string>> find_dumps(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::exists(path, error)) return std::vector<std::string>{path};
    return ErrorInfo{ErrorCode::kIo, "cannot read dumps of the flight recorder", "there is no " + path,
                     "they are written when a collective fails; name a dump, or a folder with dumps"};
  }
  auto files = dumps_in(path, error);
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (!is_group_folder(entry.path().filename().string()) || !entry.is_directory(error)) continue;
    for (auto& file : dumps_in(entry.path(), error)) files.push_back(std::move(file));
  }
  if (error) return io_error("cannot read the folder " + path, error.value());
  if (files.empty()) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot read dumps of the flight recorder",
                     "there are none in " + path,
                     "they are written when a collective fails; name another folder"};
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<Dump> read_dump(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return io_error("cannot read " + path, errno);
  std::string text;
  char bytes[1 << 16];
  while (text.size() <= kMaxDumpBytes) {
    const auto got = ::read(fd.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read " + path, errno);
    if (got == 0) break;
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return parse_dump(text, path);
}

}  // namespace troupe::collectives::flight
