/// Errors. Every message has three parts: what happened, why, what to do.
///
/// The public API throws subclasses of troupe::Error. Decoders of outside bytes (wire, files, config) never
/// throw: they return Result<T>, whose error is the same three parts (see result.hpp).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

/// What went wrong, as a stable name; it crosses processes as its number.
enum class ErrorCode : int {
  kInternal = 0,     ///< a broken promise of troupe itself
  kBadConfig = 1,    ///< options or flags that make no sense
  kBadInput = 2,     ///< bytes from outside (file, wire, HTTP) that do not decode
  kTimeout = 3,      ///< a wait reached its deadline
  kActorDied = 4,    ///< the actor's process, node or constructor is gone
  kTaskFailed = 5,   ///< user code threw
  kAborted = 6,      ///< a collective was aborted
  kUnavailable = 7,  ///< a peer or resource cannot be reached now
  kRefused = 8,      ///< wrong key, version, package or generation
  kIo = 9,           ///< the operating system refused a file, socket or mapping
  kLimit = 10,       ///< a bound on size, depth or count
  kCorrupt = 11,     ///< a checksum or structure that does not hold
  kObjectLost = 12,  ///< the process that made an object is gone, or nobody held the object any more
  kCancelled = 13,   ///< whoever asked for it does not want it any more
};

/// The name of a code, as printed: "timeout", "actor died".
std::string_view error_code_name(ErrorCode code) noexcept;

/// One error as a value.
struct ErrorInfo {
  ErrorCode code = ErrorCode::kInternal;
  std::string what;  ///< what happened
  std::string why;   ///< the cause as far as it is known
  std::string todo;  ///< what the reader can do about it

  // Of an exception that crossed processes; otherwise empty.
  std::string type;    ///< its type, as in the source: "std::out_of_range"
  std::string origin;  ///< where it was thrown: "Counter::add, actor 2a, process 1f, node 3"

  /// "what: why (todo) [origin]", leaving out empty parts.
  std::string message() const;
};

/// Base of every exception that troupe's public API throws. Thread-safe to copy and read.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorInfo info);
  const ErrorInfo& info() const noexcept { return info_; }
  ErrorCode code() const noexcept { return info_.code; }
  /// Where an exception was thrown that crossed processes: method, actor, process, node. Otherwise empty.
  const std::string& origin() const noexcept { return info_.origin; }
  /// The type of an exception that crossed processes, as in the source: "std::out_of_range". Otherwise empty.
  const std::string& exception_type() const noexcept { return info_.type; }

 protected:
  Error(ErrorCode code, ErrorInfo info);

 private:
  ErrorInfo info_;
};

// One subclass a code that callers handle differently. It sets its code, whatever it is given.
struct BadConfig : Error {
  BadConfig(std::string what, std::string why, std::string todo);
  explicit BadConfig(ErrorInfo i) : Error(ErrorCode::kBadConfig, std::move(i)) {}
};
struct BadInput : Error {
  explicit BadInput(ErrorInfo i) : Error(ErrorCode::kBadInput, std::move(i)) {}
};
struct Timeout : Error {
  explicit Timeout(ErrorInfo i) : Error(ErrorCode::kTimeout, std::move(i)) {}
};
struct ActorDied : Error {
  explicit ActorDied(ErrorInfo i) : Error(ErrorCode::kActorDied, std::move(i)) {}
};
struct TaskFailed : Error {
  explicit TaskFailed(ErrorInfo i) : Error(ErrorCode::kTaskFailed, std::move(i)) {}
  /// What the exception said, alone.
  const std::string& exception_message() const noexcept { return info().why; }
  /// Throws it again as what it was. If it did not cross processes, that is nested in this one
  /// (std::throw_with_nested), of whatever type. If it did, it is one of the standard library's types with a
  /// message (std::out_of_range, std::runtime_error, ...) or std::bad_alloc, and else this TaskFailed.
  [[noreturn]] void rethrow() const;
};
struct CollectiveAborted : Error {
  explicit CollectiveAborted(ErrorInfo i) : Error(ErrorCode::kAborted, std::move(i)) {}
};
struct Unavailable : Error {
  explicit Unavailable(ErrorInfo i) : Error(ErrorCode::kUnavailable, std::move(i)) {}
};
struct Refused : Error {
  explicit Refused(ErrorInfo i) : Error(ErrorCode::kRefused, std::move(i)) {}
};
struct IoError : Error {
  explicit IoError(ErrorInfo i) : Error(ErrorCode::kIo, std::move(i)) {}
};
struct LimitExceeded : Error {
  explicit LimitExceeded(ErrorInfo i) : Error(ErrorCode::kLimit, std::move(i)) {}
};
struct ObjectLost : Error {
  explicit ObjectLost(ErrorInfo i) : Error(ErrorCode::kObjectLost, std::move(i)) {}
};
struct Cancelled : Error {
  explicit Cancelled(ErrorInfo i) : Error(ErrorCode::kCancelled, std::move(i)) {}
};

/// Throws the subclass that belongs to `info.code`.
[[noreturn]] void throw_error(ErrorInfo info);

/// errno's text; of a write beyond ulimit -f, with that limit.
std::string errno_text(int errno_value);
/// An ErrorInfo for a failed system call: `what` names the call and its object, the why is errno_text().
ErrorInfo io_error(std::string what, int errno_value, std::string todo = {});

}  // namespace troupe
