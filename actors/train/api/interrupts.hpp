/// Ctrl-C while jobs run.
#pragma once

namespace troupe::train {

/// While one lives, SIGINT and SIGTERM are counted, each unless the program handles it itself; the second one
/// ends the program with 128 and its number, and its workers go with it. All that live at a time see the same
/// signal, and so does one that comes while another still lives. Thread-safe.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// The first signal that came, or 0.
  int signal() const;
};

}  // namespace troupe::train
