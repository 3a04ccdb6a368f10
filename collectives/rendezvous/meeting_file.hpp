/// The note that rank 0 leaves for the others at a file:// URL: where it serves the store, and the job's key
/// where none was given. Only its user can read it.
///
/// Four lines: "troupe meeting 1", HOST:PORT, 64 hexadecimal digits or "-", "end". Rank 0 holds a lock on the
/// file for as long as it lives, so that a note of a job that died is told from one that is in use; it
/// removes the file when it goes.
#pragma once

#include <optional>
#include <string>

#include "collectives/rendezvous/job_key.hpp"

namespace troupe::collectives {

struct MeetingNote {
  Endpoint at;                ///< numeric
  std::optional<JobKey> key;  ///< empty: the ranks have one of their own
};

std::string to_text(const MeetingNote& note);
/// Errors: kUnavailable for text that is not whole yet, kBadInput for what is no note.
Result<MeetingNote> parse_meeting_note(std::string_view text);

class MeetingFile {
 public:
  /// Takes the file for this job; a note of a job that died is overwritten. Errors: kRefused where another
  /// job uses it, it is no note, or it is not this user's alone; kIo.
  static Result<MeetingFile> take(const std::string& path);
  Result<void> write(const MeetingNote& note);
  /// Errors: kUnavailable where rank 0 has not been there yet, kRefused, kBadInput, kIo.
  static Result<MeetingNote> read(const std::string& path);

  MeetingFile(MeetingFile&& other) noexcept = default;
  MeetingFile& operator=(MeetingFile&&) = delete;
  ~MeetingFile();

 private:
  MeetingFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  UniqueFd fd_;  ///< locked
};

}  // namespace troupe::collectives
