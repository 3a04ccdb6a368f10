#include "collectives/nccl/work.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

PendingOp::PendingOp(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, int at_index,
                     bool waits_on_host)
    : index(at_index), core_(std::move(core)), messages_(std::move(messages)), on_host_(waits_on_host) {}

void PendingOp::add(const Op& op) {
  ops.push_back(op);
  for (const Buffer* buffer : {&op.input, &op.output}) {
    if (buffer->device.kind != DeviceKind::kCuda) continue;  // this rank has none
    if (std::find(joined.begin(), joined.end(), buffer->stream) == joined.end())
      joined.push_back(buffer->stream);
  }
}

std::string PendingOp::name() const {
  const std::string first = ops.empty() ? "nothing" : numbered(ops.front());
  return first + (ops.size() > 1 ? " and " + std::to_string(ops.size() - 1) + " more" : "");
}

void PendingOp::flush() {
  if (!messages_) return;
  try {
    messages_->flush();
  } catch (const Error&) {
    // The failure of the group has ended this operation, if it was not complete.
  }
}

bool PendingOp::advance(Duration limit) {
  const Instant until = core_->now() + std::min(limit, core_->facts().timeout);
  for (unsigned turn = 0;; ++turn) {
    flush();
    if (is_settled() || core_->settle(*this)) return true;
    if (limit == Duration::zero() || core_->now() >= until) return false;
    pause_turn(turn);
  }
}

bool PendingOp::hand_over() {
  if (on_host_) return false;
  flush();
  // A stream can wait for what is on another one, and not for what is to be. The group's deadline bounds it.
  for (unsigned turn = 0; !core_->is_armed(*this); ++turn) {
    pause_turn(turn);
    flush();
  }
  if (is_settled()) return false;
  try {
    core_->hand_over(*this);
  } catch (const Error& e) {
    core_->fail(AbortKind::kMemberDied, e.what());
  }
  return true;
}

namespace {

/// Fails the group by what was thrown at `pendings`, and ends them.
void fail_by(Core& core, const Error& e, std::span<const std::shared_ptr<PendingOp>> pendings) {
  const auto kind = e.code() == ErrorCode::kTimeout ? AbortKind::kTimeout : AbortKind::kPeerLost;
  core.fail(kind, e.info().what + ": " + e.info().why);
  for (const auto& pending : pendings) core.drop(*pending);
}

}  // namespace

void launch(Core& core, Communicator& communicator, const std::shared_ptr<PendingOp>& pending,
            const std::function<void()>& enqueue) {
  try {
    const OnDevice on(core.facts().caller, core.facts().device);
    core.expect(pending);
    core.await_inputs(*pending, communicator.stream());
    enqueue();
    core.arm(*pending, communicator.stream());
  } catch (const Error& e) {
    fail_by(core, e, {&pending, 1});
    core.check();
    throw;
  }
}

Messages::Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up,
                   std::shared_ptr<Communicator> down)
    : core_(std::move(core)) {
  up_.communicator = std::move(up);
  down_.communicator = std::move(down);
  down_.index = kDown;
}

void Messages::start() {
  core_->on_tick([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->move(false);
  });
}

std::shared_ptr<Work> Messages::add(const Op& op, bool on_host) {
  core_->check();
  const bool goes_up = (op.peer > core_->facts().caller.rank) == (op.kind == OpKind::kSend);
  Channel& channel = goes_up ? up_ : down_;
  if (!channel.noted) {
    channel.noted = std::make_shared<PendingOp>(core_, shared_from_this(), channel.index, on_host);
  }
  channel.noted->add(op);
  return channel.noted;
}

void Messages::flush() {
  move(true);
  core_->check();
}

/// What the channels can do now. `takes_noted`: it is the user's thread.
void Messages::move(bool takes_noted) {
  std::vector<std::shared_ptr<PendingOp>> at_stake;
  try {
    const std::lock_guard hold(mutex_);
    for (Channel* channel : {&up_, &down_}) {
      const auto noted = takes_noted ? std::exchange(channel->noted, nullptr) : nullptr;
      if (noted) channel->queue.push_back(noted);
      if (channel->queue.empty()) continue;
      at_stake.assign(channel->queue.begin(), channel->queue.end());
      const OnDevice on(core_->facts().caller, core_->facts().device);
      if (noted) core_->expect(noted);
      move(*channel);
    }
  } catch (const Error& e) {
    fail_by(*core_, e, at_stake);
  }
}

void Messages::clear() {
  const std::lock_guard hold(mutex_);
  for (Channel* channel : {&up_, &down_}) {
    if (channel->noted) channel->queue.push_back(std::exchange(channel->noted, nullptr));
    for (const auto& pending : std::exchange(channel->queue, {})) core_->drop(*pending);
  }
}

void Messages::move(Channel& channel) {
  while (!channel.queue.empty()) {
    const auto first = channel.queue.front();
    if (!std::exchange(channel.issuing, true)) issue(channel, *first);
    if (!channel.communicator->is_ready()) return;
    core_->arm(*first, channel.communicator->stream());
    channel.queue.pop_front();
    channel.issuing = false;
  }
}

void Messages::issue(Channel& channel, const PendingOp& pending) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  const Stream stream = channel.communicator->stream();
  core_->await_inputs(*channel.queue.front(), stream);
  channel.communicator->begin([&](Comm comm) {
    for (const Op& op : pending.ops) {
      if (op.count == 0) continue;
      if (op.kind == OpKind::kSend) {
        NCCL_TRY(caller, api.ncclSend(op.in(), op.bytes(), NcclType::kUint8, op.peer, comm, stream));
      } else {
        NCCL_TRY(caller, api.ncclRecv(op.out(), op.bytes(), NcclType::kUint8, op.peer, comm, stream));
      }
    }
  });
}

}  // namespace troupe::collectives::nccl
