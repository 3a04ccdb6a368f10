#include "actors/train/batches/batch_feed.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "actors/train/batches/slot_pool.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/condition.hpp"

namespace troupe::train {
namespace {

/// Memory for batches of each kind, unless four slots take more.
constexpr std::size_t kBatchBudgetBytes = std::size_t{256} << 20;
/// A loader answers or dies: what is asked again sooner is constructed twice.
constexpr Duration kAskAgain = std::chrono::minutes(10);
/// So often a batch may fail in the user's code before the job does: a file may be back the next time.
constexpr int kErrorsABatch = 3;
constexpr Duration kLook = std::chrono::milliseconds(100);

/// Room for somewhat larger batches than one that did not fit.
std::size_t with_reserve(std::size_t bytes) {
  const std::size_t more = bytes + bytes / 4;
  return (more + data::kBatchAlignment - 1) / data::kBatchAlignment * data::kBatchAlignment;
}

bool is_of_the_loader(const ErrorInfo& error) {
  return error.code == ErrorCode::kActorDied || error.code == ErrorCode::kUnavailable ||
         error.code == ErrorCode::kTimeout;
}

}  // namespace

ErrorInfo of_the_dataset(const std::string& job, ErrorInfo error) {
  constexpr std::string_view kThrew = " threw: ";
  const auto at = error.what.find(kThrew);
  if (at == std::string::npos) return error;
  const std::string as_its = job + "::dataset", rest = error.what.substr(at + kThrew.size());
  // It may be told as the job's already: "Digits::dataset threw std::bad_alloc".
  error.what = rest.starts_with(as_its + " threw") ? rest : as_its + std::string(kThrew) + rest;
  return error;
}

/// Batches of one kind: of training, by (step, leaf), or what is evaluated, by (piece, 0).
struct BatchFeed::Stream {
  struct Asked {
    SlotId slot = 0;
    std::int64_t step = 0;
    int leaf = 0;
    ActorHandle<Loader> loader;
    std::uint64_t got = 0;    ///< bytes that lie in the slot, where the batch comes in pieces
    std::uint64_t total = 0;  ///< of it
  };
  bool trains;
  int leaves = 1;             ///< that this trainer hosts
  std::uint64_t batch_bytes;  ///< of the largest batch so far, or more
  Prefetcher prefetcher;
  SlotPool pool;
  std::map<std::uint64_t, Asked> asked{};  ///< without the whole answer so far, each with its slot

  void give_back(const std::vector<SlotId>& slots) {
    for (const SlotId slot : slots) pool.give_back(slot);
  }
};

struct BatchFeed::Shared {
  std::mutex mutex;
  Condition changed;
  Stream train;
  Stream test;
  std::vector<LoaderInfo> loaders{};
  std::string interrupted{};  ///< why waits end
  ErrorInfo failure{};        ///< what the dataset threw
  std::uint64_t attempts = 0;
  bool ended = false;  ///< the feed is gone: nothing more is asked for

  void check() const {
    if (!interrupted.empty()) {
      throw CollectiveAborted(ErrorInfo{ErrorCode::kAborted, "the wait for a batch ended", interrupted, ""});
    }
    if (!failure.what.empty()) throw DataFailed(failure);
  }

  /// The answer to a call. The rest of the batch is still to be asked for, if it returns true.
  bool answered(Stream& stream, std::uint64_t attempt, const Result<BatchGiven>& given) {
    Stream::Asked& asked = stream.asked.at(attempt);
    if (!given.ok()) {
      const bool error = !is_of_the_loader(given.error());
      if (stream.prefetcher.failed(asked.step, asked.leaf, error) >= kErrorsABatch) failure = given.error();
      return over(stream, attempt, false);
    }
    if (given->needs > 0) {
      stream.batch_bytes = std::max<std::uint64_t>(stream.batch_bytes, with_reserve(given->needs));
      stream.prefetcher.ask_again(asked.step, asked.leaf);
      return over(stream, attempt, false);
    }
    asked.total = given->total;
    return take_piece(stream, attempt, given->bytes);
  }

  /// The same for a piece of its rest.
  bool answered(Stream& stream, std::uint64_t attempt, const Result<wire::Bytes>& piece) {
    if (piece && !piece->empty()) return take_piece(stream, attempt, *piece);
    const Stream::Asked& asked = stream.asked.at(attempt);
    stream.prefetcher.failed(asked.step, asked.leaf);
    return over(stream, attempt, false);
  }

  bool take_piece(Stream& stream, std::uint64_t attempt, const wire::Bytes& piece) {
    Stream::Asked& asked = stream.asked.at(attempt);
    const auto memory = stream.pool.memory(asked.slot);
    if (asked.total > memory.size() || piece.size() > asked.total - asked.got) {
      stream.prefetcher.failed(asked.step, asked.leaf);
      return over(stream, attempt, false);
    }
    if (!piece.empty()) std::memcpy(memory.data() + asked.got, piece.data(), piece.size());
    asked.got += piece.size();
    if (asked.got == asked.total) return over(stream, attempt, true);
    return (!ended && stream.prefetcher.waits_for(asked.step, asked.leaf)) || over(stream, attempt, false);
  }

