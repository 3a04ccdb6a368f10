#include "runtime/node/worker_outputs.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "runtime/core/log.hpp"

namespace troupe::node {
namespace {

namespace fs = std::filesystem;

/// Lines on their way to the disk.
constexpr std::size_t kMostQueuedBytes = std::size_t{16} << 20;
constexpr std::size_t kMostLives = 4096;  ///< of light workers' actors that hold CPUs

ErrorInfo not_here(const std::string& actor) {
  return {ErrorCode::kUnavailable, "cannot read the output of actor " + actor,
          "no such life of it was there, or its log is gone",
          "troupe actor list shows those that live; of those that died a node keeps the last " +
              std::to_string(kKeptWorkers) + " workers' output"};
}

}  // namespace

void WorkerOutputs::open(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error) {
    return log(LogLevel::kWarning, "the output of actors is not kept: " + folder + ": " + error.message());
  }
  ::chmod(folder.c_str(), 0700);
  folder_ = folder;
}

void WorkerOutputs::began(const StartWorker& worker) {
  Kept& kept = all_[worker.process];
  kept.worker.process = worker.process;
  kept.worker.label = worker.label;
  kept.worker.job = worker.job;
}

void WorkerOutputs::began(const ActorBegins& life) {
  const auto at = all_.find(life.process);
  if (at == all_.end()) return;
  auto& lives = at->second.worker.lives;
  if (lives.size() >= kMostLives) lives.erase(lives.begin());
  lives.push_back({life.actor, life.incarnation, life.name, ++lives_});
}

void WorkerOutputs::append(Kept& kept, wire::LogStream stream, std::string text) {
  if (folder_.empty()) return;
  if (stream != wire::LogStream::kNote && *queued_ + text.size() > kMostQueuedBytes) {
    kept.lost += text.size();
    return;
  }
  const std::uint64_t lost = std::exchange(kept.lost, 0);
  if (kept.log == nullptr) {
    const std::string folder = folder_of(kept.worker.process);
    kept.log = std::make_shared<LogSegments>(folder, LogLimits{});
    work_.post([folder] {
      std::error_code ignored;  // what cannot be written is said by who writes
      fs::create_directories(folder, ignored);
      ::chmod(folder.c_str(), 0700);
    });
  }
  *queued_ += text.size();
  work_.post([to = kept.log, queued = queued_, stream, lost, text = std::move(text)] {
    if (lost > 0) to->missed(lost, "the disk is slower than the worker");
    auto rest = std::as_bytes(std::span(text));
    while (!rest.empty()) {
      const auto piece = rest.first(std::min(rest.size(), wire::kMaxLogFrameBytes));
      to->append(stream, piece);
      rest = rest.subspan(piece.size());
    }
    *queued -= text.size();
  });
}

void WorkerOutputs::wrote(ProcessId process, bool error, const std::string& lines) {
  const auto at = all_.find(process);
  if (at == all_.end() || !at->second.is_running) return;
  append(at->second, error ? wire::LogStream::kErrors : wire::LogStream::kOutput, lines);
}

void WorkerOutputs::ended(ProcessId process, const std::string& reason) {
  const auto at = all_.find(process);
  if (at == all_.end() || !std::exchange(at->second.is_running, false)) return;
  append(at->second, wire::LogStream::kNote, "its process has ended: " + reason + "\n");
  work_.post([this, process, log = at->second.log] {
    loop_.post([this, process, note = log == nullptr ? wire::Bytes() : log->finish()]() mutable {
      const auto found = all_.find(process);
      if (found == all_.end()) return;
      found->second.note_at_end = std::move(note);
      found->second.is_closed = true;
    });
  });
  ended_.push_back(process);
  drop_oldest();
}

void WorkerOutputs::drop_oldest() {
  while (ended_.size() > kKeptWorkers) {
    if (!folder_.empty()) {
      work_.post([folder = folder_of(ended_.front())] {
        std::error_code ignored;
        fs::remove_all(folder, ignored);
      });
    }
    all_.erase(ended_.front());
    ended_.pop_front();
  }
}

Result<wire::LogPart> WorkerOutputs::read(const wire::LogAsk& ask) const {
  const std::string actor = ask.id.substr(kActorLog.size());
  // Actors of several jobs, one after another, may have had that name: their lives are not one's.
  const Worker::Life* meant = nullptr;
  for (const auto& [process, kept] : all_) {
    for (const auto& one : kept.worker.lives) {
      if (to_string(one.actor) != actor && (one.name.empty() || one.name != actor)) continue;
      if (meant == nullptr || one.number > meant->number) meant = &one;
    }
  }
  const Kept* found = nullptr;
  std::uint32_t life = 0;
  for (const auto& [process, kept] : all_) {
    for (const auto& one : kept.worker.lives) {
      if (meant == nullptr || one.actor != meant->actor) continue;
      if (ask.attempt != 0 && static_cast<std::uint32_t>(ask.attempt) != one.incarnation) continue;
      if (found != nullptr && one.incarnation < life) continue;
      found = &kept;
      life = one.incarnation;
    }
  }
  if (folder_.empty()) {
    return ErrorInfo{ErrorCode::kRefused, "cannot read the output of actor " + actor,
                     "its node keeps none: it has no folder", "start nodes with troupe start"};
  }
  if (found == nullptr) return not_here(actor);
  wire::LogPart part;
  const bool is_closed = found->is_closed;  // before the read: what is closed has all of it
  if (found->log != nullptr) {
    auto read = read_log(folder_of(found->worker.process), ask);
    if (!read && read.error().code != ErrorCode::kUnavailable) return read.error();
    if (read) part = *std::move(read);
    if (is_closed) add_to_end(part, ask, found->note_at_end);
  }
  part.attempt = static_cast<std::int32_t>(life);
  part.closed = is_closed;
  return part;
}

std::vector<WorkerOutputs::Worker> WorkerOutputs::running() const {
  std::vector<Worker> list;
  for (const auto& [process, kept] : all_) {
    if (kept.is_running) list.push_back(kept.worker);
  }
  return list;
}

}  // namespace troupe::node
