#include "scheduler/init/output_printer.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "runtime/core/escape.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe {
namespace {

/// Room is made in pieces of that size: a quarter of a node's window.
constexpr std::size_t kTellBytes = std::size_t{32} << 10;

std::string with_label(const wire::Output& output) {
  const std::string label = escape_name(output.label);
  std::string text;
  for (std::string_view rest = output.text; !rest.empty();) {
    const auto end = rest.find('\n');
    text.append("[").append(label).append("] ").append(rest.substr(0, end)).append("\n");
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return text;
}

/// Waits for the reader. Returns errno, or 0.
int write_all(int stream, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(stream, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {  // somebody made the stream non-blocking
      pollfd wait{stream, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      return written == 0 ? ENOSPC : errno;
    }
  }
  return 0;
}

}  // namespace

OutputPrinter::OutputPrinter(Hooks hooks, std::size_t most_bytes, Streams streams)
    : hooks_(std::move(hooks)), most_bytes_(most_bytes), streams_{streams.output, streams.errors} {
  thread_ = start_quiet_thread([this] { run(); });
}

OutputPrinter::~OutputPrinter() {
  finish();
}

void OutputPrinter::print(const wire::Output& output) {
  Text text{output.error, with_label(output), output.node, output.text.size()};
  const std::lock_guard lock(mutex_);
  if (finishing_) return;
  if (bytes_ + text.text.size() > most_bytes_) {
    dropped_lines_ += static_cast<std::size_t>(std::count(text.text.begin(), text.text.end(), '\n'));
    text.text.clear();
  } else if (dropped_lines_ != 0) {
    text.text.insert(0, "[" + std::to_string(std::exchange(dropped_lines_, 0)) +
                            " lines were dropped: nobody read this program's output]\n");
  }
  bytes_ += text.text.size();
  waiting_.push_back(std::move(text));
  changed_.notify_all();
}

void OutputPrinter::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void OutputPrinter::write(const Text& text) {
  int& stream = streams_[text.is_error ? 1 : 0];
  if (stream < 0) return;
  const int error = write_all(stream, text.text);
  if (error == 0) return;
  stream = -1;
  hooks_.failed(error);
}

void OutputPrinter::take(const Text& text) {
  std::size_t& bytes = untold_[text.node];
  bytes += text.bytes;
  if (bytes >= kTellBytes) hooks_.taken(text.node, std::exchange(bytes, 0));
}

void OutputPrinter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !waiting_.empty() || finishing_; });
    if (waiting_.empty()) return;
    const Text next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    write(next);
    lock.lock();
    bytes_ -= next.text.size();
    if (finishing_) continue;
    lock.unlock();
    take(next);
    lock.lock();
  }
}

}  // namespace troupe
