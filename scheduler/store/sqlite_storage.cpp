#include "scheduler/store/sqlite_storage.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>

#include "runtime/core/fd.hpp"

namespace troupe {

namespace {

// "trpe" in the file's header: what `file` prints, and how another program's database is told apart.
constexpr int kApplicationId = 0x74727065;
constexpr int kSchemaVersion = 1;
constexpr const char* kLockFile = "troupe.lock";
constexpr std::size_t kMaxFoundBytes = std::size_t{1} << 30;

struct DatabaseCloser {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct StatementFinalizer {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, DatabaseCloser>;
using Statement = std::unique_ptr<sqlite3_stmt, StatementFinalizer>;

std::string free_space(const std::string& path) {
  std::error_code error;
  const auto space = std::filesystem::space(std::filesystem::path(path).parent_path(), error);
  return error ? std::string() : "; " + std::to_string(space.available >> 20) + " MiB are free there";
}

bool files_are_limited() {
  rlimit files{};
  return ::getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
}

/// What went wrong, in the words of the person who has to repair it.
ErrorInfo store_error(sqlite3* db, int code, const std::string& path, const std::string& doing) {
  const std::string what = "cannot " + doing + " the store " + path;
  std::string why = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_FULL:
      return {ErrorCode::kIo, what, "the disk is full" + free_space(path),
              "free space; nothing that was acknowledged is lost"};
    case SQLITE_READONLY:
      return {ErrorCode::kIo, what, "it is read-only",
              "make the file and its folder writable for the user who runs the head"};
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return {ErrorCode::kIo, what, why, "make its folder writable for the user who runs the head"};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return {ErrorCode::kCorrupt, what, why, "restore the file from a copy, or move it away to start empty"};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {ErrorCode::kIo, what, "another process has it open", "stop the other head first"};
    default:
      if ((code & 0xff) == SQLITE_IOERR && files_are_limited())  // SQLite does not keep errno
        return {ErrorCode::kIo, what, why + ", perhaps: " + errno_text(EFBIG),
                "raise ulimit -f where it starts, or look at the disk's health and free space"};
      return {ErrorCode::kIo, what, why + free_space(path), "look at the disk's health and free space"};
  }
}

/// Takes the folder for this process alone. The kernel frees the lock when its holder dies, however it dies.
Result<UniqueFd> lock_folder(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return io_error("cannot create the store's folder " + folder, errno, "make its parent writable");
    }
  }
  const std::string path = folder + "/" + kLockFile;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    return io_error("cannot open " + path, errno, "make the folder writable for the user who runs the head");
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return ErrorInfo{ErrorCode::kIo, "cannot open the store in " + folder, "another process has it open",
                     "stop the other head first (troupe stop)"};
  }
  return fd;
}

class SqliteStorage final : public Storage {
 public:
  static Result<std::unique_ptr<Storage>> open(const std::string& folder);

  Result<void> apply(const StoreBatch& batch) override;
  Result<std::optional<Bytes>> get(std::string_view key) override;
  Result<std::vector<StoreEntry>> scan(std::string_view prefix) override;

 private:
  SqliteStorage(UniqueFd lock, Database db, std::string path)
      : lock_(std::move(lock)), db_(std::move(db)), path_(std::move(path)) {}

  ErrorInfo error(int code, const std::string& doing) const {
    return store_error(db_.get(), code, path_, doing);
  }
  Result<void> execute(const char* sql, const std::string& doing);
  Result<std::int64_t> ask_number(const char* sql);
  Result<bool> check_identity();
  Result<void> check_integrity();
  Result<void> prepare();
  int run(sqlite3_stmt* statement, const StoreBatch::Change& change);

  UniqueFd lock_;
  Database db_;
  std::string path_;
  Statement put_;
  Statement erase_;
  Statement get_;
  Statement scan_;
};

Result<void> SqliteStorage::execute(const char* sql, const std::string& doing) {
  const int code = sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return error(code, doing);
  return {};
}

Result<std::int64_t> SqliteStorage::ask_number(const char* sql) {
  sqlite3_stmt* raw = nullptr;
  const int prepared = sqlite3_prepare_v2(db_.get(), sql, -1, &raw, nullptr);
  const Statement statement(raw);
  if (prepared != SQLITE_OK) return error(prepared, "open");
  const int code = sqlite3_step(raw);
  if (code != SQLITE_ROW) return error(code, "open");
  return static_cast<std::int64_t>(sqlite3_column_int64(raw, 0));
}

