#include "scheduler/launch/output_relay.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string_view>
#include <utility>

namespace troupe::launch {
namespace {

constexpr std::size_t kAtOnce = 4096;  // a pipe that says it takes something takes so much
constexpr Duration kConsoleRetry = std::chrono::milliseconds(20);

}  // namespace

OutputRelay::OutputRelay(EventLoop& loop, UniqueFd pipe, File file, int console, std::string prefix,
                         Hooks hooks)
    : loop_(loop),
      file_(std::move(file)),
      console_(console),
      prefix_(std::move(prefix)),
      hooks_(std::move(hooks)),
      reader_(loop, std::move(pipe),
              {[this](std::string_view text) { take(text); },
               [this] {
                 to_console(lines_.finish());
                 ended();
               }}) {}

OutputRelay::~OutputRelay() {
  *is_alive_ = false;
}

void OutputRelay::take(std::string_view text) {
  if (file_) {
    if (!file_->write(std::as_bytes(std::span(text))) && !std::exchange(has_failed_, true))
      hooks_.failed("its log cannot be written", file_->error());
    if (file_->trimmed() > 0 && !std::exchange(has_trimmed_, true)) hooks_.trimmed();
  }
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
      is_waiting_ = true;
      reader_.pause(true);
      loop_.after(kConsoleRetry, [this, alive = is_alive_] {
        if (*alive) write_held();
      });
      return;
    }
    const ssize_t written = ::write(console_, held_.data(), std::min(held_.size(), kAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      held_.clear();
      console_ = -1;
      // A reader that is gone ends the run by its signal.
      if (errno != EPIPE) hooks_.failed("it cannot be written here", errno);
      break;
    }
    held_.erase(0, static_cast<std::size_t>(written));
  }
  is_waiting_ = false;
  reader_.pause(false);
  if (reader_.has_ended()) ended();
}

void OutputRelay::ended() {
  if (!held_.empty() || std::exchange(has_ended_, true)) return;
  hooks_.ended();
}

}  // namespace troupe::launch
