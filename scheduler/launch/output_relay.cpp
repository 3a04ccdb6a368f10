#include "scheduler/launch/output_relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace troupe::launch {
namespace {

constexpr std::size_t kAtOnce = 4096;  // a pipe that says it takes something takes so much
constexpr Duration kConsoleRetry = std::chrono::milliseconds(20);

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a full disk loses the log, not the run
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

OutputRelay::OutputRelay(EventLoop& loop, UniqueFd pipe, UniqueFd file, int console, std::string prefix,
                         std::function<void()> on_end)
    : loop_(loop),
      pipe_(std::move(pipe)),
      file_(std::move(file)),
      console_(console),
      prefix_(std::move(prefix)),
      on_end_(std::move(on_end)) {
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(pipe_.get(), [this](bool, bool, bool) { read_some(); });
}

OutputRelay::~OutputRelay() {
  *is_alive_ = false;
  if (pipe_) loop_.forget(pipe_.get());
}

void OutputRelay::read_some() {
  char buffer[16 * 1024];
  const ssize_t got = ::read(pipe_.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    loop_.forget(pipe_.get());
    pipe_.reset();
    to_console(lines_.finish());
    return ended();
  }
  const std::string_view text(buffer, static_cast<std::size_t>(got));
  if (file_) write_all(file_.get(), text);
  if (console_ >= 0) to_console(lines_.feed(text));
}

void OutputRelay::to_console(const std::string& lines) {
  if (console_ < 0) return;
  for (std::string_view rest = lines; !rest.empty();) {
    const auto end = rest.find('\n') + 1;  // whole lines alone come
    held_.append(prefix_).append(rest.substr(0, end));
    rest = rest.substr(end);
  }
  if (!is_waiting_) write_held();
}

void OutputRelay::write_held() {
  while (!held_.empty()) {
    pollfd takes{console_, POLLOUT, 0};
    if (::poll(&takes, 1, 0) == 0) {
      if (!is_waiting_ && pipe_) loop_.forget(pipe_.get());
      is_waiting_ = true;
      loop_.after(kConsoleRetry, [this, alive = is_alive_] {
        if (*alive) write_held();
      });
      return;
    }
    const ssize_t written = ::write(console_, held_.data(), std::min(held_.size(), kAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      held_.clear();  // nobody reads it any more
      break;
    }
    held_.erase(0, static_cast<std::size_t>(written));
  }
  if (std::exchange(is_waiting_, false) && pipe_)
    loop_.watch(pipe_.get(), [this](bool, bool, bool) { read_some(); });
  if (!pipe_) ended();
}

void OutputRelay::finish(Duration timeout) {
  if (!pipe_) return;
  loop_.after(timeout, [this, alive = is_alive_] {
    if (!*alive || !pipe_) return;
    if (!is_waiting_) loop_.forget(pipe_.get());
    pipe_.reset();
    held_.clear();
    ended();
  });
}

void OutputRelay::ended() {
  if (!held_.empty() || std::exchange(has_ended_, true)) return;
  on_end_();
}

}  // namespace troupe::launch
