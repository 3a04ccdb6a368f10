/// Going on in the background, without leaving the caller in the dark about whether it worked.
#pragma once

#include <string>

#include "runtime/core/fd.hpp"

namespace troupe::cli {

/// Where a start says how it went: the terminal, or the process that waits for a detached one.
class Starter {
 public:
  /// Says it on this process's own output.
  Starter() = default;
  /// Forks. The caller's process waits for ready() or failed(), prints what they say and exits; this returns
  /// in a process of its own session whose output goes to the end of `log_path`. Throws IoError. REQUIRES:
  /// one thread.
  static Starter detach(const std::string& log_path);

  void ready(const std::string& text);
  /// A detached one has it in its log as well, with the time.
  void failed(const std::string& why);

 private:
  void say(char code, const std::string& text);
  UniqueFd waiting_;
  bool detached_ = false;
};

}  // namespace troupe::cli
