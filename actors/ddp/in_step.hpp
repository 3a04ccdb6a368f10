/// What a layer asks of the other parts of a step in the middle of its forward or backward: a collective
/// inside the step. The parts are the ranks of a process group, or the leaves of a job.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace troupe::train {

class InStep {
 public:
  virtual ~InStep() = default;
  /// Parts of the step.
  virtual std::int64_t parts() const = 0;
  /// The `mine` of every part in their order: [parts(), mine.numel()]. Collective: every part calls it as
  /// often, in the same order, with as many numbers. REQUIRES: `mine` is on the host, double, contiguous.
  virtual at::Tensor gather(const at::Tensor& mine) = 0;

  /// That of the leaf which this thread computes; null outside of a job's step. A backward keeps the one of
  /// its forward.
  static const std::shared_ptr<InStep>& current() { return held(); }

  /// Makes it current in this thread.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<InStep> step) : before_(std::exchange(held(), std::move(step))) {}
    ~Scope() { held() = std::move(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<InStep> before_;
  };

 private:
  static std::shared_ptr<InStep>& held() {
    thread_local std::shared_ptr<InStep> current;
    return current;
  }
};

}  // namespace troupe::train
