#include "runtime/node/pipe_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace troupe::node {
namespace {

constexpr int kReadsATurn = 16;

}  // namespace

PipeReader::PipeReader(EventLoop& loop, UniqueFd pipe, Hooks hooks)
    : loop_(loop), pipe_(std::move(pipe)), hooks_(std::move(hooks)) {
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(pipe_.get(), [this](bool, bool, bool) { read(); });
}

PipeReader::~PipeReader() {
  *is_alive_ = false;
  if (pipe_ && !is_paused_) loop_.forget(pipe_.get());
}

void PipeReader::read() {
  char buffer[64 * 1024];
  for (int i = 0; i < kReadsATurn && !is_paused_; ++i) {
    const ssize_t got = ::read(pipe_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return end();
    hooks_.read({buffer, static_cast<std::size_t>(got)});
  }
}

void PipeReader::end() {
  if (!pipe_) return;
  if (!is_paused_) loop_.forget(pipe_.get());
  pipe_.reset();
  hooks_.ended();
}

void PipeReader::pause(bool on) {
  if (!pipe_ || std::exchange(is_paused_, on) == on) return;
  if (on) return loop_.forget(pipe_.get());
  loop_.watch(pipe_.get(), [this](bool, bool, bool) { read(); });
}

void PipeReader::finish(Duration timeout) {
  if (!pipe_) return;
  loop_.after(timeout, [this, timeout, alive = is_alive_] {
    if (!*alive || !pipe_) return;
    is_paused_ ? finish(timeout) : end();
  });
}

}  // namespace troupe::node
