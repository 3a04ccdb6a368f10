/// A queue of at most N entries that stay where they are, so that what they own is used again.
#pragma once

#include <array>
#include <cstddef>

namespace troupe::collectives {

template <class T, std::size_t N>
class FixedQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// Counted from the oldest. REQUIRES: i < size().
  const T& operator[](std::size_t i) const { return entries_[(first_ + i) % N]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return entries_[(first_ + size_ - 1) % N]; }

  /// The new youngest entry, as it was left when it was last popped. REQUIRES: size() < N.
  T& push() {
    ++size_;
    return back();
  }
  /// REQUIRES: not empty.
  void pop() { first_ = --size_ == 0 ? 0 : (first_ + 1) % N; }

 private:
  std::array<T, N> entries_{};
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace troupe::collectives
