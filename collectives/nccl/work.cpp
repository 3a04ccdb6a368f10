#include "collectives/nccl/work.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::collectives::nccl {

PendingOp::PendingOp(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, int at_index)
    : index(at_index), core_(std::move(core)), messages_(std::move(messages)) {}

void PendingOp::add(const Op& op) {
  ops.push_back(op);
  waits_on_host_ = waits_on_host_ || op.kind == OpKind::kBarrier;
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
  if (waits_on_host_) return false;
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

Messages::~Messages() {
  clear();
}

std::shared_ptr<Work> Messages::add(const Op& op) {
  core_->check();
  const bool goes_up = (op.peer > core_->facts().caller.rank) == (op.kind == OpKind::kSend);
  Channel& channel = goes_up ? up_ : down_;
  if (!channel.noted) channel.noted = std::make_shared<PendingOp>(core_, shared_from_this(), channel.index);
  channel.noted->add(op);
  return channel.noted;
}

void Messages::flush() {
  for (Channel* channel : {&up_, &down_}) {
    const auto noted = std::exchange(channel->noted, nullptr);
    if (!noted) continue;
    try {
      const OnDevice on(core_->facts().caller, core_->facts().device);
      core_->expect(noted);
      std::unique_lock hold(mutex_);
      channel->queue.push_back(noted);
      if (channel->queue.size() == 1 && channel->knows(*noted)) {
        issue_first(*channel, hold);
      } else if (!channel->thread.joinable()) {
        channel->thread = start_quiet_thread([this, channel] { run(*channel); });
      }
      changed_.notify_all();
    } catch (const Error& e) {
      fail_by(*core_, e, {&noted, 1});
    }
  }
  core_->check();
}

void Messages::clear() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  for (Channel* channel : {&up_, &down_}) {
    if (channel->thread.joinable()) channel->thread.join();
    if (channel->noted) core_->drop(*std::exchange(channel->noted, nullptr));
    channel->queue.clear();
  }
}

/// What may wait for another rank is issued here. Ends with the group: what is queued then has ended, too.
void Messages::run(Channel& channel) {
  std::unique_lock hold(mutex_);
  for (;;) {
    changed_.wait(hold, [&] { return ending_ || (!channel.queue.empty() && !channel.issuing); });
    if (ending_) return;
    issue_first(channel, hold);
  }
}

void Messages::issue_first(Channel& channel, std::unique_lock<std::mutex>& hold) {
  const auto first = channel.queue.front();
  channel.issuing = true;
  hold.unlock();
  try {
    const OnDevice on(core_->facts().caller, core_->facts().device);
    issue(channel, *first);
    core_->arm(*first, channel.communicator->stream());
  } catch (const Error& e) {
    fail_by(*core_, e, {&first, 1});
  }
  hold.lock();
  for (const Op& op : first->ops) channel.connected.insert({op.kind, op.peer});
  channel.issuing = false;
  channel.queue.pop_front();
  changed_.notify_all();
}

/// Whether nothing of it has to wait for another rank.
bool Messages::Channel::knows(const PendingOp& pending) const {
  return std::all_of(pending.ops.begin(), pending.ops.end(), [&](const Op& op) {
    return connected.count({op.kind, op.peer}) != 0;
  });
}

void Messages::issue(Channel& channel, PendingOp& pending) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  const Stream stream = channel.communicator->stream();
  core_->await_inputs(pending, stream);
  channel.communicator->issue([&](Comm comm) {
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
