/// A file that a report is appended to, line by line or record by record.
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::report {

/// Movable. Not thread-safe.
class LogFile {
 public:
  /// Opens `path`, and empties a file that is there, or with `go_on` writes behind its end. Error (kIo):
  /// names the path and why it cannot be written.
  static Result<LogFile> open(const std::string& path, bool go_on = false);
  /// Whether it held nothing when it was opened.
  bool begins_empty() const { return begins_empty_; }
  /// Writes all of it with one write(2), where the kernel takes it so. After an error (kIo) later writes are
  /// dropped: the caller reports it once, and training goes on.
  Result<void> write(std::string_view bytes);

 private:
  LogFile(UniqueFd file, std::string path, bool empty);

  UniqueFd file_;  // none after an error
  std::string path_;
  bool begins_empty_ = true;
};

}  // namespace troupe::report
