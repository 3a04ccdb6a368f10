#include "actors/report/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/standard_output.hpp"

namespace troupe::report {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

FdOutput::FdOutput(int fd)
    : fd_(fd),
      terminal_(::isatty(fd) == 1 && environment("TERM") != "dumb"),
      colour_(terminal_ && environment("NO_COLOR").empty()) {}

void FdOutput::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd_, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      if (errno == EAGAIN || std::exchange(told_, true)) return;
      const int error = errno;
      if (error != EPIPE)
        log(LogLevel::kWarning,
            io_error("the report cannot be written", error, "training goes on").message());
      if (fd_ == STDOUT_FILENO) output_failed(error);
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

int FdOutput::columns() const {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace troupe::report