  /// Always false: nothing more is to be asked.
  bool over(Stream& stream, std::uint64_t attempt, bool arrived) {
    const auto at = stream.asked.find(attempt);
    const Stream::Asked asked = at->second;
    stream.asked.erase(at);
    const bool taken = arrived && stream.prefetcher.arrived(asked.step, asked.leaf, asked.slot);
    if (!taken) stream.pool.give_back(asked.slot);
    changed.notify_all();
    return false;
  }

  /// `call` answers `attempt`, at least in part. Not under the mutex.
  template <class Answer>
  static void take(const std::shared_ptr<Shared>& shared, Stream& stream, ActorId trainer,
                   std::uint64_t attempt, const Future<Answer>& call) {
    call.then([shared, &stream, trainer, attempt](const Result<Answer>& answer) {
      std::unique_lock lock(shared->mutex);
      if (!shared->answered(stream, attempt, answer)) return;
      const auto [slot, step, leaf, loader, got, total] = stream.asked.at(attempt);
      lock.unlock();
      take(shared, stream, trainer, attempt, loader.template call<&Loader::rest>(trainer, attempt, got));
    });
  }
};

BatchFeed::BatchFeed(ActorContext& actor, const RunSettings& settings, const DataInfo& info,
                     const std::string& region,
                     std::function<std::shared_ptr<const void>(std::span<std::byte>)> pin)
    : actor_(actor), settings_(settings), info_(info) {
  const RegionSource source{
      .open = [session = actor.session()](
                  const std::string& name,
                  std::size_t bytes) { return session.open_region(name, bytes, "trainer", false); },
      .drop = [session = actor.session()](const std::string& name) { session.drop_region(name); },
      .pin = std::move(pin)};
  shared_ = std::shared_ptr<Shared>(new Shared{
      .mutex = {},
      .changed = {},
      .train = {.trains = true,
                .batch_bytes = info.batch_bytes,
                .prefetcher = Prefetcher(settings.logical_ranks, 1, kAskAgain, actor.address().node),
                .pool = SlotPool(source, region + "/train")},
      .test = {.trains = false,
               .batch_bytes = info.test_batch_bytes,
               .prefetcher = Prefetcher(1, 1, kAskAgain, actor.address().node),
               .pool = SlotPool(source, region + "/test")}});
}

BatchFeed::~BatchFeed() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
}

/// Makes the memory what the leaves and the batches' size want. Blocks while the node makes it; what has
/// arrived stays where it is.
void BatchFeed::make_room(std::unique_lock<std::mutex>& lock, Stream& stream) {
  const SlotPlan want = plan_slots(stream.leaves, stream.batch_bytes, kBatchBudgetBytes);
  const SlotPlan have = stream.pool.plan();
  const bool fits = have.bytes >= want.bytes && have.slots >= want.slots && have.slots <= 2 * want.slots;
  if (!fits) {
    const auto number = stream.pool.next_number();
    lock.unlock();
    auto region = stream.pool.make(want, number);
    lock.lock();
    stream.pool.add(std::move(region));
  }
  stream.prefetcher.set_capacity(want.capacity());
}

void BatchFeed::restart(LeafInterval leaves, std::int64_t step, std::int64_t total_steps) {
  std::unique_lock lock(shared_->mutex);
  Stream& stream = shared_->train;
  shared_->interrupted.clear();
  shared_->failure = {};
  stream.leaves = leaves.size();
  // Memory that there is will do until the first step is through: a recovery waits for no page.
  if (stream.pool.plan().slots == 0) make_room(lock, stream);
  stream.prefetcher.set_capacity(stream.pool.plan().capacity());
  stream.give_back(stream.prefetcher.restart(leaves, step, total_steps));
  send_requests(lock, stream);
}

void BatchFeed::set_loaders(const std::vector<LoaderInfo>& loaders) {
  std::unique_lock lock(shared_->mutex);
  shared_->loaders = loaders;
  shared_->train.prefetcher.set_loaders(loaders);
  shared_->test.prefetcher.set_loaders(loaders);
  send_requests(lock, shared_->train);
  shared_->changed.notify_all();
}

data::BatchKey BatchFeed::key_of(const Stream& stream, std::int64_t step, int leaf) const {
  if (!stream.trains) return {0, static_cast<std::uint64_t>(step), 0};
  return {static_cast<std::uint64_t>(step / info_.steps_per_epoch),
          static_cast<std::uint64_t>(step % info_.steps_per_epoch), static_cast<std::uint32_t>(leaf)};
}

