/// Callbacks of answers run one after another in a thread, never one inside another.
#pragma once

#include <functional>
#include <vector>

namespace troupe {

/// Runs them before it returns, or if a callback runs in this thread, after that one: an answer that answers
/// a call that answers a call, ten thousand times over, takes no more stack than the first. So none may wait:
/// the callback that brings what it waits for could have its turn after it. What the first exception keeps
/// from its caller still runs.
void run_in_turn(std::vector<std::function<void()>> callbacks);

}  // namespace troupe
