#include "actors/train/batch_feed.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/core/log.hpp"

namespace troupe::train {
namespace {

/// Batches a trainer has on the way or in use, per leaf it could host: the one in use and the next.
constexpr int kBatchesALeaf = 3;
/// Samples of a piece of the test set: they need no gradients, so more fit than in a training batch.
constexpr std::int64_t kTestPiece = 250;
constexpr Duration kPatience = std::chrono::seconds(60);
constexpr int kLoadFailures = 3;

}  // namespace

struct BatchFeed::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  SharedMemory memory;
  std::string region;
  Prefetcher prefetcher;
  std::map<std::uint64_t, Asked> asked;  ///< by attempt; its slot is taken until the loader has answered
  std::vector<std::size_t> free_slots;
  std::vector<LoaderInfo> loaders;
  std::string interrupted;  ///< why waits end
  ErrorInfo failure;        ///< what the dataset threw
  int failures = 0;
  std::uint64_t attempts = 0;

  Shared(int logical_ranks, int slots) : prefetcher(logical_ranks, slots) {}

  const Asked* find(std::int64_t step, int leaf) const {
    for (const auto& [attempt, one] : asked) {
      if (one.step == step && one.leaf == leaf && one.arrived) return &one;
    }
    return nullptr;
  }
};

BatchFeed::BatchFeed(ActorContext& actor, const RunSettings& settings, const DataInfo& info,
                     std::string region)
    : actor_(actor), settings_(settings), info_(info) {
  const data::LeafSampler sampler(sampler_options(settings, info));
  steps_per_epoch_ = sampler.steps_per_epoch();
  slot_bytes_ = data::batch_offsets(settings.micro_batch, info.shape).total;
  test_piece_ = std::max(kTestPiece, settings.micro_batch);
  test_slot_bytes_ = data::batch_offsets(test_piece_, info.shape).total;
  const int held = kBatchesALeaf * settings.logical_ranks;
  // Twice as many slots as batches: one asked of a loader that went silent stays taken until its death is
  // certain.
  const std::size_t slots = 2 * static_cast<std::size_t>(held);
  test_offset_ = slots * slot_bytes_;
  shared_ = std::make_shared<Shared>(settings.logical_ranks, held);
  shared_->region = std::move(region);
  shared_->memory =
      actor.session().open_region(shared_->region, test_offset_ + test_slot_bytes_, "trainer", false);
  for (std::size_t i = slots; i > 0; --i) shared_->free_slots.push_back(i - 1);
}

BatchFeed::~BatchFeed() {
  actor_.session().drop_region(shared_->region);
}

void BatchFeed::restart(LeafInterval leaves, std::int64_t step, std::int64_t total_steps) {
  std::unique_lock lock(shared_->mutex);
  shared_->interrupted.clear();
  shared_->failure = {};
  shared_->failures = 0;
  for (const auto& [old_step, old_leaf] : shared_->prefetcher.restart(leaves, step, total_steps)) {
    std::erase_if(shared_->asked, [&, s = old_step, l = old_leaf](const auto& entry) {
      if (entry.second.step != s || entry.second.leaf != l || !entry.second.arrived) return false;
      shared_->free_slots.push_back(entry.second.slot);
      return true;
    });
  }
  send_requests(lock);
}

void BatchFeed::set_loaders(const std::vector<LoaderInfo>& loaders) {
  std::unique_lock lock(shared_->mutex);
  shared_->loaders = loaders;
  shared_->prefetcher.set_loaders(loaders);
  send_requests(lock);
}

BatchAsk BatchFeed::make_ask(std::size_t offset) const {
  BatchAsk ask;
  ask.trainer = actor_.address();
  ask.region = shared_->region;
  ask.region_bytes = shared_->memory.size();
  ask.offset = offset;
  ask.bytes = slot_bytes_;
  return ask;
}

