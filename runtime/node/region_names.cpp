#include "runtime/node/region_names.hpp"

#include <algorithm>

#include "runtime/core/abort_word.hpp"
#include "runtime/node/answers.hpp"
#include "runtime/wire/region_answer.hpp"

namespace troupe::node {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

ErrorInfo no_memory(const std::string& key, std::string why, std::string todo) {
  return {ErrorCode::kLimit, "no shared memory '" + key + "'", std::move(why), std::move(todo)};
}
std::string bytes_text(std::uint64_t count) {
  return std::to_string(count) + " bytes";
}
bool is_copy(const std::string& key) {
  return key.starts_with(wire::kCopyRegions);
}
bool is_of_object(const std::string& key) {
  return key.starts_with(wire::kObjectRegions) || is_copy(key);
}

}  // namespace

/// What no room can help.
std::optional<ErrorInfo> RegionNames::refuse(const wire::RegionAsk& ask) const {
  if (ask.key.empty() || ask.key.size() > limits_.key_bytes)
    return no_memory(ask.key.substr(0, limits_.key_bytes), "its name is empty or too long",
                     "use up to " + bytes_text(limits_.key_bytes));
  if (ask.bytes == 0 || (ask.abortable && ask.bytes < kAbortWordBytes))
    return no_memory(ask.key, "it has no room for " + std::string(ask.abortable ? "an abort word" : "a byte"),
                     "ask for more");
  if (ask.bytes > limits_.region_bytes)
    return no_memory(ask.key,
                     bytes_text(ask.bytes) + " is more than the limit of " +
                         bytes_text(limits_.region_bytes) + " a region",
                     "ask for less, or set TROUPE_REGION_BYTES");
  if (ask.bytes > limits_.regions_bytes)
    return no_memory(
        ask.key,
        bytes_text(ask.bytes) + " is more than the node's limit of " + bytes_text(limits_.regions_bytes),
        "ask for less, or set TROUPE_REGIONS_BYTES");
  return std::nullopt;
}

std::optional<ErrorInfo> RegionNames::is_full(const wire::RegionAsk& ask) const {
  if (regions_.size() + kept_.size() >= limits_.regions)
    return no_memory(ask.key, "the node has " + std::to_string(limits_.regions) + " regions already",
                     "drop regions");
  if (ask.bytes > limits_.regions_bytes - std::min(bytes_, limits_.regions_bytes))
    return no_memory(ask.key,
                     bytes_text(ask.bytes) + " with the " + bytes_text(bytes_) +
                         " in use is more than the node's limit of " + bytes_text(limits_.regions_bytes),
                     "drop regions, ask for less, or set TROUPE_REGIONS_BYTES");
  return std::nullopt;
}

wire::Bytes RegionNames::lent() const {
  return wire::encode(wire::RegionAnswer{limits_.regions_bytes, false, {}, {}});
}

/// Who can make room.
wire::Bytes RegionNames::full(JobId job, ErrorInfo why) const {
  std::map<ProcessId, std::uint64_t> held;
  for (auto at = regions_.lower_bound({job, ""}); at != regions_.end() && at->first.first == job; ++at) {
    if (!is_of_object(at->first.second)) continue;
    for (const auto& [process, label] : at->second.holders) held[process] += at->second.bytes;
  }
  wire::RegionAnswer answer{limits_.regions_bytes, true, std::move(why), {}};
  for (const auto& [process, bytes] : held) answer.holders.push_back(process);
  std::stable_sort(answer.holders.begin(), answer.holders.end(),
                   [&](ProcessId a, ProcessId b) { return held[a] > held[b]; });
  return wire::encode(answer);
}

