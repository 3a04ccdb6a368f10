#include "scheduler/launch/run_spec.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace troupe::launch {
namespace {

bool read_number(std::string_view text, int& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() && number >= 0;
}

bool is_python_file(const std::string& word) {
  return word.size() > 3 && word.ends_with(".py");
}

std::string python() {
  const char* chosen = std::getenv("PYTHON_EXEC");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

ErrorInfo cannot_start(const std::string& program, std::string why, std::string todo) {
  return {ErrorCode::kBadConfig, "cannot start " + program, std::move(why), std::move(todo)};
}

std::string in_folder(const std::string& folder, const std::string& path) {
  return path.starts_with('/') || folder.empty() ? path : folder + "/" + path;
}

/// Nothing, or what is wrong with executing the file.
Result<void> check_file(const std::string& name, const std::string& path, int mode) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return cannot_start(name, std::strerror(errno),
                        "name a program that is there, on every node at the same path");
  if (S_ISDIR(info.st_mode)) return cannot_start(name, "it is a folder", "name the program in it");
  if (S_ISREG(info.st_mode) && info.st_size == 0)
    return cannot_start(name, "it is an empty file (0 bytes)", "build or copy it again");
  if (::access(path.c_str(), mode) != 0) {
    return mode == X_OK
               ? cannot_start(name, "it is not executable", "chmod +x it, or name its interpreter first")
               : cannot_start(name, std::strerror(errno), "let this user read it");
  }
  return {};
}

bool is_on_path(const std::string& name) {
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable == nullptr ? "/usr/bin:/bin" : variable;
  while (true) {
    const auto end = rest.find(':');
    const std::string path = std::string(rest.substr(0, end)) + "/" + name;
    struct stat info {};
    if (::access(path.c_str(), X_OK) == 0 && ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      return true;
    if (end == std::string_view::npos) return false;
    rest = rest.substr(end + 1);
  }
}

}  // namespace

Result<StreamChoice> parse_streams(std::string_view text) {
  const ErrorInfo wrong{ErrorCode::kBadConfig, "'" + std::string(text) + "' names no streams", "",
                        "give 0 to 3 for all local ranks (1 output, 2 errors, 3 both), or RANK:STREAMS,..."};
  StreamChoice choice;
  if (read_number(text, choice.of_all)) return choice.of_all <= 3 ? Result<StreamChoice>(choice) : wrong;
  choice.of_all = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const auto comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const auto colon = part.find(':');
    int rank = 0, streams = 0;
    if (colon == std::string_view::npos || !read_number(part.substr(0, colon), rank) ||
        !read_number(part.substr(colon + 1), streams) || streams > 3 ||
        !choice.of_rank.emplace(rank, streams).second)
      return wrong;
    if (comma == std::string_view::npos) return choice;
    rest = rest.substr(comma + 1);
  }
  return wrong;
}

Result<std::vector<std::string>> command_of(const ProgramWords& program) {
  if (program.words.empty())
    return ErrorInfo{ErrorCode::kBadConfig, "no program is given", "", "name it after the flags"};
  if (program.is_module && program.no_python) {
    return ErrorInfo{ErrorCode::kBadConfig, "-m and --no-python", "a module is run by Python",
                     "give one of them"};
  }
  std::vector<std::string> command;
  if (program.is_module) {
    command = {python(), "-u", "-m"};
  } else if (!program.no_python && is_python_file(program.words.front())) {
    command = {python(), "-u"};
  }
  command.insert(command.end(), program.words.begin(), program.words.end());
  return command;
}

Result<void> check_command(const std::vector<std::string>& command, const std::string& folder) {
  const std::string& first = command.front();
  if (first.empty()) return cannot_start("''", "its name is empty", "name a program");
  if (first.find('/') != std::string::npos) {
    if (auto good = check_file(first, in_folder(folder, first), X_OK); !good) return good;
  } else if (!is_on_path(first)) {
    return cannot_start(first, "no folder of PATH has it", "install it, or write its path (./" + first + ")");
  }
  // Python would say it once a rank.
  if (command.size() > 2 && command[1] == "-u" && is_python_file(command[2]))
    return check_file(command[2], in_folder(folder, command[2]), R_OK);
  return {};
}

}  // namespace troupe::launch
