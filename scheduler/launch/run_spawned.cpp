#include "scheduler/launch/run_spawned.hpp"

#include <sys/prctl.h>

#include <csignal>
#include <cstdio>

#include "runtime/core/log.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe::launch {
namespace {

constexpr Duration kConfigured = std::chrono::seconds(30);

}  // namespace

int run_spawned(SocketLink link) {
  auto received = receive_control(link, kConfigured);
  const auto* ask = received ? std::get_if<wire::StartActorHere>(&received->message) : nullptr;
  if (ask == nullptr) {
    log(LogLevel::kError, "a process of launch::spawn was given no function");
    return 1;
  }
  int rank = static_cast<int>(ask->actor.value);
  ::prctl(PR_SET_NAME, ("rank " + std::to_string(rank)).c_str());
  ::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const auto* function = Registry::instance().method(ask->constructor);
  const auto state = std::make_shared<CallState>(nullptr);
  if (function == nullptr) {
    state->resolve(
        ErrorInfo{ErrorCode::kInternal, "cannot run a function", "this executable has none of that id", ""});
  } else {
    function->invoke(&rank, ask->args, Responder(state));
  }
  wire::Answer answer{.request = 1, .ok = state->outcome().ok()};
  if (!answer.ok) answer.error = state->outcome().error();
  std::fflush(nullptr);
  send_control(link, {}, answer);
  return answer.ok ? 0 : 1;
}

}  // namespace troupe::launch