BatchAsk BatchFeed::make_ask(const Stream& stream, SlotId slot, const BatchRequest& request) const {
  const auto place = stream.pool.place(slot);
  const auto key = key_of(stream, request.step, request.leaf);
  BatchAsk ask;
  ask.epoch = key.epoch;
  ask.step = key.step;
  ask.leaf = key.leaf;
  ask.samples = info_.train_size;
  if (!stream.trains) {
    const DataInfo::Piece piece = info_.piece(request.step);
    ask.split = piece.split;
    ask.samples = piece.split == data::Split::kTest ? info_.test_size : info_.validation_size;
    ask.begin = piece.begin;
    ask.end = piece.end;
  }
  ask.trainer = actor_.address();
  ask.region = place.region;
  ask.region_bytes = place.region_bytes;
  ask.offset = place.offset;
  ask.bytes = place.bytes;
  ask.regions = shared_->train.pool.regions();
  for (auto& region : shared_->test.pool.regions()) ask.regions.push_back(std::move(region));
  return ask;
}

/// Those that have no whole answer so far.
std::vector<std::uint64_t> BatchFeed::attempts() const {
  std::vector<std::uint64_t> under_way;
  for (const Stream* stream : {&shared_->train, &shared_->test}) {
    for (const auto& [attempt, asked] : stream->asked) under_way.push_back(attempt);
  }
  return under_way;
}

void BatchFeed::send_requests(std::unique_lock<std::mutex>& lock, Stream& stream) {
  struct Call {
    ActorHandle<Loader> loader;
    BatchAsk ask;
  };
  std::vector<Call> calls;
  for (const auto& request : stream.prefetcher.requests(MonotonicClock().now())) {
    const auto loader = std::find_if(shared_->loaders.begin(), shared_->loaders.end(),
                                     [&](const LoaderInfo& l) { return l.actor == request.loader; });
    const auto slot = loader == shared_->loaders.end() ? std::nullopt : stream.pool.take();
    if (!slot) {
      stream.prefetcher.failed(request.step, request.leaf);
      continue;
    }
    const auto address = wire::decode<ActorAddress>(std::as_bytes(std::span(loader->address))).value();
    const ActorHandle<Loader> handle(&actor_.process(), address);
    BatchAsk ask = make_ask(stream, *slot, request);
    ask.attempt = ++shared_->attempts;
    stream.asked[ask.attempt] = {*slot, request.step, request.leaf, handle};
    calls.push_back({handle, std::move(ask)});
  }
  const std::vector<std::uint64_t> under_way = calls.empty() ? std::vector<std::uint64_t>() : attempts();
  lock.unlock();
  for (auto& call : calls) {
    call.ask.under_way = under_way;
    Shared::take(shared_, stream, actor_.address().actor, call.ask.attempt,
                 call.loader.call<&Loader::load>(call.ask));
  }
  lock.lock();
}

data::BatchView BatchFeed::wait(std::unique_lock<std::mutex>& lock, Stream& stream, std::int64_t step,
                                int leaf) {
  for (;;) {
    shared_->check();
    if (const auto slot = stream.prefetcher.slot_of(step, leaf)) {
      auto view = data::view_batch(stream.pool.memory(*slot)).value();
      TROUPE_ASSERT(view.key() == key_of(stream, step, leaf), "a slot holds the batch that was asked for it");
      return view;
    }
    if (stream.batch_bytes > stream.pool.plan().bytes) make_room(lock, stream);
    send_requests(lock, stream);
    if (stream.prefetcher.ready(step, leaf) || !shared_->interrupted.empty()) continue;
    shared_->changed.wait_for(lock, kLook);
  }
}

data::BatchView BatchFeed::wait(std::int64_t step, int leaf) {
  std::unique_lock lock(shared_->mutex);
  return wait(lock, shared_->train, step, leaf);
}

void BatchFeed::used(std::int64_t step, int leaf) {
  std::unique_lock lock(shared_->mutex);
  Stream& stream = shared_->train;
  const auto slot = stream.prefetcher.used(step, leaf);
  if (!slot) return;
  stream.pool.give_back(*slot);
  send_requests(lock, stream);
}

void BatchFeed::release(std::int64_t step) {
  std::unique_lock lock(shared_->mutex);
  Stream& stream = shared_->train;
  stream.give_back(stream.prefetcher.release(step));
  make_room(lock, stream);
  send_requests(lock, stream);
}

void BatchFeed::each_test_piece(
    std::int64_t begin, std::int64_t end,
    const std::function<void(std::int64_t piece, const data::BatchView&)>& consume) {
  std::unique_lock lock(shared_->mutex);
  Stream& stream = shared_->test;
  make_room(lock, stream);
  stream.give_back(stream.prefetcher.restart({0, 1}, begin, end));
  for (std::int64_t piece = begin; piece < end; ++piece) {
    const auto view = wait(lock, stream, piece, 0);
    lock.unlock();
    consume(piece, view);
    lock.lock();
    stream.give_back(stream.prefetcher.release(piece));
    send_requests(lock, stream);
  }
}

void BatchFeed::interrupt(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  shared_->interrupted = reason.empty() ? "the generation ended" : reason;
  shared_->changed.notify_all();
}

}  // namespace troupe::train
