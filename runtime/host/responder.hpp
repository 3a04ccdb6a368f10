/// Where the answer of one call goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/host/call_state.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/wire/address.hpp"

namespace troupe {

class ProcessGate;

/// Answers one call, once: a caller in this process through its CallState, another one by a reply frame.
/// Move-only; a responder that is dropped without an answer fails the call, so that no caller waits for an
/// answer that nobody owes.
class Responder {
 public:
  /// A call that wants no answer.
  Responder() = default;
  /// With `gate` a large answer that nobody waits for goes into its node's store.
  explicit Responder(std::shared_ptr<CallState> local, ProcessGate* gate = nullptr)
      : local_(std::move(local)), gate_(gate) {}
  Responder(ProcessGate* gate, ProcessAddress to, std::uint64_t call) : gate_(gate), to_(to), call_(call) {}
  Responder(Responder&& other) noexcept
      : local_(std::move(other.local_)),
        gate_(std::exchange(other.gate_, nullptr)),
        to_(other.to_),
        call_(other.call_) {}
  Responder& operator=(Responder&&) = delete;
  ~Responder();

  void answer(wire::Bytes bytes) { outcome(Outcome(std::move(bytes))); }
  void fail(ErrorInfo error) { outcome(Outcome(std::move(error))); }
  /// The answer is `head` and, behind it, `rest`: where it goes as an object it is written there and nowhere
  /// else. Both live until this returns.
  void answer_parts(wire::ByteView head, wire::ByteView rest);
  /// `refers_to`: objects whose names are in the answer; the caller holds them once it has that.
  void outcome(Outcome outcome, wire::Kept refers_to = {});
  /// The method has run: its answer comes when that of `other` does, and takes no turn of the actor.
  void comes_with(const std::shared_ptr<CallState>& other);
  /// The answer is going to be that of `answer`.
  void passes_on(CallState& answer) const;
  /// The call that the answer ends, also by way of others. Null: its caller is in another process, or wants
  /// none.
  std::shared_ptr<CallState> caller() const;

 private:
  std::shared_ptr<CallState> local_;
  ProcessGate* gate_ = nullptr;
  ProcessAddress to_;
  std::uint64_t call_ = 0;
};

/// What runs in this thread answers by `to`: where it waits for that itself, it is told.
class AnsweringScope {
 public:
  explicit AnsweringScope(const Responder& to)
      : caller_(to.caller()), before_(std::exchange(this_thread.answers, &caller_)) {}
  ~AnsweringScope() { this_thread.answers = before_; }
  AnsweringScope(const AnsweringScope&) = delete;
  AnsweringScope& operator=(const AnsweringScope&) = delete;

 private:
  const std::shared_ptr<CallState> caller_;
  const std::shared_ptr<CallState>* before_;
};

namespace detail {

/// The method `name` returned a Future: its outcome is the answer. A Future without a call, and
/// one that waits for this answer, so far as this process knows, fail the call.
void answer_later(const std::shared_ptr<CallState>& state, Responder responder, std::string_view name);

}  // namespace detail
}  // namespace troupe
