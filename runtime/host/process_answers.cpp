// Answers that are too large for a message: they go as objects.
#include "runtime/host/may_wait.hpp"
#include "runtime/host/process.hpp"
#include "runtime/objects/object_messages.hpp"

namespace troupe {

void Process::reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome) {
  if (is_in_child()) return;  // the answer is the parent's to give
  const std::size_t most = thread_may_wait() ? objects::kInlineBytes : wire::kMaxBodyBytes;
  if (!outcome.ok() || outcome->size() <= most) return send_reply(to, call, outcome);
  try {
    const auto object = objects_->put(wire::ByteView(*outcome));
    objects_->offer_answer(object, to);
    send_reply(to, call, wire::encode(object->name()), objects::kFlagAnswerInObject);
  } catch (const Error& error) {
    ErrorInfo info = error.info();
    info.what = "an answer is too large: " + info.what;
    send_reply(to, call, info);
  }
}

/// A responder's answer goes through reply(), which would make objects of it.
Responder Process::answer_as_it_is(const wire::FrameHeader& header) {
  const auto answer = std::make_shared<CallState>(nullptr);
  // Callbacks of callbacks run later: it is kept until then.
  answer->on_ready([this, state = answer, to = header.from, id = header.id] {
    if (!is_in_child()) send_reply(to, id, state->outcome());
  });
  return Responder(answer);
}

void Process::decline_answer(const Message& message) {
  const auto name = wire::decode<objects::ObjectName>(message.body);
  if (name && name->owner == message.header.from) objects_->hold(*name);  // and drop it
}

void Process::answer_in_object(PendingCall call, const Message& message) {
  const auto name = wire::decode<objects::ObjectName>(message.body);
  if (!name || name->owner != message.header.from) {
    call.state->resolve(ErrorInfo{ErrorCode::kBadInput, "refused an answer",
                                  "it is no object of who was called", "both must run the same executable"});
    return;
  }
  if (call.state->ready()) return decline_answer(message);
  objects_->take(*name, [this, call = std::move(call)](Outcome outcome) {
    // Another life has an answer; one that this node has no room for would be computed again without end.
    const bool is_lost = !outcome.ok() && (outcome.error().code == ErrorCode::kActorDied ||
                                           outcome.error().code == ErrorCode::kUnavailable);
    if (is_lost && call.moving != nullptr)
      return directory_->failed(call.moving, call.to.home(), outcome.error());
    call.state->resolve(std::move(outcome));
  });
}

}  // namespace troupe
