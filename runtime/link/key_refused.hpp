/// What a link's error says when the server knows the key and does not take it: unlike other refusals, which
/// a server that is killed in the middle of a handshake looks like, it stays so.
#pragma once

#include "runtime/core/error.hpp"

namespace troupe {

inline constexpr const char* kKeyRefused =
    "it does not accept our key: unknown, revoked, or a token used or run out";

inline bool is_key_refused(const ErrorInfo& error) {
  return error.code == ErrorCode::kRefused && error.why.find(kKeyRefused) != std::string::npos;
}

}  // namespace troupe
