#include "collectives/nccl/work.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

Flight::Flight(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, int on_lane,
               bool waits_on_host)
    : lane(on_lane), core_(std::move(core)), messages_(std::move(messages)), on_host_(waits_on_host) {}

void Flight::add(const Op& op) {
  ops.push_back(op);
  for (const Buffer* buffer : {&op.input, &op.output}) {
    if (buffer->device.kind != DeviceKind::kCuda) continue;  // this rank has none
    if (std::find(joined.begin(), joined.end(), buffer->stream) == joined.end())
      joined.push_back(buffer->stream);
  }
}

std::string Flight::name() const {
  const std::string first = ops.empty() ? "nothing" : numbered(ops.front());
  return first + (ops.size() > 1 ? " and " + std::to_string(ops.size() - 1) + " more" : "");
}

void Flight::flush() {
  if (!messages_) return;
  try {
    messages_->flush();
  } catch (const Error&) {
    // The failure of the group has ended this flight, if it was not complete.
  }
}

bool Flight::advance(Duration limit) {
  flush();
  if (is_settled() || core_->settle(*this)) return true;
  if (limit == Duration::zero()) return false;
  return core_->settle_within(*this, std::min(limit, core_->facts().timeout));
}

bool Flight::hand_over() {
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

void launch(Core& core, Communicator& communicator, const std::shared_ptr<Flight>& flight,
            const std::function<void()>& enqueue) {
  if (core.failed()) {
    core.drop(*flight);
    core.check();
  }
  try {
    const OnDevice on(core.facts().caller, core.facts().device);
    flight->issued_at = core.now();
    for (Stream stream : flight->joined) core.join(stream, communicator.stream());
    enqueue();
    core.track(flight, communicator.stream());
  } catch (const Error& e) {
    const auto kind = e.code() == ErrorCode::kTimeout ? AbortKind::kTimeout : AbortKind::kPeerLost;
    core.fail(kind, e.info().what + ": " + e.info().why);
    core.drop(*flight);
    core.check();
    throw;
  }
}

Messages::Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up,
                   std::shared_ptr<Communicator> down)
    : core_(std::move(core)),
      up_{.lane = kUp, .communicator = std::move(up), .noted = nullptr},
      down_{.lane = kDown, .communicator = std::move(down), .noted = nullptr} {}

std::shared_ptr<Work> Messages::add(const Op& op, bool on_host) {
  core_->check();
  const bool goes_up = (op.peer > core_->facts().caller.rank) == (op.kind == OpKind::kSend);
  Channel& channel = goes_up ? up_ : down_;
  if (!channel.noted) {
    channel.noted = std::make_shared<Flight>(core_, shared_from_this(), channel.lane, on_host);
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

void Messages::issue(Channel& channel, const std::shared_ptr<Flight>& flight) {
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  Communicator& communicator = *channel.communicator;
  const Stream stream = communicator.stream();
  launch(*core_, communicator, flight, [&] {
    communicator.issue([&](Comm comm) {
      for (const Op& op : flight->ops) {
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
