#include "runtime/node/output_thread.hpp"

#include <algorithm>
#include <span>

#include "runtime/core/quiet_thread.hpp"

namespace troupe::node {
namespace {

constexpr Duration kLastWords = std::chrono::seconds(1);

}  // namespace

OutputThread::OutputThread() {
  thread_ = start_quiet_thread([this] { loop_.run(); });
}

OutputThread::~OutputThread() {
  loop_.post([this] { loop_.stop(); });
  thread_.join();
}

void OutputThread::add(std::string key, UniqueFd output, UniqueFd errors, LogSegments log) {
  {
    const std::lock_guard lock(mutex_);
    open_.insert(key);
    notes_.erase(key);
  }
  const auto stream =
      std::make_shared<Stream>(Stream{std::move(log), {std::move(output), std::move(errors)}});
  loop_.post([this, key = std::move(key), stream] {
    streams_[key] = stream;
    for (const int which : {0, 1}) {
      const auto kind = which == 0 ? wire::LogStream::kOutput : wire::LogStream::kErrors;
      PipeReader::Hooks hooks;
      hooks.read = [at = stream.get(), kind](std::string_view text) {
        at->log.append(kind, std::as_bytes(std::span(text)));
      };
      hooks.ended = [this, key] { loop_.post([this, key] { look_at_end(key); }); };
      stream->readers[which] =
          std::make_unique<PipeReader>(loop_, std::move(stream->pipes[which]), std::move(hooks));
    }
  });
}

void OutputThread::finish(const std::string& key, std::function<void()> closed) {
  loop_.post([this, key, closed = std::move(closed)] {
    const auto at = streams_.find(key);
    if (at == streams_.end()) return;
    at->second->closed = closed;
    for (const auto& reader : at->second->readers) reader->finish(kLastWords);
    look_at_end(key);
  });
}

void OutputThread::look_at_end(const std::string& key) {
  const auto at = streams_.find(key);
  if (at == streams_.end() || !at->second->closed) return;
  const auto& readers = at->second->readers;
  if (!std::all_of(readers.begin(), readers.end(), [](const auto& reader) { return reader->has_ended(); }))
    return;
  const auto stream = std::move(streams_.extract(at).mapped());
  wire::Bytes note = stream->log.finish();
  {
    const std::lock_guard lock(mutex_);
    open_.erase(key);
    if (!note.empty()) notes_[key] = std::move(note);
  }
  stream->closed();
}

bool OutputThread::is_open(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return open_.contains(key);
}

wire::Bytes OutputThread::note_at_end(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = notes_.find(key);
  return at == notes_.end() ? wire::Bytes() : at->second;
}

void OutputThread::forget(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  std::erase_if(notes_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

}  // namespace troupe::node
