/// Actors that start together, all of them or none.
#pragma once

#include "runtime/client/session.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::detail {

/// Has the head make a group in which `members` actors with these options start: actor i asks for bundle i of
/// it. It is gone when they do, or when one of them is not wanted any more. Not valid where they need none:
/// there are none or more than 1,000, they hold nothing, or have a node or a group. Does not wait.
Future<wire::GroupAnswer> start_group(ProcessGate& process, std::size_t members, const ActorOptions& options);

/// Waits for the answer of a spawn. After `every`, and then as often, it tells what the spawn waits for, if
/// that is known and was not told before: for a person who sees nothing else. False when `timeout` is over
/// first.
bool wait_and_say(CallState& spawn, Duration timeout, Duration every,
                  const std::function<void(const std::string&)>& say);

}  // namespace troupe::detail
