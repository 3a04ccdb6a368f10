#include "runtime/host/task_frames.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/fork_guard.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/host/this_thread.hpp"

namespace troupe::detail {

TaskCall::~TaskCall() {
  for (TaskPromise* at = innermost_; at != nullptr;) {
    TaskPromise* parent = at->parent;
    if (at->owner != nullptr) *at->owner = nullptr;
    at->frame.destroy();
    at = parent;
  }
}

bool TaskCall::run() {
  waits_ = false;
  while (!waits_ && !ended_) {
    const ForkScope scope("a Task of an actor");
    innermost_->frame.resume();
  }
  return ended_;
}

void TaskCall::enter(TaskPromise& child) {
  child.call = this;
  child.parent = innermost_;
  innermost_ = &child;
}

void TaskCall::leave() {
  if (innermost_->parent == nullptr) {
    ended_ = true;
  } else {
    innermost_ = innermost_->parent;
  }
}

bool TaskCall::wait_for(const std::shared_ptr<CallState>& state) {
  if (const auto answers = answers_.lock()) {
    answers->set_parts({state}, 1, true);
    if (state->needs(*answers)) return false;
  }
  waits_ = true;
  ActorContext& actor = this_actor();
  // The work is dropped if the actor has ended, and the frames with it.
  state->on_ready([run = actor.executor(), frames = &actor.tasks(), this] {
    run([frames, this] { frames->go_on(*this); });
  });
  return true;
}

void TaskFrames::start(TaskPromise& outermost) {
  TaskCall& call = calls_.emplace_front(
      outermost, this_thread.answers == nullptr ? std::weak_ptr<CallState>() : *this_thread.answers);
  call.self_ = calls_.begin();
  go_on(call);
}

void TaskFrames::go_on(TaskCall& call) {
  if (call.run()) calls_.erase(call.self_);
}

}  // namespace troupe::detail
