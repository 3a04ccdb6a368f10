#include "tests/collectives/stream_recorder.hpp"

#include <algorithm>

namespace troupe::collectives::testing {
namespace {

constexpr std::size_t kRemembered = 4000;

void merge(StreamRecorder::Clock& into, const StreamRecorder::Clock& from) {
  for (const auto& [stream, at] : from) into[stream] = std::max(into[stream], at);
}

}  // namespace

std::string StreamRecorder::put(const void* stream, What what, const std::vector<Range>& touches) {
  const std::lock_guard hold(mutex_);
  Clock& clock = clocks_[stream];
  merge(clock, host_);
  const std::uint64_t now = ++clock[stream];
  std::string misuse;
  for (const Range& range : touches) {
    if (range.bytes == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.at);
    const Access access{begin, begin + range.bytes, range.writes, stream, now};
    for (const Access& before : accesses_) {
      if (before.stream == stream || (!before.writes && !access.writes)) continue;
      if (before.end <= access.begin || access.end <= before.begin) continue;
      if (clock[before.stream] < before.at)
        misuse = "memory is used on two streams, and neither waits for the other";
    }
    accesses_.push_back(access);
    if (accesses_.size() > kRemembered) accesses_.pop_front();
  }
  if (what == What::kFold) {
    fold_stream_ = stream;
    fold_at_ = now;
  }
  if (what == What::kMove && fold_stream_ != nullptr && clock[fold_stream_] < fold_at_) ++moves_beside_folds_;
  return misuse;
}

StreamRecorder::Clock StreamRecorder::record(const void* stream) {
  const std::lock_guard hold(mutex_);
  return clocks_[stream];
}

void StreamRecorder::wait(const void* stream, const Clock& event) {
  const std::lock_guard hold(mutex_);
  merge(clocks_[stream], event);
}

void StreamRecorder::host_saw(const Clock& event) {
  const std::lock_guard hold(mutex_);
  merge(host_, event);
}

void StreamRecorder::allocate(const void* at, std::size_t bytes) {
  const std::lock_guard hold(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  std::erase_if(accesses_, [&](const Access& a) { return a.begin < begin + bytes && begin < a.end; });
  memory_[at] = bytes;
  bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, bytes_);
}

std::string StreamRecorder::free(const void* stream, const void* at) {
  std::size_t bytes = 0;
  {
    const std::lock_guard hold(mutex_);
    bytes = memory_[at];
    memory_.erase(at);
    bytes_ -= bytes;
  }
  return put(stream, What::kOther, {{at, bytes, true}});
}

void StreamRecorder::forget(const void* stream) {
  const std::lock_guard hold(mutex_);
  clocks_.erase(stream);
  host_.erase(stream);
  for (auto& [other, clock] : clocks_) clock.erase(stream);
  std::erase_if(accesses_, [&](const Access& a) { return a.stream == stream; });
  if (fold_stream_ == stream) fold_stream_ = nullptr;
}

std::size_t StreamRecorder::most_bytes() const {
  const std::lock_guard hold(mutex_);
  return most_bytes_;
}

int StreamRecorder::moves_beside_folds() const {
  const std::lock_guard hold(mutex_);
  return moves_beside_folds_;
}

}  // namespace troupe::collectives::testing
