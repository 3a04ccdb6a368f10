/// What a process of the double puts on its streams: who waits for whom, which memory is touched, and how
/// much there is. Part of the double (nccl_double.hpp).
///
/// Every stream has a clock that counts what was put on it, and knows of the other streams' clocks what it
/// waits for by events. Two that touch the same memory, one of them writing, and of which neither waits for
/// the other, are misuse.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::collectives::testing {

class StreamRecorder {
 public:
  using Clock = std::map<const void*, std::uint64_t>;  ///< by stream
  enum class What { kMove, kFold, kOther };
  struct Range {
    const void* at = nullptr;
    std::size_t bytes = 0;
    bool writes = false;
  };

  /// Something is put on a stream; returns the misuse that it is, or nothing.
  std::string put(const void* stream, What what, const std::vector<Range>& touches);
  Clock record(const void* stream);
  void wait(const void* stream, const Clock& event);
  /// The host has seen an event: what it puts anywhere from now on comes after that.
  void host_saw(const Clock& event);
  void allocate(const void* at, std::size_t bytes);
  /// As put, of what is allocated at `at`.
  std::string free(const void* stream, const void* at);
  void forget(const void* stream);

  /// The most bytes that were allocated at a time.
  std::size_t most_bytes() const;
  /// How many moves did not have to wait for a fold that was put on another stream before.
  int moves_beside_folds() const;

 private:
  struct Access {
    std::uintptr_t begin = 0, end = 0;
    bool writes = false;
    const void* stream = nullptr;
    std::uint64_t at = 0;
  };
  mutable std::mutex mutex_;
  std::map<const void*, Clock> clocks_;
  Clock host_;
  std::deque<Access> accesses_;  ///< the last ones
  std::map<const void*, std::size_t> memory_;
  std::size_t bytes_ = 0, most_bytes_ = 0;
  const void* fold_stream_ = nullptr;
  std::uint64_t fold_at_ = 0;
  int moves_beside_folds_ = 0;
};

}  // namespace troupe::collectives::testing
