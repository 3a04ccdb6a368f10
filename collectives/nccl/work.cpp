#include "collectives/nccl/work.hpp"

#include <algorithm>

#include "runtime/core/error.hpp"

namespace troupe::collectives::nccl {

NcclWork::NcclWork(std::shared_ptr<Core> core, Launch launch, bool on_host)
    : core_(std::move(core)), launch_(std::move(launch)), on_host_(on_host) {}

Flight* NcclWork::flight() {
  if (!flight_ && !thrown_) {
    try {
      flight_ = launch_();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
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
    core.check();
    throw;
  }
  return shared;
}

Messages::Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> communicator)
    : core_(std::move(core)), communicator_(std::move(communicator)) {}

std::shared_ptr<Work> Messages::add(const Buffer& buffer, int peer, bool sends, bool on_host) {
  core_->check();
  noted_->messages.push_back({buffer, peer, sends});
  auto get = [self = shared_from_this(), batch = noted_] {
    if (!batch->flight) self->flush();
    return batch->flight;
  };
  return std::make_shared<NcclWork>(core_, std::move(get), on_host);
}

void Messages::flush() {
  if (noted_->messages.empty()) return core_->check();
  const auto batch = std::exchange(noted_, std::make_shared<Batch>());
  issue(*batch);
}

void Messages::issue(Batch& batch) {
  Flight flight{
      .call = {.kind = CallKind::kMessages, .count = batch.messages.size(), .sequence = ++sequence_},
      .lane = 1};
  for (const Message& message : batch.messages) {
    auto& joined = flight.joined;
    if (std::find(joined.begin(), joined.end(), message.buffer.stream) == joined.end()) {
      joined.push_back(message.buffer.stream);
    }
  }
  const Caller& caller = core_->facts().caller;
  const Stream stream = communicator_->stream();
  batch.flight = launch(*core_, *communicator_, std::move(flight), [&](const auto&) {
    communicator_->issue([&](Comm comm) {
      for (const Message& m : batch.messages) {
        const std::size_t bytes = m.buffer.count * element_size(m.buffer.dtype);
        if (bytes == 0) continue;
        if (m.sends) {
          NCCL_TRY(caller,
                   core_->api().nccl.ncclSend(m.buffer.data, bytes, NcclType::kUint8, m.peer, comm, stream));
        } else {
          NCCL_TRY(caller,
                   core_->api().nccl.ncclRecv(m.buffer.data, bytes, NcclType::kUint8, m.peer, comm, stream));
        }
      }
    });
  });
}

}  // namespace troupe::collectives::nccl
