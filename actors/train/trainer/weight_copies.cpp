#include "actors/train/trainer/weight_copies.hpp"

#include <utility>

namespace troupe::train {
namespace {

constexpr std::size_t kMostCopies = 4;

}  // namespace

Future<KeptState> WeightCopies::ask() {
  Promise<KeptState> answer;
  const auto future = answer.future();
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(answer);
  }
  if (wake_) wake_();
  return future;
}

bool WeightCopies::are_wanted() const {
  const std::lock_guard lock(mutex_);
  return !asked_.empty();
}

void WeightCopies::make(const KeptState& of, const std::function<std::unique_ptr<StateCopy>()>& copy) {
  std::vector<Promise<KeptState>> asked;
  {
    const std::lock_guard lock(mutex_);
    asked.swap(asked_);
  }
  if (asked.empty()) return;
  try {
    const auto stream = std::make_shared<StateStream>(of.lineage, SharedState{of.steps, {}, 0}, copy());
    for (auto& answer : asked) {
      KeptState made = of;
      std::shared_ptr<StateStream> oldest;  // its end takes a moment
      {
        const std::lock_guard lock(mutex_);
        made.number = ++last_;
        kept_[made.number] = stream;
        if (kept_.size() > kMostCopies) oldest = kept_.extract(kept_.begin()).mapped();
      }
      answer.set(made);
    }
  } catch (const Error& error) {
    for (auto& answer : asked) answer.fail(error.info());
  } catch (const std::exception& error) {  // out of memory
    for (auto& answer : asked)
      answer.fail({ErrorCode::kUnavailable, "the weights were not copied", error.what(), ""});
  }
}

SharedPiece WeightCopies::read(std::uint64_t number, std::uint64_t offset) const {
  std::shared_ptr<StateStream> copy;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = kept_.find(number); at != kept_.end()) copy = at->second;
  }
  if (copy == nullptr)
    throw_error({ErrorCode::kUnavailable, "the copy of the weights is not kept any more",
                 "its trainer has made others since", "ask for another one"});
  return copy->read(offset);
}

void WeightCopies::drop(std::uint64_t number) {
  std::shared_ptr<StateStream> dropped;
  const std::lock_guard lock(mutex_);
  if (const auto at = kept_.find(number); at != kept_.end()) dropped = kept_.extract(at).mapped();
}

void WeightCopies::beat() {
  std::vector<std::shared_ptr<StateStream>> unread;  // their end takes a moment
  const std::lock_guard lock(mutex_);
  const StateStream* former = nullptr;  // the numbers of one copy follow each other
  bool is_unread = false;
  for (auto at = kept_.begin(); at != kept_.end();) {
    StateStream* const copy = at->second.get();
    if (copy != former) is_unread = copy->beats_without_a_read() >= kIdleBeats;
    former = copy;
    if (is_unread) {
      unread.push_back(std::move(at->second));
      at = kept_.erase(at);
    } else {
      ++at;
    }
  }
}

void WeightCopies::clear() {
  wake_ = nullptr;
  const std::lock_guard lock(mutex_);
  kept_.clear();
  for (auto& answer : asked_)
    answer.fail({ErrorCode::kUnavailable, "the weights were not copied", "their trainer ends", ""});
  asked_.clear();
}

}  // namespace troupe::train
