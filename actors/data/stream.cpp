#include "actors/data/stream.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "actors/data/sampler.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {
namespace {

constexpr std::size_t kMostPlaces = 64;
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kLongestLine = std::size_t{16} << 20;

}  // namespace

Indexed::Indexed(Read read, IndexOptions options) : read_(std::move(read)), every_(options.every) {
  if (options.every < 1 || options.most_samples < 0) {
    throw BadConfig("cannot index a stream",
                    "a cursor every " + std::to_string(options.every) + " samples, at most " +
                        std::to_string(options.most_samples) + " samples",
                    "use at least 1, and 0 for all samples");
  }
  const std::int64_t most = options.most_samples > 0 ? options.most_samples : kMaxDatasetSize;
  std::uint64_t cursor = 0;
  for (std::uint64_t before = 0; size_ < most; ++size_, before = cursor) {
    if (!read_(cursor, nullptr)) break;
    if (cursor == before) {
      throw BadConfig("cannot index a stream",
                      "its cursor stands still behind sample " + std::to_string(size_),
                      "let read() move the cursor behind the sample, or return false");
    }
    if (size_ % every_ == 0) marks_.push_back(before);
  }
  if (size_ == 0) throw BadConfig("the stream is empty", "its first read() returned false", "");
}

/// The last known place that is not behind `index`.
Indexed::Place Indexed::nearest(std::int64_t index) const {
  const std::int64_t mark = index / every_;
  Place best{mark * every_, marks_[static_cast<std::size_t>(mark)]};
  const std::lock_guard lock(readers_->mutex);
  auto& places = readers_->places;
  auto taken = places.end();
  for (auto at = places.begin(); at != places.end(); ++at) {
    if (at->index <= index && at->index > best.index) best = *(taken = at);
  }
  if (taken != places.end()) places.erase(taken);
  return best;
}

void Indexed::remember(Place place) const {
  const std::lock_guard lock(readers_->mutex);
  auto& places = readers_->places;
  if (places.size() == kMostPlaces) places.erase(places.begin());
  places.push_back(place);
}

Sample Indexed::get(std::int64_t index, Random& /*random*/) const {
  Place at = nearest(index);
  Sample sample;
  for (; at.index <= index; ++at.index) {
    if (!read_(at.cursor, at.index == index ? &sample : nullptr)) {
      throw BadConfig("the stream ends at sample " + std::to_string(at.index),
                      "it had " + std::to_string(size_) + " when it was indexed",
                      "leave its files as they are while a job runs");
    }
  }
  remember(at);
  return sample;
}

Lines::Lines(const std::string& path) : path_(path) {
  const std::string what = "cannot read '" + path + "'";
  auto file = std::make_shared<UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!*file) throw_error(io_error(what, errno, "check the path and its permissions"));
  if (::lseek(file->get(), 0, SEEK_END) < 0)
    throw_error({ErrorCode::kIo, what, "it is not a regular file", "name a text file"});
  file_ = std::move(file);
}

bool Lines::read(std::uint64_t& cursor, Sample* sample) const {
  std::vector<std::uint8_t> line;
  std::uint64_t at = cursor;
  for (bool ended = false; !ended;) {
    std::uint8_t chunk[kChunk];
    const ssize_t got = ::pread(file_->get(), chunk, sizeof chunk, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(io_error("cannot read '" + path_ + "'", errno));
    if (got == 0 && at == cursor) return false;
    const auto size = static_cast<std::size_t>(got);
    const auto* end = static_cast<const std::uint8_t*>(std::memchr(chunk, '\n', size));
    const std::size_t taken = end == nullptr ? size : static_cast<std::size_t>(end - chunk);
    if (sample != nullptr) line.insert(line.end(), chunk, chunk + taken);
    at += taken + (end == nullptr ? 0 : 1);
    ended = end != nullptr || got == 0;
    if (at - cursor > kLongestLine) {
      throw BadConfig("a line of '" + path_ + "' is too long",
                      "it begins at byte " + std::to_string(cursor) + " and has more than 16 MiB",
                      "read such a file with a stream of your own");
    }
  }
  if (sample != nullptr) sample->set("text", line);
  cursor = at;
  return true;
}

}  // namespace troupe::data