/// Refuses another program's database and one written by a newer troupe, before anything is written to it.
/// True if it is a store of this version already.
Result<bool> SqliteStorage::check_identity() {
  const auto application = ask_number("PRAGMA application_id");
  if (!application) return application.error();
  const auto version = ask_number("PRAGMA user_version");
  if (!version) return version.error();
  const auto tables = ask_number("SELECT count(*) FROM sqlite_schema");
  if (!tables) return tables.error();
  if (*application != kApplicationId && *tables > 0) {
    return ErrorInfo{ErrorCode::kRefused, "refused the store " + path_, "it is a database of another program",
                     "give the head another folder"};
  }
  if (*version > kSchemaVersion) {
    return ErrorInfo{ErrorCode::kRefused, "refused the store " + path_,
                     "a newer troupe wrote it (schema " + std::to_string(*version) +
                         ", this one reads up to " + std::to_string(kSchemaVersion) + ")",
                     "run that newer version, or give the head another folder"};
  }
  return *application == kApplicationId && *version == kSchemaVersion && *tables > 0;
}

Result<void> SqliteStorage::check_integrity() {
  sqlite3_stmt* raw = nullptr;
  const int prepared = sqlite3_prepare_v2(db_.get(), "PRAGMA integrity_check(1)", -1, &raw, nullptr);
  const Statement statement(raw);
  if (prepared != SQLITE_OK) return error(prepared, "check");
  const int code = sqlite3_step(raw);
  if (code != SQLITE_ROW) return error(code, "check");
  const std::string verdict = reinterpret_cast<const char*>(sqlite3_column_text(raw, 0));
  if (verdict != "ok") {
    return ErrorInfo{ErrorCode::kCorrupt, "cannot use the store " + path_, verdict,
                     "restore the file from a copy, or move it away to start empty"};
  }
  return {};
}

Result<void> SqliteStorage::prepare() {
  const std::pair<Statement*, const char*> statements[] = {
      {&put_, "INSERT INTO entries(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2"},
      {&erase_, "DELETE FROM entries WHERE key = ?1"},
      {&get_, "SELECT value FROM entries WHERE key = ?1"},
      {&scan_, "SELECT key, value FROM entries WHERE key >= ?1 ORDER BY key"},
  };
  for (const auto& [statement, sql] : statements) {
    sqlite3_stmt* raw = nullptr;
    const int code = sqlite3_prepare_v3(db_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
    statement->reset(raw);
    if (code != SQLITE_OK) return error(code, "open");
  }
  return {};
}

Result<std::unique_ptr<Storage>> SqliteStorage::open(const std::string& folder) {
  auto lock = lock_folder(folder);
  if (!lock) return lock.error();
  const std::string path = folder + "/troupe.db";
  // SQLite would create the file with the umask's mode; what the head stores is nobody else's business.
  // Closed at once: closing it later would drop SQLite's own locks on the file.
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return io_error("cannot open the store " + path, errno, "make it writable for the head's user");
  file.reset();
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, nullptr);
  Database db(raw);
  if (code != SQLITE_OK) return store_error(raw, code, path, "open");
  sqlite3_extended_result_codes(raw, 1);
  // Values and statements are bounded by ours; schema tricks of a hostile file stay harmless.
  sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);

  std::unique_ptr<SqliteStorage> store(new SqliteStorage(std::move(*lock), std::move(db), path));
  // The folder's lock keeps others out. So no index of the log is shared: it would be a file, and a head that
  // starts again on a full disk could not make it.
  if (auto alone = store->execute("PRAGMA locking_mode = EXCLUSIVE", "open"); !alone) return alone.error();
  const auto known = store->check_identity();
  if (!known) return known.error();
  if (auto whole = store->check_integrity(); !whole) return whole.error();
  if (auto log = store->execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", "open"); !log)
    return log.error();
  const std::string setup =
      "BEGIN IMMEDIATE;"
      "CREATE TABLE IF NOT EXISTS entries(key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
      "PRAGMA application_id = " +
      std::to_string(kApplicationId) + "; PRAGMA user_version = " + std::to_string(kSchemaVersion) +
      "; COMMIT;";
  if (!*known) {  // what exists is not written to: the disk may be full
    if (auto ready = store->execute(setup.c_str(), "open"); !ready) return ready.error();
  }
  if (auto ready = store->prepare(); !ready) return ready.error();
  return std::unique_ptr<Storage>(std::move(store));
}

