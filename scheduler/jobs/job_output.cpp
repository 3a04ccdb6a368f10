#include "scheduler/jobs/job_output.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/wire/log_frames.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kPieceBytes = 256 << 10;

JobOutput output_of(const wire::LogFrame& frame) {
  const auto stream = frame.stream == wire::LogStream::kOutput   ? JobOutput::kOutput
                      : frame.stream == wire::LogStream::kErrors ? JobOutput::kErrors
                                                                 : JobOutput::kNote;
  return {stream, std::string(reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size())};
}

/// Cuts all but the last `lines` lines off. What the node noted between them (lost bytes) counts as none.
void keep_lines(std::vector<JobOutput>& all, std::int64_t lines) {
  bool is_last = true;  // the newline that ends the last line does not begin another
  for (std::size_t i = all.size(); i-- > 0;) {
    if (all[i].stream == JobOutput::kNote) continue;
    const std::string& bytes = all[i].bytes;
    for (std::size_t at = bytes.size(); at-- > 0;) {
      const bool ends_line = bytes[at] == '\n';
      if (ends_line && !is_last && --lines <= 0) {
        all[i].bytes.erase(0, at + 1);
        all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
      is_last = false;
    }
  }
}

std::int64_t count_lines(const std::vector<JobOutput>& all) {
  std::int64_t lines = 0;
  for (const JobOutput& output : all) {
    if (output.stream != JobOutput::kNote)
      lines += std::count(output.bytes.begin(), output.bytes.end(), '\n');
  }
  return lines;
}

}  // namespace

Result<wire::LogPart> OutputReader::ask(std::uint64_t offset, bool from_segment, std::uint32_t most) const {
  return ask_(
      {.id = id_, .attempt = attempt_, .offset = offset, .most_bytes = most, .from_segment = from_segment});
}

bool OutputReader::is_wanted(const wire::LogFrame& frame) const {
  return since_ms_ <= 0 || frame.wall_ms >= static_cast<std::uint64_t>(since_ms_);
}

void OutputReader::hand_on(const JobOutput& output) {
  if (output.stream != JobOutput::kNote && !output.bytes.empty())
    is_open_[output.stream == JobOutput::kErrors ? 1 : 0] = output.bytes.back() != '\n';
  take_(output);
}

void OutputReader::end_lines() {
  if (std::exchange(is_open_[0], false)) take_({JobOutput::kOutput, "\n"});
  if (std::exchange(is_open_[1], false)) take_({JobOutput::kErrors, "\n"});
}

void OutputReader::go_to_attempt(std::int32_t attempt) {
  attempt_ = attempt;
  offset_ = 0;
  rest_.clear();
  until_.reset();
}

Result<OutputReader::Got> OutputReader::read() {
  auto part = ask(offset_, false, kPieceBytes);
  if (!part) return part.error();
  if (part->attempt == 0) return part->closed ? Got::kEnd : Got::kNothing;
  attempt_ = part->attempt;
  if (!until_) until_ = part->end;
  if (part->offset > offset_) {
    note(std::to_string(part->offset - offset_) + " bytes of the output are gone (" +
         std::to_string(offset_) + " to " + std::to_string(part->offset) +
         "): its node keeps the newest 64 MiB");
    rest_.clear();
  }
  rest_.insert(rest_.end(), part->bytes.begin(), part->bytes.end());
  const auto taken = wire::read_log_frames(rest_, [&](const wire::LogFrame& frame) {
    if (is_wanted(frame)) hand_on(output_of(frame));
  });
  if (!taken) return taken.error();
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(*taken));
  offset_ = part->offset + part->bytes.size();
  const bool is_more = !part->bytes.empty() || offset_ < part->end;
  if (is_more && (follows_ || offset_ < *until_)) return Got::kSome;
  return part->closed ? Got::kEnd : Got::kNothing;
}

/// Segment by segment from the end, since frames begin where a segment does.
Result<void> OutputReader::begin_at_tail(std::int64_t lines) {
  std::vector<JobOutput> all;
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max(), end = 0;
  for (bool first = true; first || (count_lines(all) < lines + 1 && begin > 0); first = false) {
    auto part = ask(first ? begin : begin - 1, true, kPieceBytes);
    if (!part) return part.error();
    if (part->attempt == 0) return {};
    attempt_ = part->attempt;
    if (!first && part->offset >= begin) break;  // trimmed meanwhile
    const std::uint64_t until = first ? part->end : begin;
    begin = part->offset;
    if (first) end = part->end;
    if (first) until_ = end;
    std::vector<JobOutput> segment;
    wire::Bytes bytes = std::move(part->bytes);
    for (std::uint64_t at = begin + bytes.size(); at < until;) {
      part = ask(at, false, kPieceBytes);
      if (!part) return part.error();
      if (part->offset != at || part->bytes.empty()) break;
      bytes.insert(bytes.end(), part->bytes.begin(), part->bytes.end());
      at += part->bytes.size();
    }
    if (bytes.size() > until - begin) bytes.resize(until - begin);
    const auto taken = wire::read_log_frames(bytes, [&](const wire::LogFrame& frame) {
      if (is_wanted(frame)) segment.push_back(output_of(frame));
    });
    if (!taken) return taken.error();
    if (first) end = begin + *taken;
    all.insert(all.begin(), std::make_move_iterator(segment.begin()), std::make_move_iterator(segment.end()));
    if (begin <= part->first) break;
  }
  keep_lines(all, lines);
  if (lines == 0) all.clear();
  for (const JobOutput& output : all) hand_on(output);
  offset_ = end;
  return {};
}

}  // namespace troupe
