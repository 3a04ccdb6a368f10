#include "scheduler/head/commit_queue.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/store/records.hpp"

namespace troupe {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(100);
constexpr Duration kLastBackoff = std::chrono::seconds(5);

}  // namespace

void CommitQueue::add(std::vector<cluster::ClusterAction> actions) {
  for (cluster::ClusterAction& action : actions) {
    if (auto* persist = std::get_if<cluster::Persist>(&action)) {
      open_.insert_or_assign(std::move(persist->key), encode_record(persist->record));
    } else if (auto* erase = std::get_if<cluster::Erase>(&action)) {
      open_.insert_or_assign(std::move(erase->key), std::nullopt);
    } else {
      hold(std::move(action));
    }
  }
}

void CommitQueue::add(const StoreBatch& changes) {
  for (const StoreBatch::Change& change : changes.changes()) open_.insert_or_assign(change.key, change.value);
}

void CommitQueue::hold(HeadMessage message) {
  const std::uint64_t last = durable_ + (under_way_ ? 1 : 0) + (open_.empty() ? 0 : 1);
  TROUPE_ASSERT(held_.empty() || held_.back().batch <= last, "messages wait in order");
  if (const auto* action = std::get_if<cluster::ClusterAction>(&message);
      action != nullptr && last > durable_)
    note_end(last, *action);
  held_.push_back({last, std::move(message)});
}

void CommitQueue::note_end(std::uint64_t batch, const cluster::ClusterAction& action) {
  if (std::holds_alternative<cluster::KillActor>(action)) ends_.emplace_back(batch, action);
  const auto* job = std::get_if<cluster::EndJob>(&action);
  if (job == nullptr) return;
  cluster::EndJob early = *job;
  early.is_recorded = false;
  ends_.emplace_back(batch, std::move(early));
}

std::vector<cluster::ClusterAction> CommitQueue::take_early_ends() {
  std::vector<cluster::ClusterAction> early;
  if (!failure_) return early;
  for (auto& [batch, action] : std::exchange(ends_, {})) early.push_back(std::move(action));
  return early;
}

std::shared_ptr<const StoreBatch> CommitQueue::next_write(Instant now) {
  if (is_written_ || (failure_ && now < next_try_)) return nullptr;
  if (!under_way_ && open_.empty()) return nullptr;
  if (!open_.empty()) {
    if (under_way_) take_back();
    auto batch = std::make_shared<StoreBatch>();
    for (auto& [key, value] : open_) {
      if (value) {
        batch->put(key, *value);
      } else {
        batch->erase(key);
      }
    }
    open_.clear();
    under_way_ = std::move(batch);
  }
  is_written_ = true;
  return under_way_;
}

/// What failed goes with all that has changed since: of a submission that was refused, and withdrawn, nothing
/// is durable for a moment.
void CommitQueue::take_back() {
  for (const StoreBatch::Change& change : under_way_->changes()) open_.try_emplace(change.key, change.value);
  for (Held& held : held_) held.batch = std::min(held.batch, durable_ + 1);
}

void CommitQueue::written(const Result<void>& how, Instant now) {
  TROUPE_ASSERT(is_written_ && under_way_, "one batch is with the store");
  is_written_ = false;
  if (how) {
    failure_.reset();
    backoff_ = {};
    changes_ += under_way_->changes().size();
    under_way_.reset();
    ++durable_;
    return;
  }
  failure_ = how.error();
  backoff_ = std::clamp(2 * backoff_, kFirstBackoff, kLastBackoff);
  next_try_ = now + backoff_;
}

std::vector<HeadMessage> CommitQueue::take_ready() {
  std::vector<HeadMessage> ready;
  for (; !held_.empty() && held_.front().batch <= durable_; held_.pop_front())
    ready.push_back(std::move(held_.front().message));
  while (!ends_.empty() && ends_.front().first <= durable_) ends_.pop_front();
  return ready;
}

std::vector<HeadReply> CommitQueue::take_failed_replies() {
  std::vector<HeadReply> failed;
  std::erase_if(held_, [&](Held& held) {
    auto* reply = std::get_if<HeadReply>(&held.message);
    if (reply == nullptr || reply->request == 0) return false;
    failed.push_back(std::move(*reply));
    return true;
  });
  return failed;
}

void CommitQueue::unsay_start(const std::string& submission) {
  std::erase_if(held_, [&](const Held& held) {
    const auto* action = std::get_if<cluster::ClusterAction>(&held.message);
    const auto* start = action == nullptr ? nullptr : std::get_if<cluster::StartDriver>(action);
    return start != nullptr && start->spec.id == submission;
  });
}

}  // namespace troupe
