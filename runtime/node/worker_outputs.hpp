/// What this node's workers have written, on disk: a log for each, beside what goes to their driver, and
/// which actors were in which worker. For people who ask for an actor's output, while it lives and after its
/// death.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/node/event_loop.hpp"
#include "runtime/node/log_segments.hpp"
#include "runtime/node/node_events.hpp"
#include "runtime/package/work_thread.hpp"

namespace troupe::node {

/// What stands in LogAsk::id before the id or name of an actor whose output is wanted; an attempt is a life.
inline constexpr std::string_view kActorLog = "actor:";

/// Logs of the last so many workers that ended are kept.
inline constexpr std::size_t kKeptWorkers = 64;

/// Everything is called in the loop's thread; files are written in another one, so that a slow disk holds up
/// neither the node nor its workers: what it does not take is counted, and said in the log.
class WorkerOutputs {
 public:
  struct Worker {
    ProcessId process;
    std::string label;
    JobId job;
    struct Life {
      ActorId actor;
      std::uint32_t incarnation = 1;
      std::string name;
      std::uint64_t number = 0;  ///< of those that began on this node, in order
    };
    std::vector<Life> lives;
  };

  explicit WorkerOutputs(EventLoop& loop) : loop_(loop) {}

  /// Where logs go, a folder for each worker. What is there goes: it is of a node that was here before.
  /// Without a call nothing is kept.
  void open(const std::string& folder);

  void began(const StartWorker& worker);
  void began(const ActorBegins& life);
  void wrote(ProcessId process, bool error, const std::string& lines);
  void ended(ProcessId process, const std::string& reason);

  /// Of the actor that `ask.id` names behind its prefix, the last one that had that name; `ask.attempt` 0 is
  /// its newest life here. Errors: kUnavailable (no such life was here, or its log is gone).
  Result<wire::LogPart> read(const wire::LogAsk& ask) const;
  /// Those that have not ended.
  std::vector<Worker> running() const;

 private:
  struct Kept {
    Worker worker;
    bool is_running = true;
    bool is_closed = false;              ///< all that it wrote is on disk
    std::shared_ptr<LogSegments> log{};  ///< of work_'s thread
    wire::Bytes note_at_end{};           ///< what the disk did not take of it
    std::uint64_t lost = 0;              ///< bytes for which the queue had no room, and not said so far
  };
  std::string folder_of(ProcessId process) const { return folder_ + "/" + to_string(process); }
  void append(Kept& kept, wire::LogStream stream, std::string text);
  void drop_oldest();

  EventLoop& loop_;
  std::string folder_;  ///< empty: nothing is kept on disk
  std::map<ProcessId, Kept> all_;
  std::uint64_t lives_ = 0;      ///< that began here
  std::deque<ProcessId> ended_;  ///< the first ended first
  std::shared_ptr<std::atomic<std::size_t>> queued_ = std::make_shared<std::atomic<std::size_t>>(0);
  WorkThread work_;  ///< the last: what it does uses the others
};

}  // namespace troupe::node