void RegionNames::open(JobId job, ProcessId process, const wire::RegionAsk& ask, Actions& out) {
  const Name name{job, ask.key};
  auto at = regions_.find(name);
  if (at == regions_.end()) {
    if (auto error = refuse(ask)) return out.push_back(answer_to(process, ask.request, *std::move(error)));
    // Memory comes in whole pages: who asks for all that another one mapped gets it.
    std::uint64_t bytes = (ask.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const Kept kept = is_copy(ask.key) && !ask.abortable ? take_kept(job, bytes) : Kept{};
    if (kept.id) {
      bytes = kept.bytes;
    } else {
      while (!kept_.empty() && is_full(ask)) drop_oldest_kept(out);
      if (auto error = is_full(ask))
        return out.push_back(answer_to(process, ask.request, full(job, *std::move(error))));
      bytes_ += bytes;
    }
    Region region;
    region.id = {++last_};
    region.bytes = bytes;
    region.abortable = ask.abortable;
    region.maker = process;
    out.push_back(MakeRegion{region.id, ask.key, bytes, kept.id});
    at = regions_.emplace(name, std::move(region)).first;
  } else if (at->second.bytes < ask.bytes || at->second.abortable != ask.abortable) {
    out.push_back(
        answer_to(process, ask.request,
                  ErrorInfo{ErrorCode::kLimit, "no shared memory '" + ask.key + "'",
                            "it is there with another size or kind", "every member must ask for the same"}));
    return;
  }
  Region& region = at->second;
  region.holders[process] = ask.label;
  if (region.made) {
    out.push_back(answer_to(process, ask.request, lent(), {Attach::kRegion, region.id}));
  } else {
    region.waiting.push_back({process, ask.request});
  }
}

void RegionNames::made(RegionId id, const std::optional<ErrorInfo>& error, Actions& out) {
  const auto at =
      std::find_if(regions_.begin(), regions_.end(), [&](const auto& r) { return r.second.id == id; });
  if (at == regions_.end()) return;  // dropped meanwhile
  at->second.made = !error;
  for (const auto& [process, request] : std::exchange(at->second.waiting, {})) {
    out.push_back(error ? answer_to(process, request, *error)
                        : answer_to(process, request, lent(), {Attach::kRegion, id}));
  }
  if (error) erase(at, out);
}

RegionNames::Regions::iterator RegionNames::erase(Regions::iterator at, Actions& out) {
  for (const auto& [process, request] : at->second.waiting) {
    out.push_back(answer_to(process, request,
                            ErrorInfo{ErrorCode::kUnavailable, "no shared memory '" + at->first.second + "'",
                                      "it was dropped before it was made", "ask again"}));
  }
  bytes_ -= at->second.bytes;
  out.push_back(DropRegion{at->second.id});
  return regions_.erase(at);
}

// Memory of copies that have gone.

RegionNames::Regions::iterator RegionNames::erase_or_keep(Regions::iterator at, Instant now, Actions& out) {
  const Region& region = at->second;
  const bool keeps = is_copy(at->first.second) && region.made && !region.abortable &&
                     region.bytes >= kLeastKept && region.bytes <= limits_.regions_bytes / kPartKept;
  if (!keeps) return erase(at, out);
  kept_.push_back({at->first.first, region.id, region.bytes, now});
  while (kept_bytes() > limits_.regions_bytes / kPartKept) drop_oldest_kept(out);
  return regions_.erase(at);
}

RegionNames::Kept RegionNames::take_kept(JobId job, std::uint64_t bytes) {
  auto best = kept_.end();
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    const bool fits = at->job == job && at->bytes >= bytes && at->bytes / 2 <= bytes;
    if (fits && (best == kept_.end() || at->bytes < best->bytes)) best = at;
  }
  if (best == kept_.end()) return {};
  const Kept kept = *best;
  kept_.erase(best);
  return kept;
}

void RegionNames::drop_oldest_kept(Actions& out) {
  bytes_ -= kept_.front().bytes;
  out.push_back(DropRegion{kept_.front().id});
  kept_.pop_front();
}

std::uint64_t RegionNames::kept_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& kept : kept_) bytes += kept.bytes;
  return bytes;
}

void RegionNames::tick(Instant now, Actions& out) {
  while (!kept_.empty() && kept_.front().since + kKept <= now) drop_oldest_kept(out);
}

// Ends.

void RegionNames::drop(JobId job, const std::string& key, Instant now, Actions& out) {
  if (const auto at = regions_.find({job, key}); at != regions_.end()) erase_or_keep(at, now, out);
}

void RegionNames::process_died(ProcessId process, const std::string& reason, Instant now, Actions& out) {
  std::map<std::string, std::vector<RegionId>> aborts;  // by the label under which it held them
  for (const auto& [name, region] : regions_) {
    const auto holder = region.holders.find(process);
    if (holder != region.holders.end() && region.abortable) aborts[holder->second].push_back(region.id);
  }
  for (auto& [label, regions] : aborts) {
    out.push_back(AbortRegions{std::move(regions), std::string(label).append(" died: ").append(reason)});
  }
  for (auto at = regions_.begin(); at != regions_.end();) {
    const Region& region = at->second;
    const bool held = at->second.holders.erase(process) > 0;
    const bool owned = region.maker == process && at->first.second.starts_with(wire::kObjectRegions);
    at = owned || (held && region.holders.empty()) ? erase_or_keep(at, now, out) : std::next(at);
  }
}

void RegionNames::end_job(JobId job, Actions& out) {
  for (auto at = regions_.lower_bound({job, ""}); at != regions_.end() && at->first.first == job;) {
    at = erase(at, out);
  }
  std::erase_if(kept_, [&](const Kept& kept) {
    if (kept.job != job) return false;
    bytes_ -= kept.bytes;
    out.push_back(DropRegion{kept.id});
    return true;
  });
}

}  // namespace troupe::node
