// Answers: how they are given and taken, or stay out. Those that are too large for a message go as objects.
#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/host/process.hpp"
#include "runtime/objects/object_messages.hpp"

namespace troupe {

namespace {

/// With their names they fit a message beside an answer that is small.
constexpr std::size_t kMostReferences = 100'000;

ErrorInfo too_many_references(std::size_t count) {
  return {ErrorCode::kLimit, "an answer is too large",
          "it refers to " + std::to_string(count) + " objects, and " + std::to_string(kMostReferences) +
              " is the limit",
          "return them in several answers"};
}

ErrorInfo answer_too_large(const Error& error) {
  ErrorInfo info = error.info();
  info.what = "an answer is too large: " + info.what;
  return info;
}

ErrorInfo no_memory_for_answer() {
  return {ErrorCode::kLimit, "an answer is too large", "its process has no memory for its message",
          "return less at a time, or give it more memory"};
}

/// What had no room at its receiver does not know for what it was.
ErrorInfo with_name(ErrorInfo error, const PendingCall& call) {
  const auto* method = Registry::instance().method(call.method);
  if (error.code == ErrorCode::kLimit && error.origin.empty() && method != nullptr)
    error.what = method->name + ": " + error.what;
  return error;
}

/// Calls that fail when that is said, or else as this is dropped: who runs it may have ended.
class Failing {
 public:
  Failing(std::vector<std::shared_ptr<CallState>> calls, ErrorInfo why)
      : calls_(std::move(calls)), why_(std::move(why)) {}
  ~Failing() {
    try {
      fail();
    } catch (...) {
      log(LogLevel::kError, describe_exception("a callback of an answer").message());
    }
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  void fail() const {
    for (const auto& call : calls_) call->resolve(why_);
  }

 private:
  const std::vector<std::shared_ptr<CallState>> calls_;
  const ErrorInfo why_;
};

}  // namespace

void Process::reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, wire::Kept refers_to) {
  if (is_in_child()) return;  // the answer is the parent's to give
  if (!outcome.ok() || refers_to.empty()) return give_answer(to, call, outcome, {});
  if (refers_to.size() > kMostReferences) return send_reply(to, call, too_many_references(refers_to.size()));
  give_answer(to, call, outcome, refers_to);
  objects_->hand_over(std::move(refers_to), to, call);
}

void Process::reply_parts(ProcessAddress to, std::uint64_t call, wire::ByteView head, wire::ByteView rest) {
  if (head.size() + rest.size() <= objects::kInlineBytes || !thread_may_wait())
    return ProcessGate::reply_parts(to, call, head, rest);
  if (is_in_child()) return;
  try {
    const bool fits_message = head.size() + rest.size() <= wire::kMaxBodyBytes;
    const auto object = objects_->put_answer(head, rest, !fits_message);
    if (object == nullptr) {
      wire::Bytes whole(head.begin(), head.end());
      whole.insert(whole.end(), rest.begin(), rest.end());
      return send_reply(to, call, std::move(whole));
    }
    objects_->offer_answer(object, to);
    send_reply(to, call, wire::encode(object->name()), objects::kFlagAnswerInObject);
  } catch (const Error& error) {
    send_reply(to, call, answer_too_large(error));
  } catch (const std::bad_alloc&) {
    send_reply(to, call, no_memory_for_answer());
  }
}

/// With the names of what it refers to behind it.
void Process::give_answer(ProcessAddress to, std::uint64_t call, const Outcome& outcome,
                          const wire::Kept& refers_to) {
  const auto send = [&](wire::Bytes body, std::uint8_t flags) {
    objects::append_names(body, refers_to);
    send_reply(to, call, std::move(body), static_cast<std::uint8_t>(flags | wire::kFlagReferences));
  };
  const std::size_t names = refers_to.size() * sizeof(objects::ObjectName) + sizeof(std::uint32_t);
  const std::size_t most_in_message = wire::kMaxBodyBytes - names;
  const std::size_t most = thread_may_wait() ? objects::kInlineBytes : most_in_message;
  const auto send_whole = [&] { refers_to.empty() ? send_reply(to, call, outcome) : send(*outcome, 0); };
  if (!outcome.ok() || outcome->size() <= most) return send_whole();
  try {
    // In a full store arguments may be in use of calls that wait until this one is over.
    const auto object = thread_may_wait()
                            ? objects_->put_answer(*outcome, {}, outcome->size() > most_in_message)
                            : objects_->put(wire::ByteView(*outcome));
    if (object == nullptr) return send_whole();
    objects_->offer_answer(object, to);
    auto name = wire::encode(object->name());
    if (!refers_to.empty()) return send(std::move(name), objects::kFlagAnswerInObject);
    send_reply(to, call, std::move(name), objects::kFlagAnswerInObject);
  } catch (const Error& error) {
    send_reply(to, call, answer_too_large(error));
  } catch (const std::bad_alloc&) {
    send_reply(to, call, no_memory_for_answer());
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

void Process::answer_in_object(PendingCall call, const Message& message, wire::Kept refers_to) {
  const auto name = wire::decode<objects::ObjectName>(message.body);
  if (!name || name->owner != message.header.from) {
    call.state->resolve(ErrorInfo{ErrorCode::kBadInput, "refused an answer",
                                  "it is no object of who was called", "both must run the same executable"});
    return;
  }
  if (call.state->ready()) {  // it was cancelled
    call.state->resolve(wire::Bytes{});
    return decline_answer(message);
  }
  const bool is_awaited = call.state->is_awaited();
  auto then = [this, call = std::move(call), refers_to = std::move(refers_to)](Outcome outcome,
                                                                               CallState::Load load) mutable {
    if (load != nullptr) {
      call.state->resolve_stored(std::move(load), std::move(refers_to));
      return;
    }
    // Another life has an answer; one that this node has no room for would be computed again without end.
    const bool is_lost = !outcome.ok() && (outcome.error().code == ErrorCode::kActorDied ||
                                           outcome.error().code == ErrorCode::kUnavailable);
    if (is_lost && call.moving != nullptr)
      return directory_->failed(call.moving, call.to.home(), outcome.error());
    call.state->resolve(std::move(outcome), std::move(refers_to));
  };
  if (!is_awaited) return objects_->store(*name, std::move(then));
  objects_->take(*name,
                 [then = std::move(then)](Outcome outcome) mutable { then(std::move(outcome), nullptr); });
}

void Process::resolve(const std::shared_ptr<CallState>& call, Outcome outcome, wire::Kept refers_to) {
  const bool is_large = outcome.ok() && outcome->size() > objects::kInlineBytes;
  if (is_large && threads_ && !ending_ && !call->ready() && !call->is_awaited())
    return resolve_in_store(call, *std::move(outcome), std::move(refers_to));
  call->resolve(std::move(outcome), std::move(refers_to));
}

/// Of what came in a message: a large one that nobody waits for goes into the node's store.
void Process::resolve_in_store(std::shared_ptr<CallState> state, wire::Bytes answer, wire::Kept refers_to) {
  objects_->store(std::move(answer), [state = std::move(state), refers_to = std::move(refers_to)](
                                         Outcome outcome, CallState::Load load) mutable {
    if (load != nullptr) {
      state->resolve_stored(std::move(load), std::move(refers_to));
    } else {
      state->resolve(std::move(outcome), std::move(refers_to));
    }
  });
}

void Process::on_reply(Message message) {
  auto call = calls_.take(message.header.id, message.header.from);
  const bool in_object = (message.header.flags & objects::kFlagAnswerInObject) != 0;
  Result<std::vector<objects::ObjectName>> names = std::vector<objects::ObjectName>();
  if ((message.header.flags & wire::kFlagReferences) != 0) names = objects::cut_names(message.body);
  if (!call) {  // an answer nobody waits for any more
    if (in_object) decline_answer(message);
    return;
  }
  routes_->answered(message.header.from, call->bytes);
  const bool error = (message.header.flags & wire::kFlagError) != 0;
  if ((message.header.flags & wire::kFlagRefused) != 0)
    routes_->not_carried(message.header.from, call->bytes);
  wire::Kept refers_to;
  if (names && !names->empty() && !call->state->ready())
    refers_to = objects_->received(*names, message.header.from, message.header.id);
  if (in_object) return answer_in_object(*std::move(call), message, std::move(refers_to));
  Outcome outcome = wire::Bytes{};
  if (!names) {
    outcome = names.error();
  } else if (error) {
    auto info = wire::decode<std::tuple<ErrorInfo>>(message.body);
    outcome = info ? with_name(std::get<0>(*std::move(info)), *call) : info.error();
  } else if (call->kind == wire::FrameKind::kSpawn) {
    outcome = wire::encode(wire::SpawnAnswer{call->to});
  } else {
    outcome = std::move(message.body);
  }
  if (error && call->moving != nullptr) {
    const bool never_sent = (message.header.flags & wire::kFlagRefused) != 0;
    return directory_->answered(call->moving, call->to.home(), outcome.error(), never_sent);
  }
  const bool is_large = outcome.ok() && outcome->size() > objects::kInlineBytes && call->to.actor;
  if (is_large && threads_ && !call->state->is_awaited())
    return resolve_in_store(call->state, *std::move(outcome), std::move(refers_to));
  const bool wanted = call->state->resolve(std::move(outcome), std::move(refers_to));
  if (!wanted && !error && call->kind == wire::FrameKind::kSpawn)
    kill(call->to, "nobody waits for it any more");
}

void Process::fail_calls(const std::function<bool(ProcessAddress)>& gone, const ErrorInfo& why) {
  const auto failed = calls_.take_where([&](const PendingCall& call) { return gone(call.to.home()); });
  wire::Kept kept;
  for (const PendingCall& call : failed) {
    auto its = call.moving != nullptr ? call.moving->args.kept : call.state->kept();
    kept.insert(kept.end(), std::make_move_iterator(its.begin()), std::make_move_iterator(its.end()));
  }
  // Whom the callee passed them on to may not have been heard of.
  if (!kept.empty()) later(objects::kDeadBorrowerGrace, [kept = std::move(kept)] {});
  for (const PendingCall& call : failed) {
    if (call.moving != nullptr) directory_->failed(call.moving, call.to.home(), why);
  }
  std::vector<std::shared_ptr<CallState>> calls;
  for (const PendingCall& call : failed) {
    if (call.moving == nullptr) calls.push_back(call.state);
  }
  if (!calls.empty()) fail_later(std::move(calls), why);
}

void Process::fail_later(std::vector<std::shared_ptr<CallState>> calls, const ErrorInfo& why) {
  later(Duration::zero(),
        [failing = std::make_shared<const Failing>(std::move(calls), why)] { failing->fail(); });
}

void Process::fail_all_calls(ErrorInfo not_sent, const ErrorInfo& no_answer) {
  routes_->own_node_lost(std::move(not_sent));
  fail_calls([](ProcessAddress) { return true; }, no_answer);
  directory_->close(no_answer);
}

}  // namespace troupe
