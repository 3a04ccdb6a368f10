/// A device that is none: a guard for LibTorch's spare device type, which writes down what its streams and
/// events are told, and whose events are reached when a test says so. What is computed meanwhile is the
/// CPU's.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <string>
#include <vector>

namespace troupe::train::testing {

/// Stream 0 computes; others come from the pool, and are numbered from 1 on.
class RecordingDevice {
 public:
  /// Of the process: the one that its guard writes to. Registers the guard, and begins anew.
  static RecordingDevice& anew();
  static c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }

  /// "s1 waits for e0", "e1 on s1", "now s1", "host waits for s1".
  std::vector<std::string> log;
  /// How often an event is asked for before it is reached.
  int looks_until_reached = 0;
  /// Asked of events that were not reached so far.
  int looks = 0;
  /// A test's own line, among those of the device.
  void note(std::string line) { log.push_back(std::move(line)); }
  /// Where a line stands; -1: nowhere.
  int at(const std::string& line) const;
};

}  // namespace troupe::train::testing