int SqliteStorage::run(sqlite3_stmt* statement, const StoreBatch::Change& change) {
  sqlite3_bind_blob64(statement, 1, change.key.data(), change.key.size(), SQLITE_STATIC);
  if (change.value) {
    // A null pointer would bind NULL, which an empty value is not.
    const void* data = change.value->empty() ? "" : static_cast<const void*>(change.value->data());
    sqlite3_bind_blob64(statement, 2, data, change.value->size(), SQLITE_STATIC);
  }
  const int code = sqlite3_step(statement);
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return code;
}

Result<void> SqliteStorage::apply(const StoreBatch& batch) {
  if (auto bounded = check_bounds(batch); !bounded) return bounded;
  if (batch.empty()) return {};
  if (auto begun = execute("BEGIN IMMEDIATE", "write to"); !begun) return begun;
  for (const StoreBatch::Change& change : batch.changes()) {
    const int code = run(change.value ? put_.get() : erase_.get(), change);
    if (code != SQLITE_DONE) {
      ErrorInfo failed = error(code, "write to");
      sqlite3_exec(db_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
      return failed;
    }
  }
  auto committed = execute("COMMIT", "write to");
  // A COMMIT that failed may leave the transaction open; the next write must not become part of it.
  if (!committed && sqlite3_get_autocommit(db_.get()) == 0) {
    sqlite3_exec(db_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return committed;
}

Bytes column_bytes(sqlite3_stmt* statement, int column) {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement, column));
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
  return size == 0 ? Bytes() : Bytes(data, data + size);
}

Result<std::optional<Bytes>> SqliteStorage::get(std::string_view key) {
  sqlite3_stmt* statement = get_.get();
  sqlite3_bind_blob64(statement, 1, key.data(), key.size(), SQLITE_STATIC);
  const int code = sqlite3_step(statement);
  std::optional<Bytes> value;
  if (code == SQLITE_ROW) value = column_bytes(statement, 0);
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  if (code != SQLITE_ROW && code != SQLITE_DONE) return error(code, "read from");
  return value;
}

Result<std::vector<StoreEntry>> SqliteStorage::scan(std::string_view prefix) {
  sqlite3_stmt* statement = scan_.get();
  sqlite3_bind_blob64(statement, 1, prefix.empty() ? "" : prefix.data(), prefix.size(), SQLITE_STATIC);
  std::vector<StoreEntry> found;
  std::size_t bytes = 0;
  int code = sqlite3_step(statement);
  for (; code == SQLITE_ROW && bytes <= kMaxFoundBytes; code = sqlite3_step(statement)) {
    const Bytes key = column_bytes(statement, 0);
    StoreEntry entry{{reinterpret_cast<const char*>(key.data()), key.size()}, column_bytes(statement, 1)};
    if (!entry.key.starts_with(prefix)) break;
    bytes += entry.key.size() + entry.value.size();
    found.push_back(std::move(entry));
  }
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  if (bytes > kMaxFoundBytes) {
    return ErrorInfo{ErrorCode::kLimit, "cannot read from the store " + path_,
                     "more than 1 GiB of entries start so", "ask for a longer prefix"};
  }
  if (code != SQLITE_ROW && code != SQLITE_DONE) return error(code, "read from");
  return found;
}

}  // namespace

Result<std::unique_ptr<Storage>> open_sqlite_storage(const std::string& folder) {
  return SqliteStorage::open(folder);
}

void remove_store(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;) {
    if (at->path().filename() != kLockFile) std::filesystem::remove_all(at->path(), error);
    if (!error) at.increment(error);
  }
  if (error) return;
  ::unlink((folder + "/" + kLockFile).c_str());
  ::rmdir(folder.c_str());
}

bool remove_unused_store(const std::string& folder) {
  if (::rmdir(folder.c_str()) == 0) return false;
  const UniqueFd lock(::open((folder + "/" + kLockFile).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return false;
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return true;
  remove_store(folder);
  return false;
}

}  // namespace troupe
