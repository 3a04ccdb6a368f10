/// Streams and events of the device that a program computes on, by LibTorch's own interface for them
/// (c10::impl::VirtualGuardImpl): nothing of CUDA is included, so a LibTorch without it builds the same code.
///
/// It computes on the current stream of its thread. What only moves bytes runs aside, on a stream that
/// each DeviceStreams takes from the device's pool. The host waits for neither, except in wait() and
/// synchronize().
///
///     const DeviceMark copied = streams.aside([&] { there.copy_(here, true); });
///     streams.join(copied);  // computing goes on behind the copy
///
/// On the CPU everything is done when it returns, and a mark is reached at once.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace troupe::train {

/// A place on a stream. Copies share it. A default-constructed one is reached.
class DeviceMark {
 public:
  DeviceMark() = default;
  /// Whether the device has come there. Does not wait. Throws c10::Error for what went wrong on the device
  /// since the last look, wherever that was.
  bool reached() const { return event_ == nullptr || event_->query(); }

 private:
  friend class DeviceStreams;
  explicit DeviceMark(std::shared_ptr<c10::Event> event) : event_(std::move(event)) {}
  std::shared_ptr<c10::Event> event_;
};

/// Not thread-safe; a backward's thread may use it while the one that called the backward waits.
class DeviceStreams {
 public:
  explicit DeviceStreams(c10::Device device);

  /// What this thread's computing stream was given so far.
  DeviceMark here() const;
  /// Runs `enqueue` with the stream aside as the current one. Returns the mark behind it. An exception of
  /// `enqueue` goes on, with the streams as they were.
  DeviceMark aside(const std::function<void()>& enqueue) const { return aside_after({}, enqueue); }
  /// The same, behind `mark`.
  DeviceMark aside_after(const DeviceMark& mark, const std::function<void()>& enqueue) const;
  /// The device's default stream goes on behind what this thread's computing stream was given so far. Nothing
  /// to do where they are one, as they are unless the job's code chose another.
  void before_default() const;
  /// Runs `enqueue` with the default stream as the current one, behind what this thread's computing stream
  /// was given so far and before what it is given next. A collective on a buffer that names no stream goes by
  /// the default one. An exception of `enqueue` goes on, with the streams as they were.
  void on_default(const std::function<void()>& enqueue) const;
  /// What this thread's computing stream is given from now on runs behind `mark`.
  void join(const DeviceMark& mark) const;
  /// Waits on the host for what this thread's computing stream was given so far, without a deadline. Throws
  /// c10::Error for what went wrong on the device.
  void synchronize() const;
  /// Waits on the host. Calls `look` meanwhile, about every 50 microseconds, which may throw. Without a
  /// deadline, too: a driver kills a trainer that computes for too long.
  static void wait(const DeviceMark& mark, const std::function<void()>& look);
  /// The computing stream of this thread; none on the CPU.
  std::optional<c10::Stream> computing() const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> aside_;  ///< none: the CPU's
};

}  // namespace troupe::train