void BatchFeed::send_requests(std::unique_lock<std::mutex>& lock) {
  struct Call {
    ActorHandle<Loader> loader;
    BatchAsk ask;
    std::uint64_t attempt;
    std::int64_t step;
    int leaf;
  };
  std::vector<Call> calls;
  for (const auto& request : shared_->prefetcher.requests(MonotonicClock().now())) {
    const auto loader = std::find_if(shared_->loaders.begin(), shared_->loaders.end(),
                                     [&](const LoaderInfo& l) { return l.actor == request.loader; });
    if (loader == shared_->loaders.end() || shared_->free_slots.empty()) {
      shared_->prefetcher.failed(request.step, request.leaf);
      break;
    }
    const std::size_t slot = shared_->free_slots.back();
    shared_->free_slots.pop_back();
    const std::uint64_t attempt = ++shared_->attempts;
    shared_->asked[attempt] = {slot, request.step, request.leaf, false};
    BatchAsk ask = make_ask(slot * slot_bytes_);
    ask.epoch = static_cast<std::uint64_t>(request.step / steps_per_epoch_);
    ask.step = static_cast<std::uint64_t>(request.step % steps_per_epoch_);
    ask.leaf = static_cast<std::uint32_t>(request.leaf);
    const ActorAddress at = wire::decode<ActorAddress>(std::as_bytes(std::span(loader->address))).value();
    calls.push_back(
        {ActorHandle<Loader>(&actor_.process(), at), std::move(ask), attempt, request.step, request.leaf});
  }
  lock.unlock();
  for (auto& call : calls) {
    call.loader.call<&Loader::load>(call.ask).then([shared = shared_, attempt = call.attempt,
                                                    step = call.step, leaf = call.leaf,
                                                    bytes = slot_bytes_](const Result<BatchGiven>& given) {
      const std::lock_guard guard(shared->mutex);
      const auto at = shared->asked.find(attempt);
      if (at == shared->asked.end()) return;
      if (given && !given->bytes.empty()) {
        std::memcpy(shared->memory.data() + at->second.slot * bytes, given->bytes.data(),
                    std::min(given->bytes.size(), bytes));
      }
      const bool wanted = given.ok() && shared->prefetcher.arrived(step, leaf);
      if (!given.ok()) {
        shared->prefetcher.failed(step, leaf);
        if (given.error().code != ErrorCode::kActorDied && ++shared->failures >= kLoadFailures)
          shared->failure = given.error();
      }
      if (wanted) {
        at->second.arrived = true;
      } else {
        shared->free_slots.push_back(at->second.slot);
        shared->asked.erase(at);
      }
      shared->changed.notify_all();
    });
  }
  lock.lock();
}

void BatchFeed::check(const Shared& shared) const {
  if (!shared.interrupted.empty()) {
    throw CollectiveAborted(
        ErrorInfo{ErrorCode::kAborted, "the wait for a batch ended", shared.interrupted, ""});
  }
  if (!shared.failure.what.empty()) throw_error(shared.failure);
}

data::BatchView BatchFeed::wait(std::int64_t step, int leaf) {
  std::unique_lock lock(shared_->mutex);
  const Instant deadline = MonotonicClock().now() + kPatience;
  for (;;) {
    check(*shared_);
    if (const Asked* asked = shared_->find(step, leaf)) {
      const auto view =
          data::view_batch({shared_->memory.data() + asked->slot * slot_bytes_, slot_bytes_}).value();
      const data::BatchKey key{static_cast<std::uint64_t>(step / steps_per_epoch_),
                               static_cast<std::uint64_t>(step % steps_per_epoch_),
                               static_cast<std::uint32_t>(leaf)};
      TROUPE_ASSERT(view.key() == key, "a slot holds the batch that was asked for it");
      return view;
    }
    send_requests(lock);
    if (shared_->find(step, leaf) != nullptr || !shared_->interrupted.empty()) continue;
    shared_->changed.wait_for(lock, std::chrono::milliseconds(100));
    if (MonotonicClock().now() > deadline) {
      throw Timeout(ErrorInfo{ErrorCode::kTimeout, "no loader gave the batch of step " + std::to_string(step),
                              "60 s passed", ""});
    }
  }
}

void BatchFeed::release(std::int64_t step) {
  std::unique_lock lock(shared_->mutex);
  shared_->prefetcher.release(step);
  std::erase_if(shared_->asked, [&](const auto& entry) {
    if (entry.second.step != step || !entry.second.arrived) return false;
    shared_->free_slots.push_back(entry.second.slot);
    return true;
  });
  send_requests(lock);
}

void BatchFeed::each_test_batch(std::int64_t begin, std::int64_t end,
                                const std::function<void(const data::BatchView&)>& consume) {
  for (std::int64_t at = begin; at < end; at += test_piece_) {
    std::vector<LoaderInfo> loaders;
    for (int attempt = 0;; ++attempt) {
      {
        const std::lock_guard lock(shared_->mutex);
        check(*shared_);
        loaders = shared_->loaders;
      }
      if (loaders.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      BatchAsk ask = make_ask(test_offset_);
      ask.bytes = test_slot_bytes_;
      ask.split = data::Split::kTest;
      ask.begin = at;
      ask.end = std::min(end, at + test_piece_);
      const auto& chosen = loaders[static_cast<std::size_t>(attempt + at / test_piece_) % loaders.size()];
      const ActorAddress address =
          wire::decode<ActorAddress>(std::as_bytes(std::span(chosen.address))).value();
      try {
        const auto given =
            ActorHandle<Loader>(&actor_.process(), address).call<&Loader::load>(ask).get(kPatience);
        if (!given.bytes.empty())
          std::memcpy(shared_->memory.data() + test_offset_, given.bytes.data(),
                      std::min(given.bytes.size(), test_slot_bytes_));
        break;
      } catch (const ActorDied& died) {
        if (attempt > 100) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    consume(data::view_batch({shared_->memory.data() + test_offset_, test_slot_bytes_}).value());
  }
}

void BatchFeed::interrupt(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  shared_->interrupted = reason.empty() ? "the generation ended" : reason;
  shared_->changed.notify_all();
}

}  // namespace troupe::train
