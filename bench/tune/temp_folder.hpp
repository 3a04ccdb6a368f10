/// A folder for what a benchmark writes, gone with it.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/core/error.hpp"

namespace troupe::bench {

/// On a disk: /tmp may be memory.
class TempFolder {
 public:
  TempFolder() {
    if (::mkdtemp(path_.data()) == nullptr)
      throw IoError(io_error("cannot make a folder in /var/tmp", errno, "make room there"));
  }
  ~TempFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/var/tmp/troupe-bench-tune-XXXXXX";
};

}  // namespace troupe::bench
