#include "scheduler/cli/detach.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/escape.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/thread_limit.hpp"

namespace troupe::cli {
namespace {

/// What was written to the log since, its end alone.
std::string end_of_log(const std::string& path, std::uintmax_t since) {
  constexpr std::uintmax_t kMost = 2000;
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size <= since) return "";
  const std::uintmax_t from = std::max(since, size - std::min(size, kMost));
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(from));
  std::string text(size - from, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

/// The first byte says whether it worked; the rest is for the person. Ends with the writer's death at the
/// latest.
[[noreturn]] void wait_and_exit(int fd, const std::string& log_path, std::uintmax_t log_size) {
  std::string said;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR);) {
    if (got > 0) said.append(buffer, static_cast<std::size_t>(got));
  }
  const bool ready = !said.empty() && said.front() == 'r';
  if (said.empty()) {
    const std::string why = end_of_log(log_path, log_size);
    std::fprintf(stderr, "troupe: it died before it was ready; %s says: %s\n", escape_name(log_path).c_str(),
                 why.empty() ? "nothing" : escape_text(why).c_str());
  } else {
    std::fprintf(ready ? stdout : stderr, "%s", said.c_str() + 1);
  }
  std::fflush(nullptr);
  ::_exit(ready ? 0 : 1);
}

/// What the caller's shell had open, a lock for one, is not to be kept for as long as the cluster lives. Ours
/// close on exec, so what does not was inherited.
void close_inherited() {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir("/proc/self/fd"), ::closedir);
  std::vector<int> inherited;
  while (const dirent* entry = open ? ::readdir(open.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    if (fd > STDERR_FILENO && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) inherited.push_back(fd);
  }
  for (const int fd : inherited) ::close(fd);
}

}  // namespace

Starter Starter::detach(const std::string& log_path) {
  const UniqueFd log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) throw_error(io_error("cannot write " + log_path, errno, "make its folder writable"));
  std::error_code ignored;
  const std::uintmax_t log_size = std::filesystem::file_size(log_path, ignored);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_error(io_error("cannot make a pipe", errno, "raise ulimit -n"));
  UniqueFd reading(ends[0]);
  Starter starter;
  starter.waiting_ = UniqueFd(ends[1]);
  starter.detached_ = true;
  const pid_t pid = ::fork();
  if (pid < 0) throw_error(io_error("cannot go on in the background", errno, kRaiseProcesses));
  if (pid > 0) {
    starter.waiting_.reset();
    wait_and_exit(reading.get(), log_path, ignored ? 0 : log_size);
  }
  ::setsid();
  close_inherited();
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(log.get(), STDOUT_FILENO);
  ::dup2(log.get(), STDERR_FILENO);
  return starter;
}

void Starter::ready(const std::string& text) {
  say('r', text);
}

void Starter::failed(const std::string& why) {
  if (detached_) log(LogLevel::kError, why);
  say('f', "troupe: " + escape_text(why) + "\n");
}

void Starter::say(char code, const std::string& text) {
  if (!detached_) {
    std::fprintf(code == 'r' ? stdout : stderr, "%s", text.c_str());
    std::fflush(nullptr);
    return;
  }
  if (!waiting_) return;
  const std::string all = code + text;
  [[maybe_unused]] const auto written = ::write(waiting_.get(), all.data(), all.size());
  waiting_.reset();
}

}  // namespace troupe::cli
