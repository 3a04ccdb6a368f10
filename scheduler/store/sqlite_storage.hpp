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

/// Removes a store that no process has open any more, and its folder: the lock last, so that
/// remove_unused_store() goes on where this process is killed.
void remove_store(const std::string& folder);
/// The same, unless a process has the store open. Also a folder without a store in it, of one that was killed
/// before it had made one. True: a process has it open.
bool remove_unused_store(const std::string& folder);

}  // namespace troupe
