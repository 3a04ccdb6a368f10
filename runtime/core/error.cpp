#include "runtime/core/error.hpp"

#include <cstring>

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
  }
  return "unknown error";
}

std::string ErrorInfo::message() const {
  std::string text = what.empty() ? std::string(error_code_name(code)) : what;
  if (!why.empty()) text += ": " + why;
  if (!todo.empty()) text += " (" + todo + ")";
  return text;
}

Error::Error(ErrorInfo info) : std::runtime_error(info.message()), info_(std::move(info)) {}

BadConfig::BadConfig(std::string what, std::string why, std::string todo)
    : Error({ErrorCode::kBadConfig, std::move(what), std::move(why), std::move(todo)}) {}

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
    case ErrorCode::kInternal:
    case ErrorCode::kCorrupt:
      break;
  }
  throw Error(std::move(info));
}

ErrorInfo io_error(std::string what, int errno_value, std::string todo) {
  return {ErrorCode::kIo, std::move(what), std::strerror(errno_value), std::move(todo)};
}

}  // namespace troupe
