/// Ctrl-C while a job runs.
#pragma once

#include <csignal>
#include <vector>

namespace troupe::train {

/// While one lives, SIGINT and SIGTERM are counted, each unless the program handles it itself; the second one
/// ends the program with 128 and its number, and its workers go with it. One at a time takes them.
class Interrupts {
 public:
  explicit Interrupts(bool take);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// The first signal that came, or 0.
  int signal() const;

 private:
  std::vector<int> taken_;
};

}  // namespace troupe::train
