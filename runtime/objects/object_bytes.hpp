/// The bytes of an object as a process sees them: its own, or sealed shared memory that it may read.
#pragma once

#include <memory>

#include "runtime/core/fd.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::objects {

/// Immutable; so thread-safe. Who holds it keeps the memory mapped, whatever becomes of the object.
class ObjectBytes {
 public:
  explicit ObjectBytes(wire::Bytes bytes) : own_(std::move(bytes)), view_(own_) {}
  ~ObjectBytes();
  ObjectBytes(const ObjectBytes&) = delete;
  ObjectBytes& operator=(const ObjectBytes&) = delete;

  /// The first `bytes` of the memory. REQUIRES: nobody writes there any more. Errors: kIo, kRefused (it is
  /// shorter).
  static Result<std::shared_ptr<const ObjectBytes>> map(const UniqueFd& fd, std::size_t bytes);

  wire::ByteView view() const { return view_; }

 private:
  ObjectBytes(void* at, std::size_t bytes);
  wire::Bytes own_;
  void* mapped_ = nullptr;
  wire::ByteView view_;
};

/// Writes into memory that has no mapping here: its pages come without being zeroed first.
Result<void> write_at(const UniqueFd& fd, std::uint64_t offset, wire::ByteView bytes);
/// Nobody writes to it from now on, by its descriptor or by a new mapping.
Result<void> seal(const UniqueFd& fd);
bool is_sealed(const UniqueFd& fd);

}  // namespace troupe::objects
