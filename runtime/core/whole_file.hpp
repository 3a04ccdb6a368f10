/// Files that are there whole or not at all.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "runtime/core/result.hpp"

namespace troupe {

struct WholeFileOptions {
  /// Of the file until it is whole: in the folder of the file, and of no other writer. Empty: the path and
  /// ".part".
  std::string temporary{};
  mode_t mode = 0644;
  bool durable = false;  ///< survives a crash of the machine: synced, and its folder, too
  std::string what{};    ///< what an error says first; empty: "cannot write PATH"
  std::string todo = "make room on the disk";
};

/// Writes the pieces one after another. Who reads meanwhile sees the former file. Error (kIo): names the call
/// that failed; nothing is left behind. Thread-safe for different temporaries.
Result<void> write_whole(const std::string& path, std::span<const std::span<const std::byte>> pieces,
                         const WholeFileOptions& options = {});
inline Result<void> write_whole(const std::string& path, std::string_view text,
                                const WholeFileOptions& options = {}) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  return write_whole(path, std::span(&piece, 1), options);
}
inline Result<void> write_whole(const std::string& path,
                                std::initializer_list<std::span<const std::byte>> pieces,
                                const WholeFileOptions& options = {}) {
  return write_whole(path, std::span(pieces.begin(), pieces.size()), options);
}

}  // namespace troupe
