#include "actors/serve/handle.hpp"

#include <algorithm>
#include <memory>

#include "actors/serve/calls.hpp"
#include "actors/serve/front.hpp"
#include "runtime/host/actor_context.hpp"

namespace troupe::serve {
namespace {

thread_local const CallScope* current_scope = nullptr;
thread_local HandleNames* current_names = nullptr;

}  // namespace

CallFailed::CallFailed(const std::string& deployment, Failure failure, const std::string& why,
                       Duration retry_after)
    : Error({error_code(failure), "'" + deployment + "' has no answer", why, ""}),
      failure_(failure),
      retry_after_(retry_after) {}

CallScope::CallScope(const ReplicaCalls& calls, Instant deadline)
    : calls_(calls), deadline_(deadline), before_(std::exchange(current_scope, this)) {}
CallScope::~CallScope() {
  current_scope = before_;
}
const CallScope* CallScope::current() {
  return current_scope;
}

HandleNames::HandleNames() : before_(std::exchange(current_names, this)) {}
HandleNames::~HandleNames() {
  current_names = before_;
}
void HandleNames::note(const std::string& name) {
  if (current_names != nullptr) current_names->names_.insert(name);
}

Asked Handle::predict(const data::Tensor& samples, Duration timeout) const {
  const CallScope* scope = CallScope::current();
  if (scope == nullptr || !scope->calls().entrance)
    throw BadConfig("cannot ask '" + deployment_ + "'",
                    "a handle asks for a struct that is served, while that computes, in its thread",
                    "call it in predict; elsewhere call Served::predict");
  const Instant now = MonotonicClock().now();
  const Instant deadline = std::min(scope->deadline(), now + timeout);
  CallRequest request{deployment_,
                      this_actor().address().actor,
                      std::max<Duration>(deadline - now, Duration{0}).count(),
                      samples.dtype(),
                      samples.shape(),
                      {samples.bytes().begin(), samples.bytes().end()}};
  try {
    return {deployment_, scope->calls().entrance.call<&Entrance::ask>(request), deadline};
  } catch (const LimitExceeded& error) {
    throw CallFailed(deployment_, Failure::kUnavailable, error.what());
  }
}

data::Tensor Asked::get() const {
  const Instant asked = MonotonicClock().now();
  if (!answer_.wait(std::max<Duration>(deadline_ - asked, Duration{0})))
    throw CallFailed(deployment_, Failure::kDeadline, "it had not answered when there was no more time");
  CallAnswer answer;
  try {
    answer = answer_.answer();
  } catch (const Error& error) {  // the program is gone, or cannot be reached
    throw CallFailed(deployment_, Failure::kUnavailable, error.what());
  }
  if (answer.failure)
    throw CallFailed(deployment_, *answer.failure, answer.why, Duration(answer.retry_after_ns));
  const auto values = std::make_shared<const wire::Bytes>(std::move(answer.values));
  return {answer.dtype, std::move(answer.shape), std::shared_ptr<const std::byte>(values, values->data())};
}

Verdict verdict_of(const CallFailed& failed) {
  const ErrorInfo& info = failed.info();
  return {Verdict::What::kRefused, info.what + ": " + info.why, failed.failure(),
          failed.retry_after().count()};
}

bool fails_all(const CallFailed& failed) {
  return failed.failure() != Failure::kModel && failed.failure() != Failure::kReplicaDied;
}

}  // namespace troupe::serve
