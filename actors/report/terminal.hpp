/// Where a report goes: a terminal, or a file or pipe.
#pragma once

#include <string_view>

namespace troupe::report {

/// A place for text. Not thread-safe.
class Output {
 public:
  virtual ~Output() = default;
  /// Writes all of it at once. Text that nobody can receive any more is dropped: training goes on without a
  /// reader.
  virtual void write(std::string_view text) = 0;
  /// May the cursor be moved?
  virtual bool is_terminal() const = 0;
  /// May text be coloured?
  virtual bool has_colour() const = 0;
  /// Columns of the terminal now; it may be resized at any time.
  virtual int columns() const = 0;
};

/// A file descriptor, not owned. What cannot be written (a full disk) is told once, on standard error, and
/// training goes on (core/standard_output.hpp says how the program ends then). It is a terminal if the kernel
/// says so and $TERM is not "dumb"; it has colour if it is a terminal and $NO_COLOR is not set to anything
/// (no-color.org).
class FdOutput final : public Output {
 public:
  explicit FdOutput(int fd);
  void write(std::string_view text) override;
  bool is_terminal() const override { return terminal_; }
  bool has_colour() const override { return colour_; }
  int columns() const override;

 private:
  int fd_;
  bool terminal_;
  bool colour_;
  bool told_ = false;
};

}  // namespace troupe::report
