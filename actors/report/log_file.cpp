#include "actors/report/log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::report {

LogFile::LogFile(UniqueFd file, std::string path, bool empty)
    : file_(std::move(file)), path_(std::move(path)), begins_empty_(empty) {}

Result<LogFile> LogFile::open(const std::string& path, bool go_on) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (go_on ? 0 : O_TRUNC);
  UniqueFd file(::open(path.c_str(), flags, 0644));
  if (!file) {
    return io_error("cannot write '" + path + "'", errno,
                    "name a file that can be written, in a folder that is there");
  }
  struct stat info {};
  const bool empty = ::fstat(file.get(), &info) != 0 || info.st_size == 0;
  return LogFile(std::move(file), path, empty);
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
