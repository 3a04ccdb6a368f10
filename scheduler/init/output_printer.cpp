#include "scheduler/init/output_printer.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "runtime/core/quiet_thread.hpp"

namespace troupe {
namespace {

std::string with_label(const wire::Output& output) {
  std::string text;
  for (std::string_view rest = output.text; !rest.empty();) {
    const auto end = rest.find('\n');
    text.append("[").append(output.label).append("] ").append(rest.substr(0, end)).append("\n");
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return text;
}

/// Waits for the reader. Drops the rest when there is none.
void write_all(int stream, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(stream, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // somebody made the stream non-blocking
      pollfd wait{stream, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

OutputPrinter::OutputPrinter(HoldWorkers hold, Limits limits, Streams streams)
    : hold_(std::move(hold)), limits_(limits), streams_(streams) {
  thread_ = start_quiet_thread([this] { run(); });
}

OutputPrinter::~OutputPrinter() {
  finish();
}

void OutputPrinter::print(const wire::Output& output) {
  std::string text = with_label(output);
  const std::lock_guard lock(mutex_);
  if (finishing_ || text.empty()) return;
  if (bytes_ + text.size() > limits_.drop) {
    dropped_lines_ += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    return;
  }
  if (dropped_lines_ != 0)
    text.insert(0, "[" + std::to_string(std::exchange(dropped_lines_, 0)) +
                       " lines were dropped: nobody read this program's output]\n");
  bytes_ += text.size();
  waiting_.push_back({output.error ? streams_.errors : streams_.output, std::move(text)});
  changed_.notify_all();
  if (bytes_ > limits_.hold && !std::exchange(holds_, true)) hold_(true);
}

void OutputPrinter::repeat_hold() {
  const std::lock_guard lock(mutex_);
  if (holds_ && !finishing_) hold_(true);
}

void OutputPrinter::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void OutputPrinter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !waiting_.empty() || finishing_; });
    if (waiting_.empty()) return;
    const Text next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    write_all(next.stream, next.text);
    lock.lock();
    bytes_ -= next.text.size();
    if (holds_ && !finishing_ && bytes_ <= limits_.hold / 2) hold_(holds_ = false);
  }
}

}  // namespace troupe
