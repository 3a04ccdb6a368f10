/// A reader of a job's output: at an offset of one attempt, from piece to piece.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/wire/log_frames.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe {

/// Not thread-safe.
class OutputReader {
 public:
  using Ask = std::function<Result<wire::LogPart>(const wire::LogAsk&)>;
  using Take = std::function<void(const JobOutput&)>;

  /// With `follows` it goes on with what is written meanwhile; otherwise it ends where the output ended when
  /// it was first asked for, however fast the job writes.
  /// What was written before `since_ms` is left out.
  OutputReader(std::string id, Ask ask, Take take, bool follows = true, std::int64_t since_ms = 0)
      : id_(std::move(id)),
        ask_(std::move(ask)),
        take_(std::move(take)),
        follows_(follows),
        since_ms_(since_ms) {}

  /// Goes to where the last `lines` lines begin, and hands them on. Errors as read.
  Result<void> begin_at_tail(std::int64_t lines);

  enum class Got {
    kSome,     ///< more may be there
    kNothing,  ///< nothing now
    kEnd,      ///< of this attempt, or the job ended without any
  };
  /// Hands on the next piece. Errors: what the head or the node says, kCorrupt.
  Result<Got> read();
  /// Ends a line that the attempt left open, so that what another one writes does not go on with it.
  void end_lines();
  /// 0: none has begun so far.
  std::int32_t attempt() const { return attempt_; }
  void go_to_attempt(std::int32_t attempt);
  void note(const std::string& text) const { take_({JobOutput::kNote, text + "\n"}); }

 private:
  Result<wire::LogPart> ask(std::uint64_t offset, bool from_segment, std::uint32_t most) const;
  bool is_wanted(const wire::LogFrame& frame) const;
  void hand_on(const JobOutput& output);

  const std::string id_;
  const Ask ask_;
  const Take take_;
  const bool follows_;
  const std::int64_t since_ms_;
  bool is_open_[2] = {};                ///< a line of output, of errors
  std::optional<std::uint64_t> until_;  ///< where one that does not follow ends; none: not asked yet
  std::int32_t attempt_ = 0;
  std::uint64_t offset_ = 0;
  wire::Bytes rest_;  ///< the beginning of a frame, just before offset_
};

}  // namespace troupe
