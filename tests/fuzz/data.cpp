// Batches in shared memory, which a loader wrote: it runs the user's code, so its memory may hold anything.
#include <cstring>
#include <memory>
#include <new>

#include "actors/data/batch_layout.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

bool batch_layout(std::span<const std::byte> bytes) {
  struct AlignedDelete {
    void operator()(std::byte* at) const { ::operator delete[](at, std::align_val_t{64}); }
  };
  const std::unique_ptr<std::byte, AlignedDelete> memory(
      static_cast<std::byte*>(::operator new[](bytes.size() + 1, std::align_val_t{64})));
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  const auto view = data::view_batch({memory.get(), bytes.size()});
  if (!view) return false;
  const std::byte* free_from = memory.get();
  for (const auto& field : view->fields) {
    check(field.bytes.data() >= free_from, "no two fields of a batch share memory");
    free_from = field.bytes.data() + field.bytes.size();
    check(free_from <= memory.get() + bytes.size(), "a field lies in its batch");
    check(data::checked_bytes({field.name, field.dtype, field.shape}) == field.bytes.size(),
          "a field has the bytes of its shape");
  }
  check(!view->fields.empty(), "a batch has fields");
  return true;
}

}  // namespace troupe::fuzz
