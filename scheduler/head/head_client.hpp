/// Asking the head a question from a process that is no node: the command line, or a program on its way in.
#pragma once

#include "runtime/core/endpoint.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/security/join_token.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Where a cluster's head is, how it proves itself, and how we do.
struct HeadContact {
  Endpoint address;
  PublicKey head_key;
  CurveKeyPair keys;
};

/// Connects, sends `message` (EnrollAsk, AdmitAsk, TokenAsk or StatusAsk) and waits for the encoded answer.
/// Of one key the newest connection counts, so only one question a key is asked at a time. Errors: kRefused
/// (the key, or what the head says), kTimeout (nobody answers), kUnavailable (the connection broke before the
/// answer came).
Result<wire::Bytes> ask_head(const HeadContact& head, const wire::Control& message, Duration timeout);

/// Connects and sends a message that has no answer, as a node says them. Once it returns the head has heard
/// it, or is about to. Errors: as ask_head.
Result<void> tell_head(const HeadContact& head, const wire::Control& message, Duration timeout);

/// Uses a join token up: `keys` are let in for good. Errors as ask_head.
Result<void> enroll(const JoinToken& token, const CurveKeyPair& keys, Duration timeout);

}  // namespace troupe
