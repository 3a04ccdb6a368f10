/// Memory as a trainer's slot is.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace troupe::data::testing {

struct AlignedDelete {
  void operator()(std::byte* at) const { ::operator delete[](at, std::align_val_t{64}); }
};

struct Memory {
  explicit Memory(std::size_t bytes)
      : at(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}))), size(bytes) {
    std::memset(at.get(), 0xee, bytes);
  }
  std::span<std::byte> span() const { return {at.get(), size}; }
  std::unique_ptr<std::byte, AlignedDelete> at;
  std::size_t size;
};

}  // namespace troupe::data::testing
