#include "tests/actors/ddp/recording_device.hpp"

#include <algorithm>

namespace troupe::train::testing {
namespace {

using c10::Device;
using c10::Stream;

RecordingDevice the_device;
c10::StreamId current_stream = 0;
c10::StreamId made_streams = 0;
int made_events = 0;

struct Event {
  int number = 0;
  int looks = 0;
};

Stream stream_of(c10::StreamId id) {
  return Stream(Stream::UNSAFE, RecordingDevice::device(), id);
}

std::string name(const Stream& stream) {
  return "s" + std::to_string(stream.id());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  Device exchangeDevice(Device) const override { return RecordingDevice::device(); }
  Device getDevice() const override { return RecordingDevice::device(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return stream_of(current_stream); }
  Stream getDefaultStream(Device) const override { return stream_of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return stream_of(++made_streams); }
  Stream exchangeStream(Stream stream) const noexcept override {
    const Stream before = stream_of(current_stream);
    current_stream = stream.id();
    the_device.log.push_back("now " + name(stream));
    return before;
  }
  // None: autograd would start a thread for each, and then no test could fork.
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
  void record(void** event, const Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event{made_events++, 0};
    the_device.log.push_back("e" + std::to_string(static_cast<Event*>(*event)->number) + " on " +
                             name(stream));
  }
  void block(void* event, const Stream& stream) const override {
    the_device.log.push_back(name(stream) + " waits for e" +
                             std::to_string(static_cast<Event*>(event)->number));
  }
  bool queryEvent(void* event) const override {
    auto* asked = static_cast<Event*>(event);
    if (asked == nullptr || asked->looks >= the_device.looks_until_reached) return true;
    ++asked->looks;
    ++the_device.looks;
    return false;
  }
  void synchronizeStream(const Stream& stream) const override {
    the_device.log.push_back("host waits for " + name(stream));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

RecordingDevice& RecordingDevice::anew() {
  the_device = RecordingDevice();
  current_stream = 0;
  made_streams = 0;
  made_events = 0;
  return the_device;
}

int RecordingDevice::at(const std::string& line) const {
  const auto found = std::find(log.begin(), log.end(), line);
  return found == log.end() ? -1 : static_cast<int>(found - log.begin());
}

}  // namespace troupe::train::testing
