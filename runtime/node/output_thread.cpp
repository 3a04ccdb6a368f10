#include "runtime/node/output_thread.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/core/quiet_thread.hpp"

namespace troupe::node {
namespace {

constexpr Duration kLastWords = std::chrono::seconds(1);
constexpr int kReadsATurn = 16;
constexpr int kPollMs = 100;  ///< while somebody's last words are waited for

}  // namespace

OutputThread::OutputThread() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = start_quiet_thread([this] { run(); });
}

OutputThread::~OutputThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void OutputThread::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void OutputThread::add(std::string key, UniqueFd output, UniqueFd errors, LogSegments log) {
  auto stream = std::unique_ptr<Stream>(
      new Stream{std::move(key), {std::move(output), std::move(errors)}, std::move(log)});
  {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(stream));
  }
  wake();
}

void OutputThread::finish(const std::string& key, std::function<void()> closed) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      if (stream->key != key) continue;
      stream->close_at = clock_.now() + kLastWords;
      stream->closed = std::move(closed);
      break;
    }
  }
  wake();
}

bool OutputThread::is_open(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& stream) { return stream->key == key; });
}

void OutputThread::drain(Stream& stream, int which) {
  std::array<std::byte, wire::kMaxLogFrameBytes> buffer;
  for (int i = 0; i < kReadsATurn; ++i) {
    const ssize_t got = ::read(stream.pipes[which].get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return stream.pipes[which].reset();
    stream.log.append(which == 0 ? wire::LogStream::kOutput : wire::LogStream::kErrors,
                      std::span(buffer.data(), static_cast<std::size_t>(got)));
  }
}

/// Under mutex_.
bool OutputThread::is_done(const Stream& stream) const {
  if (!stream.closed) return false;
  return (!stream.pipes[0] && !stream.pipes[1]) || clock_.now() >= stream.close_at;
}

void OutputThread::run() {
  for (;;) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    std::vector<std::pair<Stream*, int>> of;
    std::vector<std::unique_ptr<Stream>> done;
    bool last_words = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (auto& stream : streams_) {
        if (is_done(*stream)) {
          done.push_back(std::move(stream));
          continue;
        }
        last_words = last_words || stream->closed;
        for (const int which : {0, 1}) {
          if (!stream->pipes[which]) continue;
          polled.push_back({stream->pipes[which].get(), POLLIN, 0});
          of.emplace_back(stream.get(), which);
        }
      }
      std::erase(streams_, nullptr);
    }
    for (const auto& stream : done) stream->closed();
    if (!done.empty()) continue;
    ::poll(polled.data(), polled.size(), last_words ? kPollMs : -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (polled[i + 1].revents != 0) drain(*of[i].first, of[i].second);
    }
  }
}

}  // namespace troupe::node
