/// The output of a worker on its way to its driver: whole lines, and no more of them than the driver takes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/ids.hpp"
#include "runtime/wire/address.hpp"

namespace troupe::node {

/// Read from one stream of a worker in one turn of the loop.
inline constexpr std::size_t kOutputATurn = std::size_t{256} << 10;

/// Cuts one stream into whole lines. A line of over 64 KiB is cut.
class OutputLines {
 public:
  /// Takes what was read, in that turn of the worker or a later one (output_turn.hpp); returns the lines that
  /// are whole now, with their ends.
  std::string feed(std::string_view text, std::uint32_t turn = 0);
  /// The stream has ended: the rest, as a line.
  std::string finish();
  /// The last line with anything in it, its first 300 bytes. Empty: what was read in that turn, but for its
  /// first `unread` bytes, has none.
  std::string last_line(std::uint32_t turn = 0, std::uint32_t unread = 0) const {
    return last_turn_ == turn && last_begin_ >= unread ? last_line_ : "";
  }

 private:
  void remember(std::string_view lines);

  std::string partial_;
  std::string last_line_;
  std::uint32_t turn_ = 0, last_turn_ = 0;
  std::int64_t read_ = 0;        ///< bytes, in that turn
  std::int64_t last_begin_ = 0;  ///< of last_line_ in its turn's bytes; negative: in those of one before
};

/// What is under way to each driver of the output of this node's workers: sent, and not yet written there.
/// Workers of a driver whose window is full are held back until it is half empty.
class OutputWindows {
 public:
  explicit OutputWindows(std::size_t bytes) : bytes_(bytes) {}

  bool is_full(ProcessAddress driver) const {
    const auto at = all_.find(driver);
    return at != all_.end() && at->second.is_full;
  }
  void sent(ProcessAddress driver, std::size_t bytes);
  /// True: it was full, and has room again. More than was sent is as much as was sent: a link may have broken
  /// in between.
  bool taken(ProcessAddress driver, std::size_t bytes);
  /// What was under way to that driver, or to any one of that node, is lost or written: nobody tells which.
  /// True: as above.
  bool forget(ProcessAddress driver) { return all_.erase(driver) != 0; }
  bool forget(NodeId node) {
    return std::erase_if(all_, [node](const auto& window) { return window.first.node == node; }) != 0;
  }

 private:
  struct Window {
    std::size_t under_way = 0;
    bool is_full = false;
  };
  const std::size_t bytes_;
  std::map<ProcessAddress, Window> all_;  ///< those with something under way
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
