/// The output of a worker on its way to its driver: whole lines, and no more of them than the driver takes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace troupe::node {

/// Read from one stream of a worker in one turn of the loop.
inline constexpr std::size_t kOutputATurn = std::size_t{256} << 10;

/// Cuts one stream into whole lines. A line of over 64 KiB is cut.
class OutputLines {
 public:
  /// Takes what was read; returns the lines that are whole now, with their ends.
  std::string feed(std::string_view text);
  /// The stream has ended: the rest, as a line.
  std::string finish();
  /// The last line with anything in it, its first 300 bytes.
  const std::string& last_line() const { return last_line_; }

 private:
  void remember(std::string_view lines);

  std::string partial_;
  std::string last_line_;
};

/// Lines that found no room on the way to the driver. While there are any, the worker's pipe is not read, so
/// the worker is held back, for as long as it takes.
class OutputHold {
 public:
  bool is_empty() const { return kept_.empty(); }
  void keep(const std::string& text) { kept_ += text; }
  /// What to send next; `keep` it again if there is no room.
  std::string take() { return std::exchange(kept_, {}); }

 private:
  std::string kept_;
};

}  // namespace troupe::node
