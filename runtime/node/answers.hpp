/// Answers to what a process asked its node, and the errors that several of them share.
#pragma once

#include "runtime/node/node_events.hpp"

namespace troupe::node {

inline wire::Answer answer_of(std::uint64_t request, Result<wire::Bytes> value) {
  wire::Answer answer;
  answer.request = request;
  answer.ok = value.ok();
  if (value.ok()) {
    answer.value = *std::move(value);
  } else {
    answer.error = value.error();
  }
  return answer;
}

inline SendLocal answer_to(ProcessId process, std::uint64_t request, Result<wire::Bytes> value,
                           Attach attach = {}) {
  return {process, answer_of(request, std::move(value)), attach};
}

inline ErrorInfo died(std::string why) {
  return {ErrorCode::kActorDied, "the actor is gone", std::move(why), "spawn it again"};
}

inline ErrorInfo unavailable(std::string why) {
  return {ErrorCode::kUnavailable, "the actor cannot be reached now", std::move(why),
          "it may or may not have heard: ask it again if that does no harm"};
}

/// Of what a driver asks whose job goes on without it.
inline ErrorInfo replaced(std::string what) {
  return {ErrorCode::kRefused, std::move(what), "its job has ended, or a newer driver took it over",
          "give each program that runs a job name of its own"};
}

}  // namespace troupe::node
