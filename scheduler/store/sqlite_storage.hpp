/// The head's store on disk.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/storage.hpp"

namespace troupe {

/// A store in `folder`/troupe.db (SQLite, write-ahead log, synchronous = FULL), made with mode 0700 / 0600 if
/// it is not there. Errors: kIo (cannot create, read-only, disk full, in use by another process), kCorrupt
/// (the file fails its integrity check), kRefused (written by a newer troupe).
Result<std::unique_ptr<Storage>> open_sqlite_storage(const std::string& folder);

/// Removes a store and its folder, unless a process has it open.
void remove_unused_store(const std::string& folder);

}  // namespace troupe
