#include "actors/report/log_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::report {

LogFile::LogFile(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

Result<LogFile> LogFile::open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file) {
    return io_error("cannot write '" + path + "'", errno,
                    "name a file that can be written, in a folder that is there");
  }
  return LogFile(std::move(file), path);
}

Result<void> LogFile::write(std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    const ssize_t wrote = ::write(file_.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      auto error = io_error("cannot write '" + path_ + "'", errno,
                            "the file is incomplete from here on; training goes on");
      file_.reset();
      return error;
    }
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

}  // namespace troupe::report
