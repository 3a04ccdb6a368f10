#include "actors/ddp/device_streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

namespace troupe::train {
namespace {

constexpr std::chrono::microseconds kLook{50};

c10::impl::VirtualGuardImpl streams_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

/// The given stream as the current one, until it goes.
class Current {
 public:
  explicit Current(const c10::Stream& stream)
      : streams_(stream.device_type()), before_(streams_.exchangeStream(stream)) {}
  ~Current() { streams_.exchangeStream(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream before_;
};

std::shared_ptr<c10::Event> event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::PYTORCH_DEFAULT);
  event->record(stream);
  return event;
}

}  // namespace

DeviceStreams::DeviceStreams(c10::Device device) : device_(device) {
  if (!device.is_cpu()) aside_ = streams_of(device).getStreamFromGlobalPool(device);
}

std::optional<c10::Stream> DeviceStreams::computing() const {
  if (!aside_) return std::nullopt;
  return streams_of(device_).getStream(device_);
}

DeviceMark DeviceStreams::here() const {
  const auto stream = computing();
  return stream ? DeviceMark(event_on(*stream)) : DeviceMark();
}

DeviceMark DeviceStreams::aside_after(const DeviceMark& mark, const std::function<void()>& enqueue) const {
  if (!aside_) {
    enqueue();
    return {};
  }
  if (mark.event_ != nullptr) mark.event_->block(*aside_);
  {
    const Current current(*aside_);
    enqueue();
  }
  return DeviceMark(event_on(*aside_));
}

void DeviceStreams::before_default() const {
  const auto stream = computing();
  if (!stream) return;
  const c10::Stream standard = streams_of(device_).getDefaultStream(device_);
  if (*stream != standard) event_on(*stream)->block(standard);
}

void DeviceStreams::on_default(const std::function<void()>& enqueue) const {
  const auto stream = computing();
  if (!stream) return enqueue();
  const c10::Stream standard = streams_of(device_).getDefaultStream(device_);
  if (*stream == standard) return enqueue();
  event_on(*stream)->block(standard);
  {
    const Current current(standard);
    enqueue();
  }
  event_on(standard)->block(*stream);
}

void DeviceStreams::synchronize() const {
  if (const auto stream = computing()) streams_of(device_).synchronizeStream(*stream);
}

void DeviceStreams::join(const DeviceMark& mark) const {
  const auto stream = computing();
  if (stream && mark.event_ != nullptr) mark.event_->block(*stream);
}

void DeviceStreams::wait(const DeviceMark& mark, const std::function<void()>& look) {
  while (!mark.reached()) {
    look();
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace troupe::train
