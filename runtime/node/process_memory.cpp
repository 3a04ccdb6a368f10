#include "runtime/node/process_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/core/fd.hpp"

namespace troupe::node {
namespace {

/// The first bytes of a file of /proc, which one read gives.
std::string_view read_proc(const std::string& path, char* buffer, std::size_t size) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd ? ::read(fd.get(), buffer, size) : -1;
  return {buffer, got > 0 ? static_cast<std::size_t>(got) : 0};
}

/// Of a line "RssAnon:	     148 kB".
std::int64_t kib_in(std::string_view text, std::string_view key) {
  const auto at = text.find(key);
  if (at == std::string_view::npos) return 0;
  const auto digit = text.find_first_of("0123456789", at);
  std::int64_t kib = 0;
  if (digit != std::string_view::npos) std::from_chars(text.data() + digit, text.data() + text.size(), kib);
  return kib;
}

/// The third word behind the name in /proc/PID/stat; -1: there is none.
pid_t group_in(std::string_view stat) {
  const auto name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return -1;
  std::size_t at = name_end + 1;
  for (int word = 0; word < 3 && at != std::string_view::npos; ++word) at = stat.find(' ', at + (word > 0));
  pid_t group = -1;
  if (at != std::string_view::npos) std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), group);
  return group;
}

}  // namespace

std::int64_t anonymous_bytes(pid_t process) {
  char buffer[4096];
  const auto text = read_proc("/proc/" + std::to_string(process) + "/status", buffer, sizeof buffer);
  return (kib_in(text, "\nRssAnon:") + kib_in(text, "\nVmSwap:")) * 1024;
}

std::int64_t share_of_anonymous_bytes(pid_t process) {
  char buffer[4096];
  const auto text = read_proc("/proc/" + std::to_string(process) + "/smaps_rollup", buffer, sizeof buffer);
  if (text.find("\nPss_Anon:") == std::string_view::npos) return anonymous_bytes(process);
  return (kib_in(text, "\nPss_Anon:") + kib_in(text, "\nSwapPss:")) * 1024;
}

std::map<pid_t, std::vector<pid_t>> processes_of_groups(const std::vector<pid_t>& groups) {
  std::map<pid_t, std::vector<pid_t>> members;
  for (const pid_t group : groups) members[group] = {};
  if (groups.empty()) return members;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    pid_t process = 0;
    const auto [stop, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong != std::errc() || stop != name.data() + name.size()) continue;
    char buffer[1024];
    const auto found = members.find(group_in(read_proc("/proc/" + name + "/stat", buffer, sizeof buffer)));
    if (found != members.end()) found->second.push_back(process);
  }
  return members;
}

std::int64_t swapped_bytes() {
  char buffer[4096];
  const auto text = read_proc("/proc/meminfo", buffer, sizeof buffer);
  return std::max<std::int64_t>(0, kib_in(text, "\nSwapTotal:") - kib_in(text, "\nSwapFree:")) * 1024;
}

}  // namespace troupe::node
