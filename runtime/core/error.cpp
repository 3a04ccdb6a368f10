#include "runtime/core/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <optional>

namespace troupe {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal error";
    case ErrorCode::kBadConfig:
      return "bad config";
    case ErrorCode::kBadInput:
      return "bad input";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kActorDied:
      return "actor died";
    case ErrorCode::kTaskFailed:
      return "task failed";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kRefused:
      return "refused";
    case ErrorCode::kIo:
      return "i/o error";
    case ErrorCode::kLimit:
      return "limit";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kObjectLost:
      return "object lost";
    case ErrorCode::kCancelled:
      return "cancelled";
  }
  return "unknown error";
}

std::string ErrorInfo::message() const {
  std::string text = what.empty() ? std::string(error_code_name(code)) : what;
  if (!why.empty()) text += ": " + why;
  if (!todo.empty()) text += " (" + todo + ")";
  if (!origin.empty()) text += " [" + origin + "]";
  return text;
}

Error::Error(ErrorInfo info) : std::runtime_error(info.message()), info_(std::move(info)) {}

Error::Error(ErrorCode code, ErrorInfo info) : Error((info.code = code, std::move(info))) {}

BadConfig::BadConfig(std::string what, std::string why, std::string todo)
    : Error({ErrorCode::kBadConfig, std::move(what), std::move(why), std::move(todo)}) {}

void TaskFailed::rethrow() const {
  const auto* nesting = dynamic_cast<const std::nested_exception*>(this);
  if (nesting != nullptr && nesting->nested_ptr()) nesting->rethrow_nested();
  const std::string& type = exception_type();
  const std::string& text = exception_message();
  if (type == "std::runtime_error") throw std::runtime_error(text);
  if (type == "std::logic_error") throw std::logic_error(text);
  if (type == "std::invalid_argument") throw std::invalid_argument(text);
  if (type == "std::domain_error") throw std::domain_error(text);
  if (type == "std::length_error") throw std::length_error(text);
  if (type == "std::out_of_range") throw std::out_of_range(text);
  if (type == "std::range_error") throw std::range_error(text);
  if (type == "std::overflow_error") throw std::overflow_error(text);
  if (type == "std::underflow_error") throw std::underflow_error(text);
  if (type == "std::bad_alloc") throw std::bad_alloc();
  throw TaskFailed(*this);
}

void throw_error(ErrorInfo info) {
  switch (info.code) {
    case ErrorCode::kBadConfig:
      throw BadConfig(std::move(info));
    case ErrorCode::kBadInput:
      throw BadInput(std::move(info));
    case ErrorCode::kTimeout:
      throw Timeout(std::move(info));
    case ErrorCode::kActorDied:
      throw ActorDied(std::move(info));
    case ErrorCode::kTaskFailed:
      throw TaskFailed(std::move(info));
    case ErrorCode::kAborted:
      throw CollectiveAborted(std::move(info));
    case ErrorCode::kUnavailable:
      throw Unavailable(std::move(info));
    case ErrorCode::kRefused:
      throw Refused(std::move(info));
    case ErrorCode::kIo:
      throw IoError(std::move(info));
    case ErrorCode::kLimit:
      throw LimitExceeded(std::move(info));
    case ErrorCode::kObjectLost:
      throw ObjectLost(std::move(info));
    case ErrorCode::kCancelled:
      throw Cancelled(std::move(info));
    case ErrorCode::kInternal:
    case ErrorCode::kCorrupt:
      break;
  }
  throw Error(std::move(info));
}

namespace {

/// Of the length of a file, if a write met it.
std::optional<rlim_t> limit_met(int errno_value) {
  rlimit limit{};
  const bool is_met =
      errno_value == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_met ? std::optional(limit.rlim_cur) : std::nullopt;
}

}  // namespace

std::string errno_text(int errno_value) {
  const auto limit = limit_met(errno_value);
  return std::strerror(errno_value) +
         (limit ? ": the limit on the length of a file (ulimit -f) is " + std::to_string(*limit) + " bytes"
                : std::string());
}

ErrorInfo io_error(std::string what, int errno_value, std::string todo) {
  if (limit_met(errno_value)) todo = "raise ulimit -f where it starts";
  return {ErrorCode::kIo, std::move(what), errno_text(errno_value), std::move(todo)};
}

}  // namespace troupe
