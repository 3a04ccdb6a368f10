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
  flush();
  if (is_settled() || core_->settle(*this)) return true;
  if (limit == Duration::zero()) return false;
  return core_->settle_within(*this, std::min(limit, core_->facts().timeout));
}

bool PendingOp::hand_over() {
  if (on_host_) return false;
  flush();
  if (is_settled()) return false;
  try {
    core_->hand_over(*this);
  } catch (const Error& e) {
    core_->fail(AbortKind::kMemberDied, e.what());
  }
  return true;
}

void launch(Core& core, Communicator& communicator, const std::shared_ptr<PendingOp>& pending,
            const std::function<void()>& enqueue) {
  if (core.failed()) {
    core.drop(*pending);
    core.check();
  }
  try {
    const OnDevice on(core.facts().caller, core.facts().device);
    pending->issued_at = core.now();
    for (Stream stream : pending->joined) core.join(stream, communicator.stream());
    enqueue();
    core.track(pending, communicator.stream());
  } catch (const Error& e) {
    const auto kind = e.code() == ErrorCode::kTimeout ? AbortKind::kTimeout : AbortKind::kPeerLost;
    core.fail(kind, e.info().what + ": " + e.info().why);
    core.drop(*pending);
    core.check();
    throw;
  }
}

Messages::Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up,
                   std::shared_ptr<Communicator> down)
    : core_(std::move(core)),
      up_{.index = kUp, .communicator = std::move(up), .noted = nullptr},
      down_{.index = kDown, .communicator = std::move(down), .noted = nullptr} {}

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
  for (Channel* channel : {&up_, &down_}) {
    if (channel->noted) issue(*channel, std::exchange(channel->noted, nullptr));
  }
  core_->check();
}

void Messages::issue(Channel& channel, const std::shared_ptr<PendingOp>& pending) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  Communicator& communicator = *channel.communicator;
  const Stream stream = communicator.stream();
  launch(*core_, communicator, pending, [&] {
    communicator.issue([&](Comm comm) {
      for (const Op& op : pending->ops) {
        if (op.count == 0) continue;
        if (op.kind == OpKind::kSend) {
          NCCL_TRY(caller, api.ncclSend(op.in(), op.bytes(), NcclType::kUint8, op.peer, comm, stream));
        } else {
          NCCL_TRY(caller, api.ncclRecv(op.out(), op.bytes(), NcclType::kUint8, op.peer, comm, stream));
        }
      }
    });
  });
}

}  // namespace troupe::collectives::nccl
