#include "collectives/nccl/work.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

NcclWork::NcclWork(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, Launch launch,
                   bool on_host)
    : core_(std::move(core)), messages_(std::move(messages)), launch_(std::move(launch)), on_host_(on_host) {}

Flight* NcclWork::flight() {
  std::exception_ptr failure;
  try {
    if (messages_) messages_->flush();
  } catch (...) {
    failure = std::current_exception();
  }
  // A failure of the group ends what is not issued; a flight has an end of its own.
  if (!flight_ && !thrown_) flight_ = launch_();
  if (!flight_ && !thrown_) thrown_ = failure;
  return flight_.get();
}

void NcclWork::rethrow() {
  if (const auto thrown = exception()) std::rethrow_exception(thrown);
}

void NcclWork::wait() {
  if (Flight* f = flight()) {
    if (on_host_) {
      while (!core_->settle_within(*f, core_->facts().timeout)) {
      }
    } else {
      try {
        core_->hand_over(*f);
      } catch (const Error& e) {
        core_->fail(AbortKind::kMemberDied, e.what());
      }
    }
  }
  rethrow();
}

bool NcclWork::wait_for(Duration limit) {
  Flight* f = flight();
  const bool ended = f == nullptr || core_->settle_within(*f, limit);
  if (ended) rethrow();
  return ended;
}

bool NcclWork::is_completed() {
  Flight* f = flight();
  return f == nullptr || core_->settle(*f);
}

std::exception_ptr NcclWork::exception() {
  if (!is_completed()) return nullptr;
  return thrown_ ? thrown_ : core_->thrown(*flight_);
}

std::optional<Duration> NcclWork::duration() {
  if (!flight_) return std::nullopt;
  return core_->duration(*flight_);
}

std::shared_ptr<Flight> launch(Core& core, Communicator& communicator, Flight flight,
                               const std::function<void(const std::shared_ptr<Flight>&)>& enqueue) {
  core.check();
  const OnDevice on(core.facts().caller, core.facts().device);
  auto shared = std::make_shared<Flight>(std::move(flight));
  shared->launched_at = core.now();
  try {
    for (Stream stream : shared->joined) core.join(stream, communicator.stream());
    enqueue(shared);
    core.track(shared, communicator.stream());
  } catch (const Error& e) {
    const auto kind = e.code() == ErrorCode::kTimeout ? AbortKind::kTimeout : AbortKind::kPeerLost;
    core.fail(kind, e.info().what + ": " + e.info().why);
    core.drop(*shared);
    core.check();
    throw;
  }
  return shared;
}

Messages::Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up,
                   std::shared_ptr<Communicator> down)
    : core_(std::move(core)),
      up_{.lane = kUp, .communicator = std::move(up)},
      down_{.lane = kDown, .communicator = std::move(down)} {}

std::shared_ptr<Work> Messages::add(const Buffer& buffer, int peer, bool sends, bool on_host) {
  core_->check();
  const bool goes_up = (peer > core_->facts().caller.rank) == sends;
  const auto batch = (goes_up ? up_ : down_).noted;
  batch->messages.push_back({buffer, peer, sends});
  return std::make_shared<NcclWork>(
      core_, shared_from_this(), [batch] { return batch->flight; }, on_host);
}

void Messages::flush() {
  for (Channel* channel : {&up_, &down_}) {
    if (channel->noted->messages.empty()) continue;
    const auto batch = std::exchange(channel->noted, std::make_shared<Batch>());
    issue(*channel, *batch);
  }
  core_->check();
}

void Messages::issue(Channel& channel, Batch& batch) {
  const Call call{
      .kind = CallKind::kMessages, .count = batch.messages.size(), .sequence = ++channel.sequence};
  Flight flight{.call = call, .lane = channel.lane};
  for (const Message& message : batch.messages) {
    auto& joined = flight.joined;
    if (std::find(joined.begin(), joined.end(), message.buffer.stream) == joined.end()) {
      joined.push_back(message.buffer.stream);
    }
  }
  const Caller& caller = core_->facts().caller;
  const NcclApi& api = core_->api().nccl;
  Communicator& communicator = *channel.communicator;
  const Stream stream = communicator.stream();
  batch.flight = launch(*core_, communicator, std::move(flight), [&](const auto&) {
    communicator.issue([&](Comm comm) {
      for (const Message& m : batch.messages) {
        const std::size_t bytes = m.buffer.count * element_size(m.buffer.dtype);
        if (bytes == 0) continue;
        if (m.sends) {
          NCCL_TRY(caller, api.ncclSend(m.buffer.data, bytes, NcclType::kUint8, m.peer, comm, stream));
        } else {
          NCCL_TRY(caller, api.ncclRecv(m.buffer.data, bytes, NcclType::kUint8, m.peer, comm, stream));
        }
      }
    });
  });
}

}  // namespace troupe::collectives::nccl
